"""What JOB and DEVICE resolve to: sources of traces, devices with their links and prices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_plan_synthetic import synthetic_family, synthetic_trace

import gpuwise
from gpuwise.api.devices import cheapest_offer, device_of
from gpuwise.api.source import StepSource
from gpuwise.api.sources import PresetSource, source_of, usual_micro_batch
from gpuwise.errors import InputError, UnknownNameError, UnsupportedError
from gpuwise.hardware import Catalog, link_between, load_catalog
from gpuwise.notes import Note
from gpuwise.notes.job import assumed_optimizer, assumed_sequence_length
from gpuwise.strategy import Mesh, Strategy
from gpuwise.trace import Trace, TraceFamily, live_bytes, save
from gpuwise.trace.presets import load_preset
from gpuwise.trace.update.optimizers import with_optimizer

CATALOG = load_catalog()
DIGITS = f"{Path(__file__).parents[2] / 'examples' / 'digits.py'}:job"


class Counted(StepSource):
    """Gives synthetic families and counts the requests."""

    def __init__(self, **sizes: int):
        super().__init__("counted", "", dict(sizes))
        self.requests: list[tuple[Strategy, str]] = []

    def find(self, strategy: Strategy, target: str) -> TraceFamily:
        self.requests.append((strategy, target))
        family = synthetic_family(strategy)
        assumed = (assumed_sequence_length(length=16), assumed_optimizer(optimizer="adamw"), Note("other", "kept"))
        return replace(family, header=replace(family.header, assumption_notes=assumed))


def trace_of(source: StepSource, strategy: Strategy) -> Trace:
    return source.step_traces().trace(strategy)


def test_a_family_is_found_once_for_what_it_depends_on():
    source = Counted()
    for micro_batch in (1, 2, 4):
        source(Strategy("amp-bf16", micro_batch=micro_batch, accumulation=3, mesh=Mesh(dp_replicate=micro_batch)))
    source(Strategy("amp-bf16", recompute="full"))
    source(Strategy("amp-bf16"), target="cpu")
    assert len(source.requests) == 3


def test_tf32_takes_the_operations_of_fp32():
    source = Counted()
    assert source(Strategy("tf32")) is source(Strategy("fp32"))


def test_assumptions_that_the_user_answered_are_dropped():
    assert len(Counted()(Strategy()).header.assumptions) == 3
    assert Counted(seq_len=64)(Strategy(optimizer="sgd")).header.assumptions == ("kept",)


def test_one_step_of_a_job_is_recorded_once_and_at_its_own_batch(monkeypatch: pytest.MonkeyPatch):
    import gpuwise.tracing as tracing

    requested, record = [], tracing.record
    monkeypatch.setattr(tracing, "record", lambda job, strategy, **k: requested.append(strategy) or record(job, strategy, **k))
    source = source_of(DIGITS)
    trace = trace_of(source, Strategy("tf32", micro_batch=5, accumulation=2, mesh=Mesh(dp_replicate=4)))
    assert trace.samples == 10
    assert [(strategy.micro_batch, strategy.mesh) for strategy in requested] == [(5, Mesh())]
    family = source(Strategy())
    assert live_bytes(family.at(micro_batch=5, accumulation=2)).peak_bytes == live_bytes(trace).peak_bytes


def test_a_saved_trace_answers_for_its_own_sizes_alone(tmp_path: Path):
    save(synthetic_trace(micro_batch=4), tmp_path / "one.npz")
    source = source_of(str(tmp_path / "one.npz"))
    assert trace_of(source, Strategy(micro_batch=4, accumulation=3)).samples == 12
    with pytest.raises(InputError, match="is recorded for"):
        trace_of(source, Strategy(micro_batch=8))
    with pytest.raises(UnsupportedError, match="recorded with mode train, not infer"):
        source(Strategy(mode="infer"))
    with pytest.raises(UnsupportedError, match="recorded with offload none, not optimizer"):
        source(Strategy(offload="optimizer"))


def test_a_preset_uses_its_recording_only_where_that_answers(monkeypatch: pytest.MonkeyPatch):
    def recorded(name: str, *, precision: str, recompute: str, mode: str, adapter: str) -> TraceFamily | None:
        there = precision != "bf16" and adapter == "none"
        return synthetic_family(Strategy(precision, recompute=recompute)) if there else None

    monkeypatch.setattr("gpuwise.api.sources.load_preset", recorded)
    source = source_of("tabular-mlp")
    assert isinstance(source, PresetSource)
    assert source.recorded(Strategy("amp-bf16")) is not None
    assert source.recorded(Strategy("bf16")) is None
    for other in ({"offload": "optimizer"}, {"adapter": "lora"}, {"optimizer": "sgd"}, {"compile": True}):
        assert source.recorded(Strategy(**other)) is None  # type: ignore[arg-type]
    message = " ".join(source(Strategy()).header.assumptions)
    assert "assumed 10,000 samples an epoch" in message
    assert "--optimizer" in message
    assert not any("attention kernels" in text for text in source.find(Strategy(), "pre-ampere").header.assumptions)
    source.search_recorded()
    with pytest.raises(UnsupportedError, match="no recorded trace of tabular-mlp in bf16"):
        source(Strategy("bf16"))
    source.search_recorded(precision="bf16")
    assert not source.recorded_only


@pytest.mark.parametrize(
    "update",
    [
        {"optimizer": "adamw-8bit"},
        {"optimizer": "sgd"},
        {"optimizer_kernels": "for-loop"},
        {"optimizer_in_backward": True},
        {"offload": "optimizer"},
        {"keep_gradients": True},
    ],
    ids=lambda update: next(iter(update)),
)
def test_another_update_is_composed_from_a_presets_recording(update: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(PresetSource, "_live", lambda self, strategy: pytest.fail(f"{strategy} is traced"))
    source, strategy = source_of("tabular-mlp"), Strategy("amp-bf16", micro_batch=64, **update)
    plain = load_preset("tabular-mlp", precision="amp-bf16")
    assert plain is not None
    names = {"optimizer": "adamw", "optimizer_kernels": None, **update}
    expected = with_optimizer(
        plain,
        names.pop("optimizer"),
        names.pop("optimizer_kernels"),
        **{name.removeprefix("optimizer_"): value for name, value in names.items()},
    )
    for trace in (trace_of(source, strategy), source(strategy).at(micro_batch=64)):
        assert live_bytes(trace).by_category == live_bytes(expected.at(micro_batch=64)).by_category
        assert trace.model_flops == expected.at(micro_batch=64).model_flops


def test_the_jobs_own_optimizer_by_name_is_the_recording_itself():
    source = source_of("tabular-mlp")
    assert source(Strategy(optimizer="adamw")).operations is source(Strategy()).operations
    assert any("--optimizer " in line for line in source(Strategy()).header.assumptions)
    assert not any("--optimizer " in line for line in source(Strategy(optimizer="adamw")).header.assumptions)


def test_a_search_over_another_optimizer_needs_recordings_alone():
    source = source_of("tabular-mlp")
    assert isinstance(source, PresetSource)
    source.search_recorded(Strategy(optimizer="sgd"))
    assert source.recorded_only


def test_a_saved_step_answers_for_another_optimizer_too(tmp_path: Path):
    plain = load_preset("tabular-mlp", precision="fp32")
    assert plain is not None
    save(plain.at(micro_batch=8), tmp_path / "one.npz")
    trace = trace_of(source_of(str(tmp_path / "one.npz")), Strategy(micro_batch=8, optimizer="sgd"))
    assert live_bytes(trace).by_category["optimizer_state"] == 0


def test_a_recording_with_flash_attention_says_so_on_a_gpu_that_has_none():
    for target, text in (("accelerator", False), ("pre-ampere", True)):
        lines = source_of("llama3-8b").find(Strategy("bf16"), target).header.assumptions
        assert any("attention kernels of Ampere" in line for line in lines) is text


@pytest.mark.parametrize(
    ("job", "sizes", "said"),
    [
        ("resnet50", {"seq_len": 8}, "has no sequence length"),
        ("vit-b16", {"image_size": 100}, "in multiples of 16"),
        ("bert-base", {"seq_len": 513}, "from 1 to 512"),
        ("llama3-8b", {"seq_len": 0}, "whole number from 1"),
        ("llama3-8b", {"seq_len": True}, "whole number from 1"),
        ("llama3-8b", {"seq_len": 1.5}, "whole number from 1"),
    ],
)
def test_sizes_that_a_preset_cannot_take_are_refused(job: str, sizes: dict[str, int], said: str):
    with pytest.raises(InputError, match=said):
        source_of(job, **sizes)


def test_long_samples_are_taken_one_at_a_time():
    assert [usual_micro_batch(tokens) for tokens in (None, 1, 128, 512, 8192)] == [32, 32, 32, 1, 1]


def test_a_device_has_its_link_and_its_cheapest_price():
    one, eight = device_of("h100-sxm", CATALOG), device_of("h100-sxm:8", CATALOG)
    assert one.link is None
    assert eight.link is not None
    assert (eight.count, eight.machines, eight.devices) == (8, 1, 8)
    for device in (one, eight):
        assert device.offer is not None
        assert device.offer.terms == "on-demand"
        assert device.offer.devices == device.count
        assert any(device.offer.provider in note.text and device.offer.as_of in note.text for note in device.assumptions)
        others = [o for o in CATALOG.offers if o.chip_id == device.chip.id and o.terms == "on-demand" and not o.stale]
        assert device.offer.usd_per_hour <= min(o.usd_per_hour for o in others if o.devices == device.count)


def test_machines_need_a_known_network():
    device = device_of("h100-sxm:8x4", CATALOG)
    assert (device.count, device.machines, device.devices) == (8, 4, 32)
    assert device.network is not None
    assert device.offer is not None
    assert link_between(device.offer, catalog=CATALOG) is not None
    assert device.usd_per_hour == 4 * device.offer.usd_per_hour
    assert any(note.text.startswith("price of 4 × ") for note in device.assumptions)
    assert any("assumed machines joined by" in note.text for note in device.assumptions)
    with pytest.raises(UnsupportedError, match="does not say how machines of gtx-580 are connected"):
        device_of("gtx-580:1x2", CATALOG)


def test_a_cpu_is_not_priced_as_an_instance():
    assert cheapest_offer(CATALOG, device_of("cpu", CATALOG).chip, 1) is None
    assert device_of("cpu", CATALOG).target == "cpu"
    assert device_of("t4", CATALOG).target == "pre-ampere"
    assert device_of("h100-sxm", CATALOG).target == "accelerator"


def test_memory_alone_reads_no_offers():
    catalog = Catalog()
    device = device_of("t4", catalog)
    assert (device.cluster.inside, device.cluster.capacity_bytes) == (None, device.chip.usable_memory_bytes)
    assert "offer_rows" not in vars(catalog)
    assert device.usd_per_hour
    assert "offer_rows" in vars(catalog)


def test_the_mesh_counts_devices_where_the_text_does_not():
    assert device_of("t4", CATALOG, mesh=Mesh(dp_replicate=4)).devices == 4
    with pytest.raises(InputError, match="the mesh dp=4 is of 4 devices"):
        device_of("t4:2", CATALOG, mesh=Mesh(dp_replicate=4))


def test_unknown_devices_name_their_neighbours():
    with pytest.raises(UnknownNameError, match="rtx-4090"):
        device_of("rtx-4091", CATALOG)


def test_samples_of_an_epoch_are_assumed_only_where_the_user_names_none():
    for settings, named in (({"samples": "50k"}, True), ({"epochs": 2.0, "samples": "50k"}, True), ({"epochs": 2.0}, False)):
        forecast = gpuwise.forecast("tabular-mlp", on="t4", **settings)
        notes = [note for note in forecast.assumptions if "samples an epoch" in note]
        assert bool(notes) != named, settings
        plans = gpuwise.plan("tabular-mlp", on="t4", **settings)
        notes = [note for note in (*plans.assumptions, *plans.best.assumptions) if "samples an epoch" in note]
        assert bool(notes) != named, settings


def test_a_device_that_is_no_text_is_the_users_mistake():
    with pytest.raises(InputError, match="a device is a text, got list"):
        gpuwise.forecast("gpt2", on=["h100-sxm"])  # type: ignore[arg-type]


def test_a_mesh_with_experts_is_sent_to_the_shards_that_share_them():
    with pytest.raises(InputError) as error:
        gpuwise.forecast("mixtral-8x7b", on="h100-sxm:8", mesh="dp_shard=2,ep=4")
    assert error.value.ways_out[0] == "--mesh dp_shard=8,ep=4"
