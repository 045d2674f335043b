"""fit and compare on a synthetic job."""

from __future__ import annotations

import json
from functools import cache

import pytest
from test_plan_synthetic import synthetic_source

from gpuwise import api
from gpuwise.api.source import StepSource
from gpuwise.cost.offload import lengthened, offload
from gpuwise.cost.parameters import parameters as shipped_parameters
from gpuwise.errors import InputError, UnsupportedError
from gpuwise.hardware import link_inside, load_catalog, parse_device
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.links import host_link
from gpuwise.plan.compare import compare
from gpuwise.plan.fit.fit import fit
from gpuwise.plan.fit.techniques import techniques
from gpuwise.plan.fit.types import LEAST_TIME
from gpuwise.plan.pricing.largest import MOST_MICRO_BATCH, largest_counted
from gpuwise.plan.pricing.step import StepPricer
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.strategy import Mesh, Strategy
from gpuwise.trace.presets import load_preset
from gpuwise.trace.presets.table import PRESETS

CATALOG = load_catalog()
SMALL = {"width": 2048, "layers": 4}
BIG = {"width": 8192, "layers": 40}  # 2.7 G parameters: 43 GB of state


def fitted(chip="rtx-4090", *, devices=1, link=None, source=None, shape=None, asked=None, **options):
    return fit(
        StepPricer(StepTraces(source or synthetic_source(**(shape or SMALL)))),
        Cluster(CATALOG.chip(chip), devices, inside=link),
        requested=asked or Strategy(optimizer="adamw"),
        **options,
    )


@cache
def preset(name, on="h100-80gb-sxm", *, precision=None, micro_batch=None, **asked):
    """A shipped recording on a device; what is not recorded is not traced."""

    def source(strategy):
        plain = Strategy(strategy.precision, recompute=strategy.recompute, mode=strategy.mode)
        family = load_preset(name, precision=strategy.precision, recompute=strategy.recompute, mode=strategy.mode)
        if family is None or strategy not in (plain, plain.but(optimizer=PRESETS[name].optimizer)):
            raise UnsupportedError(f"no recording of {strategy}")
        return family

    return fit(
        StepPricer(StepTraces(source)),
        Cluster(CATALOG.chip(on)),
        requested=Strategy(**asked),
        precision=precision,
        micro_batch=micro_batch,
    )


def pricer_of(shape):
    pricer = StepPricer(StepTraces(synthetic_source(**shape)))
    return lambda chip: pricer


def row(result, technique):
    return next(r for r in result.rows if r.technique == technique)


def test_the_largest_micro_batch_fits_and_one_more_does_not():
    result = fitted()
    assert result.fits
    assert result.forecast.memory.fits
    assert result.forecast.strategy.micro_batch == result.largest_micro_batch
    over = fitted(micro_batch=result.largest_micro_batch + 1)
    assert over.rows[0].memory.fits is False


def test_the_largest_micro_batch_is_the_allocators_not_that_of_counted_bytes():
    result = fitted()
    pricer = StepPricer(StepTraces(synthetic_source(**SMALL)))
    requested, cluster = result.rows[0].strategy, Cluster(CATALOG.chip("rtx-4090"), memory_bytes=result.capacity_bytes)
    assert result.largest_micro_batch < largest_counted(pricer, requested, cluster)
    assert pricer.fits(requested, cluster)
    assert not pricer.fits(requested.but(micro_batch=result.largest_micro_batch + 1), cluster)


def test_techniques_are_compared_at_an_equal_micro_batch():
    result = fitted()
    recompute = row(result, "full recompute")
    assert recompute.freed_bytes > 0
    assert recompute.step_time_ratio > 1
    assert recompute.largest_micro_batch > result.largest_micro_batch
    assert recompute.strategy.micro_batch == result.micro_batch
    assert not recompute.changes_training
    assert row(result, "precision tf32").freed_bytes < 0
    assert "more" in row(result, "precision tf32").note
    assert row(result, "precision bf16").changes_training
    assert {2, 4, 8} <= {r.devices for r in result.rows}
    notes = {t.name: t.note for t in techniques(Strategy(), CATALOG.chip("rtx-4090"))}
    assert "every second matrix product" in notes["selective recompute"]
    assert all(r.memory is None or r.memory.counted_only for r in result.rows[1:] if r.kind != "allocator")
    json.dumps(result.to_dict(), allow_nan=False)


