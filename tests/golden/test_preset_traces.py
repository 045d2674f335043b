"""The shipped traces are what the models record today. `gpuwise record NAME` brings one up to date."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.quick import quick

from gpuwise.serving.preset_generations import SHIPPED, generation_path, load_preset_generation
from gpuwise.strategy import Strategy
from gpuwise.trace import Trace, TraceFamily
from gpuwise.trace.presets import DATA, load_preset, preset_path
from gpuwise.trace.presets.table import PRESETS
from gpuwise.trace.tables import COLUMNS
from gpuwise.tracing.family import TOLERANCE, disagreement
from gpuwise.tracing.presets import record_preset_generation, recorder_of, variants

# Off the grid that was recorded, so that the polynomial is tested too, and small: the sizes do not change the time.
CHECKED_AT = {"micro_batch": 5, "seq_len": 416, "image_size": 384}


def paths(trace: Trace) -> list[str]:
    """The module of every position and of every storage."""
    return [trace.modules[index] for index in [*trace.sequence.module, *trace.storages.module]]


def without_scratch(trace: Trace) -> Trace:
    """The trace with kernels that allocate nothing for themselves."""
    values = trace.operations.values.copy()
    values[:, COLUMNS.index("workspace_bytes")] = 0
    return replace(trace, operations=replace(trace.operations, values=values))


SLOW = (
    "bert-large",
    "gpt2-large",
    "gpt2-xl",
    "sd15-unet",
    "mixtral-8x7b",
    "llama2-7b",
    "llama2-13b",
    "llama3-70b",
    "llama3-405b",
)  # others show the same of smaller ones


@pytest.mark.parametrize("name", quick(PRESETS, slow=SLOW))
def test_one_variant_records_the_same_today(name: str) -> None:
    info = PRESETS[name]
    of_preset = variants(info)
    # Another variant for each preset: together they meet every precision, recompute and mode.
    strategy = of_preset[list(PRESETS).index(name) % len(of_preset)]
    check(name, strategy)


@pytest.mark.filterwarnings("ignore")  # of peft and what it imports
@pytest.mark.parametrize("adapter", ["lora", pytest.param("qlora", marks=pytest.mark.slow)])
def test_an_adapted_variant_records_the_same_today(adapter: str) -> None:
    check("llama2-7b", Strategy("amp-bf16", recompute="full", adapter=adapter))


QUICK = ("gpt2", "llama3-8b")


@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
        for name, info in PRESETS.items()
        if info.writes_text
    ],
)
def test_a_preset_writes_text_as_recorded(name: str) -> None:
    # Another kind of device for each preset, likewise.
    target, precision = SHIPPED[list(PRESETS).index(name) % len(SHIPPED)]
    shipped = load_preset_generation(name, target=target, precision=precision)
    assert shipped is not None
    live = record_preset_generation(PRESETS[name], target=target, precision=precision)
    assert (shipped.attention, shipped.weights, shipped.longest) == (live.attention, live.weights, live.longest)
    assert shipped.cache_bytes_per_token == live.cache_bytes_per_token
    assert shipped.cache_bytes_per_sequence == live.cache_bytes_per_sequence
    assert shipped.activation_bytes_per_token == pytest.approx(live.activation_bytes_per_token, rel=TOLERANCE)
    for part in ("tokens", "head"):
        a, b = (getattr(each, part).at(micro_batch=5, new_tokens=48) for each in (shipped, live))
        if target == "cpu":  # oneDNN's products in bf16 take scratch memory on processors with AVX-512 alone
            a, b = map(without_scratch, (a, b))
        assert disagreement(a, b) <= TOLERANCE
        assert paths(a) == paths(b)


def check(name: str, strategy: Strategy) -> None:
    info = PRESETS[name]
    shipped = load_preset(
        name, precision=strategy.precision, recompute=strategy.recompute, mode=strategy.mode, adapter=strategy.adapter
    )
    assert isinstance(shipped, TraceFamily)
    axes = {axis.name for axis in shipped.axes}
    sizes = {**shipped.header.sizes, **{axis: CHECKED_AT[axis] for axis in axes}}
    live = recorder_of(info, strategy)(sizes)
    assert disagreement(shipped.at(**sizes), live) <= TOLERANCE
    assert shipped.header.fingerprint == live.header.fingerprint or "image_size" in axes  # a position table grows
    assert shipped.header.parameters == live.header.parameters or "image_size" in axes
    assert paths(shipped.at(**sizes)) == paths(live)


@pytest.mark.parametrize("name", PRESETS)
def test_every_variant_is_shipped_and_no_other(name: str) -> None:
    expected = {
        preset_path(name, precision=s.precision, recompute=s.recompute, mode=s.mode, adapter=s.adapter)
        for s in variants(PRESETS[name])
    }
    if PRESETS[name].writes_text:
        expected |= {generation_path(name, target=target, precision=precision) for target, precision in SHIPPED}
    assert set((DATA / name).glob("*")) == expected


def test_tf32_runs_the_operations_of_fp32() -> None:
    tf32, fp32 = (load_preset("resnet50", precision=p) for p in ("tf32", "fp32"))
    assert tf32 is not None
    assert fp32 is not None
    assert tf32.header.strategy.precision == "tf32"
    assert (tf32.operations.values == fp32.operations.values).all()
