"""Memory over the step: what it sums to, where it peaks, and the tensors that make the peak."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_plan_synthetic import synthetic_trace

from gpuwise.cost.memory.device import memory_forecast
from gpuwise.cost.memory.peak import TOP, peak_of
from gpuwise.cost.memory.timeline import timeline
from gpuwise.cost.parameters import parameters
from gpuwise.hardware import load_catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.strategy import Strategy
from gpuwise.trace.memory import live_bytes
from gpuwise.trace.presets import load_preset
from gpuwise.trace.update.optimizers import with_optimizer

CATALOG = load_catalog()


def of_preset(name, *, precision, recompute="none", micro_batch=1):
    family = load_preset(name, precision=precision, recompute=recompute)
    assert family is not None
    return family.at(micro_batch=micro_batch)


def assert_exact(found):
    """The column at the peak is the forecast's, and nothing is above it."""
    column = dict(zip(found.categories, found.size_bytes[:, found.peak_index].tolist(), strict=True))
    assert column == {name: found.memory.by_category[name] for name in found.categories}
    assert sum(column.values()) == sum(found.memory.by_category.values()) == found.memory.peak_allocated_bytes
    assert found.total_bytes.max() == found.memory.peak_allocated_bytes
    assert (found.size_bytes >= 0).all()


@settings(max_examples=40, deadline=None)
@given(
    micro_batch=st.integers(1, 50),
    width=st.integers(1, 700),
    layers=st.integers(1, 5),
    accumulation=st.integers(1, 4),
    recompute=st.sampled_from(["none", "full"]),
    chip=st.sampled_from(["rtx-4090", "h100-80gb-sxm", "xeon-8380", "tpu-v4"]),
)
def test_categories_sum_to_the_peak_exactly(micro_batch, width, layers, accumulation, recompute, chip):
    strategy = Strategy(recompute=recompute)
    trace = synthetic_trace(micro_batch=micro_batch, width=width, layers=layers, strategy=strategy)
    result = timeline(trace.with_accumulation(accumulation), Cluster(CATALOG.chip(chip)))
    assert_exact(result)
    assert len(result.phase) == len(result.start_s) - 1 == result.size_bytes.shape[1]
    assert (result.start_s[1:] >= result.start_s[:-1]).all()


@pytest.mark.parametrize(
    ("job", "micro_batch", "chip"), [("gpt2", 7, "rtx-4090"), ("resnet50", 31, "rtx-3090"), ("sd15-unet", 2, "h100-80gb-sxm")]
)
def test_real_steps_sum_exactly_too(job, micro_batch, chip):
    trace = of_preset(job, precision="amp-bf16", micro_batch=micro_batch)
    for accumulation in (1, 3):
        assert_exact(timeline(trace.with_accumulation(accumulation), Cluster(CATALOG.chip(chip))))


def test_it_is_exact_where_cached_blocks_had_to_be_given_back():
    trace, chip = of_preset("llama3-8b", precision="bf16", recompute="full"), CATALOG.chip("h100-80gb-sxm")
    free = memory_forecast(trace, Cluster(chip), parameters=parameters())
    outside = free.device_bytes - free.peak_reserved_bytes
    tight = (free.peak_allocated_bytes + free.peak_reserved_bytes * 9) // 10 + outside
    result = timeline(trace, Cluster(chip, memory_bytes=tight))
    assert result.memory.cache_releases > 0
    assert_exact(result)


def test_phases_follow_each_other_and_recomputation_is_marked():
    result = timeline(of_preset("gpt2", precision="amp-bf16", recompute="full"), Cluster(CATALOG.chip("rtx-4090")))
    assert [phase for phase, _, _ in result.spans] == ["forward", "backward", "optimizer"]
    assert len(result.recomputes) == 12
    begin, end = result.spans[1][1:]
    assert all(begin <= a < b <= end for a, b in result.recomputes)
    assert not timeline(of_preset("gpt2", precision="amp-bf16"), Cluster(CATALOG.chip("rtx-4090"))).recomputes
    json.dumps(result.to_dict(), allow_nan=False)


def test_sampled_columns_keep_the_peak():
    result = timeline(of_preset("gpt2", precision="amp-bf16", micro_batch=4), Cluster(CATALOG.chip("rtx-4090")))
    for columns in (1, 60, 700):
        sampled = result.sampled(columns)
        assert sampled.shape == (len(result.categories), columns)
        assert sampled.sum(axis=0).max() == result.memory.peak_allocated_bytes


def test_the_tensors_of_the_peak_are_grouped_by_layer_largest_first():
    trace = of_preset("gpt2", precision="amp-bf16", micro_batch=8)
    peak = peak_of(trace)
    totals = [group.total_bytes for group in peak.tensors]
    assert len(totals) == TOP
    assert totals == sorted(totals, reverse=True)
    assert sum(totals) <= peak.peak_bytes == sum(peak.by_category.values())
    up = next(group for group in peak.tensors if group.module == "layers.*.up" and group.operation == "addmm")
    assert up.count == 12
    assert up.total_bytes == 12 * up.size_bytes == 12 * 8 * 1024 * 4 * 768 * 2  # samples, tokens, features, bf16
    singles = [tensor.size_bytes for tensor in peak.largest]
    assert singles == sorted(singles, reverse=True)
    assert singles[0] == 8 * 1024 * 50257 * 4  # logits in fp32
    assert up.words == "layers.*.up (addmm) x 12"


def test_the_loss_over_a_large_vocabulary_is_named_with_its_module_and_tensors():
    peak = peak_of(of_preset("gpt2", precision="amp-bf16", micro_batch=8))
    assert peak.where == "loss"
    assert "the loss over a large vocabulary" in peak.sentence
    assert "`head`" in peak.sentence
    assert "3 tensors of up to 1.53 GiB in fp32" in peak.sentence
    assert "parts of the sequence" in peak.advice


def test_the_peak_of_8b_with_full_recomputation_is_the_optimizer_step_where_it_copies():
    family = load_preset("llama3-8b", precision="bf16", recompute="full")
    copies = with_optimizer(family, "adamw", "foreach").at(micro_batch=1)
    peak = peak_of(copies)
    assert peak.where == "optimizer"
    assert "the optimizer step" in peak.sentence
    assert "recomputation and a smaller micro-batch free nothing" in peak.advice
    fused = peak_of(family.at(micro_batch=1))
    assert fused.where == "backward"
    assert fused.state_share > 0.9
    assert "free little" in fused.advice


def test_activations_are_named_where_they_make_the_peak():
    peak = peak_of(of_preset("resnet50", precision="amp-bf16", micro_batch=64))
    assert peak.where in ("forward", "backward")
    assert peak.state_share < 0.2
    assert peak.advice.startswith("recomputation")


def test_the_peak_is_where_live_bytes_say_it_is():
    trace = of_preset("bert-base", precision="fp32", micro_batch=2)
    live = live_bytes(trace)
    peak = peak_of(trace, live=live)
    assert (peak.position, peak.peak_bytes) == (live.peak_position, live.peak_bytes)
    assert peak.to_dict()["state_share"] == peak.state_share