def test_rows_stand_in_order_of_best_trade():
    rows = preset("gpt2", "rtx-4090", precision="amp-bf16").rows
    assert rows[0].technique == "as asked"
    trades = [r.trade for r in rows[1:]]
    assert trades == sorted(trades)
    frees = [r for r in rows[1:] if r.frees]
    places = {r.technique: place for place, r in enumerate(frees)}
    kept = [r for r in frees if not r.changes_training and r.kind != "sharding"]
    changed = [r for r in frees if r.changes_training]
    assert kept
    assert changed
    assert max(places[r.technique] for r in kept) < min(places[r.technique] for r in changed)
    costs = [r for r in kept if r.step_time_ratio > 1 + LEAST_TIME]
    per_time = [r.freed_bytes / (r.step_time_ratio - 1) for r in costs]
    assert per_time == sorted(per_time, reverse=True)
    free = [r.freed_bytes for r in kept if r not in costs]
    assert free == sorted(free, reverse=True)
    assert all(places[r.technique] < places[costs[0].technique] for r in kept if r not in costs)
    assert not any(r.frees for r in rows[1 + len(frees) :])


def test_accumulation_takes_the_place_of_a_larger_batch():
    result = fitted(micro_batch=64)
    half, many = row(result, "accumulation of 2 x 32"), row(result, "accumulation of 16 x 4")
    for technique, parts in ((half, 2), (many, 16)):
        assert technique.strategy.global_batch == 64
        assert technique.strategy.accumulation == parts
    wide = fitted(micro_batch=4096)
    assert row(wide, "accumulation of 2 x 2,048").freed_bytes > 0
    assert not any(r.kind == "accumulation" for r in fitted(micro_batch=1).rows)


def test_accumulation_says_where_a_copy_of_the_gradients_takes_more_than_it_frees():
    one = row(fitted(micro_batch=2), "accumulation of 2 x 1")
    assert one.freed_bytes < 0
    assert "adds one copy of the gradients" in one.note


def test_other_optimizers_and_their_kernels_are_composed_without_recording():
    result = preset("gpt2", "rtx-4090", precision="amp-bf16", recompute="full", micro_batch=1)
    parameters = 124_439_808
    small, tiny = row(result, "8-bit Adam"), row(result, "4-bit Adam")
    assert small.freed_bytes == pytest.approx(6 * parameters, rel=0.03)
    assert tiny.freed_bytes == pytest.approx(7 * parameters, rel=0.03)
    assert row(result, "SGD").freed_bytes == pytest.approx(8 * parameters, rel=0.03)
    assert row(result, "SGD with momentum").freed_bytes == pytest.approx(4 * parameters, rel=0.03)
    assert all(row(result, name).changes_training for name in ("8-bit Adam", "4-bit Adam", "SGD"))
    offload = row(result, "offload of the optimizer")
    assert offload.freed_bytes > 8 * parameters * 0.97
    assert offload.step_time_ratio > 1.5
    assert not offload.changes_training
    assert result.rows[0].strategy.optimizer is None


def test_what_frees_nothing_says_where_the_peak_is():
    result = preset(
        "llama3-8b", "h200-141gb-sxm", precision="bf16", recompute="full", optimizer_kernels="foreach", micro_batch=1
    )
    assert result.peak.where == "optimizer"
    assert "the optimizer step" in result.peak.sentence
    assert result.to_dict()["peak"]["where"] == "optimizer"
    assert row(result, "fused optimizer kernels").frees
    none = preset("llama3-8b", "h200-141gb-sxm", precision="bf16", optimizer_kernels="foreach", micro_batch=1)
    assert none.peak.where == "loss"
    assert row(none, "full recompute").frees
    in_backward = row(none, "optimizer in backward")
    assert not in_backward.frees
    assert "the peak is the loss" in in_backward.note


def test_expandable_segments_free_what_fragments_take_for_no_time():
    result = preset("llama3-8b", precision="bf16", recompute="full")
    memory, technique = result.rows[0].memory, row(result, "expandable segments")
    assert technique.freed_bytes == memory.peak_reserved_bytes - memory.peak_reserved_expandable_bytes > 2**30
    assert technique.step_time_ratio == 1.0
    assert technique.largest_micro_batch >= result.largest_micro_batch


def test_what_does_not_fit_names_what_would():
    result = fitted(shape=BIG)
    assert not result.fits
    assert result.forecast is None
    assert "sharded over 8 devices" in result.nearest_techniques
    sizes = [CATALOG.chip(name).usable_memory_bytes for name in result.nearest_chips]
    assert sizes == sorted(sizes)
    assert sizes[0] > result.capacity_bytes
    assert fitted(result.nearest_chips[0], shape=BIG, precision="amp-bf16").fits
    devices = result.nearest_devices
    assert devices is not None
    link = link_inside(CATALOG.chip("rtx-4090"), devices, catalog=CATALOG)
    requested = Strategy(optimizer="adamw", mesh=Mesh(dp_shard=devices))
    assert fitted(shape=BIG, asked=requested, devices=devices, link=link, precision="amp-bf16").fits


def test_the_nearest_combination_fits_and_needs_each_of_its_parts():
    result = preset("llama3-8b", "a100-40gb-sxm", precision="bf16")
    combination = result.nearest_combination
    assert combination is not None
    assert len(combination.techniques) > 1
    again = preset(
        "llama3-8b",
        "a100-40gb-sxm",
        precision=combination.strategy.precision,
        micro_batch=1,
        **{
            name: getattr(combination.strategy, name) for name in ("recompute", "optimizer", "offload", "optimizer_in_backward")
        },
    )
    assert again.fits
    kinds = {r.technique: r for r in result.rows}
    assert all(not kinds[name].largest_micro_batch for name in combination.techniques)
    assert result.to_dict()["nearest_combination"]["techniques"] == list(combination.techniques)


def test_variants_that_cannot_be_had_are_named_not_hidden():
    result = fitted(source=synthetic_source(without=("bf16", "full", "selective"), **SMALL))
    assert "no trace" in row(result, "selective recompute").unavailable
    assert "no trace" in row(result, "full recompute").unavailable
    assert row(result, "full recompute").largest_micro_batch is None
    assert row(result, "sharded over 2 devices").unavailable  # composed from the pure bf16 step
    assert result.fits


def test_what_may_not_be_recorded_is_not_asked_of_the_source():
    asked_for = []

    def source(strategy):
        asked_for.append(strategy)
        return synthetic_source(**SMALL)(strategy)

    result = fitted(source=source, precision="fp32", recordable=lambda variant, plain: variant == plain.but(recompute="full"))
    assert asked_for == [Strategy(), Strategy(recompute="full")]
    assert "--every-technique" in row(result, "selective recompute").unavailable
    assert row(result, "8-bit Adam").memory is not None
    assert row(result, "sharded over 2 devices").memory is not None


class Given(StepSource):
    """A job of which every variant can be traced."""

    def __init__(self):
        super().__init__("given", "", {})

    def find(self, strategy, target):
        return synthetic_source(**SMALL)(strategy)


@pytest.mark.parametrize("looked_at", [True, False])
def test_a_large_job_is_traced_for_what_is_asked_alone(looked_at: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gpuwise.api.fitting._TRACED_AGAIN", 10_000 if looked_at else 10)
    monkeypatch.setattr("gpuwise.api.fitting.source_of", lambda job, **sizes: Given())
    result = api.fit("a job", on="t4", precision="fp32")
    assert (row(result, "full recompute").unavailable is None) is looked_at
    assert "--every-technique" in row(result, "selective recompute").unavailable
    assert row(result, "8-bit Adam").memory is not None
    assert row(api.fit("a job", on="t4", precision="fp32", every_technique=True), "selective recompute").memory is not None


def test_inference_has_neither_recompute_nor_shards():
    kinds = {r.kind for r in fitted(asked=Strategy(mode="infer")).rows}
    assert kinds == {"asked", "precision", "compile", "allocator"}


def test_more_devices_than_the_shards_offered_are_fine():
    assert fitted("h100-80gb-sxm", devices=16, link=link_inside(CATALOG.chip("h100-80gb-sxm"), 16, catalog=CATALOG)).fits


def test_a_precision_the_chip_lacks_is_refused():
    with pytest.raises(UnsupportedError, match="does not compute in amp-bf16"):
        fitted("t4", precision="amp-bf16")


def devices(*names):
    return [parse_device(name, catalog=CATALOG) for name in names]


def test_devices_stand_side_by_side_with_speedups_against_the_slowest():
    result = compare(pricer_of(SMALL), devices("xeon-8380", "rtx-4090", "h100-80gb-sxm"))
    speed = {r.device: r.speedup for r in result.rows}
    assert result.baseline == "xeon-8380"
    assert speed["xeon-8380"] == 1.0
    assert 1 < speed["rtx-4090"] < speed["h100-80gb-sxm"]
    assert [r.forecast.strategy.precision for r in result.rows] == ["fp32", "amp-bf16", "amp-bf16"]
    assert "peak" in result.rows[1].reason
    assert any("xeon-8380" in text and "fp32" in text for text in result.assumptions)
    json.dumps(result.to_dict(), allow_nan=False)


def test_an_asked_micro_batch_and_precision_hold_where_they_can():
    result = compare(pricer_of(SMALL), devices("t4", "a100-40gb-sxm:4"), micro_batch=3, precision="amp-bf16")
    assert [r.forecast.strategy.micro_batch for r in result.rows] == [3, 3]
    assert [r.forecast.strategy.precision for r in result.rows] == ["amp-fp16", "amp-bf16"]
    assert any("t4 does not compute in amp-bf16" in text for text in result.assumptions)
    assert result.rows[1].device == "a100-40gb-sxm:4"


def test_a_device_that_cannot_be_priced_says_why_beside_the_others():
    result = compare(pricer_of(SMALL), devices("rtx-4090", "alveo-u250"))
    assert result.rows[1].forecast is None
    assert "cannot train" in result.rows[1].reason
    too_big = compare(pricer_of(BIG), devices("rtx-4090", "h200-141gb-sxm"))
    assert too_big.rows[0].reason.startswith("does not fit")
    with pytest.raises(UnsupportedError):
        compare(pricer_of(SMALL), devices("alveo-u250"))
    with pytest.raises(InputError):
        compare(pricer_of(SMALL), [])


def test_every_flag_of_a_strategy_is_asked_through_the_api():
    requests = {"optimizer": "adamw-8bit", "recompute": "full", "offload": "none", "precision": "amp-bf16"}
    result = api.fit("gpt2", on="rtx-4090", micro_batch=2, **requests)
    strategy = result.rows[0].strategy
    assert {name: getattr(strategy, name) for name in requests} == requests
    assert 2 <= result.rows[0].memory.by_category["optimizer_state"] / 124_439_808 < 2.5  # AdamW keeps 8 bytes each
    assert not any("--optimizer " in line for line in result.assumptions)
    in_backward = api.fit("gpt2", on="rtx-4090", micro_batch=2, precision="bf16", optimizer_in_backward=True)
    assert in_backward.rows[0].strategy.optimizer_in_backward
    assert not any(r.kind == "accumulation" for r in in_backward.rows)
    with pytest.raises(InputError, match="no use for --offload"):
        api.fit("gpt2", on="rtx-4090", mode="infer", offload="optimizer")
    with pytest.raises(InputError, match="unknown setting"):
        api.fit("gpt2", on="rtx-4090", magic=True)


def test_offloading_is_priced_over_the_host_link():
    trace = load_preset("gpt2", precision="amp-bf16").at(micro_batch=8)
    chip, parameters = CATALOG.chip("rtx-4090"), shipped_parameters()
    link = host_link(chip, CATALOG)
    one = offload(trace, Strategy(offload="optimizer"), link, parameters)
    assert one.link_bytes == pytest.approx(2 * 4 * 124_439_808, rel=0.01)  # fp32 gradients down, parameters up
    assert one.seconds > one.link_bytes / link.per_direction_bytes_per_s
    assert link.name in one.note.text
    all_of_it = offload(trace, Strategy(offload="parameters"), link, parameters)
    assert all_of_it.link_bytes > one.link_bytes
    assert offload(trace, Strategy(), link, parameters).seconds == 0
    forecast = api.forecast("gpt2", on="rtx-4090", micro_batch=8, precision="amp-bf16")
    longer = lengthened(forecast, one)
    assert longer.step_time_s.value == pytest.approx(forecast.step_time_s.value + one.seconds)
    assert sum(longer.bound.values()) == pytest.approx(1.0)
    assert sum(longer.breakdown.values()) == pytest.approx(longer.step_time_s.value)
    assert longer.breakdown["offload"] == pytest.approx(one.seconds)
    assert "offloading" in longer.assumptions[-1]


def test_where_the_search_ends_before_the_memory_every_technique_reaches_its_end():
    """An H100 holds 65,536 rows of a small table in every way; fragments of that step are no bound of the memory."""
    result = api.fit("tabular-mlp", on="h100-sxm", micro_batch=4096)
    reached = {row.technique: row.largest_micro_batch for row in result.rows if not row.unavailable}
    assert set(reached.values()) == {MOST_MICRO_BATCH}
    assert {"as asked", "accumulation of 16 x 256", "sharded over 2 devices"} <= set(reached)
