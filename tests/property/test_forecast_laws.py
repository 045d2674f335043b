"""Laws of forecasts on several devices, for any mesh, network and number of machines; nothing but a refusal where
one of them makes no sense. Presets alone: nothing is recorded."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import gpuwise
from gpuwise.errors import GpuwiseError, InputError
from gpuwise.strategy import PIPELINE_SCHEDULES, Mesh

MESHES = ("dp=16", "dp_shard=16", "dp=2,dp_shard=8", "dp_shard=2,tp=8", "dp_shard=4,tp=4", "tp=4,pp=4", "dp_shard=8,cp=2")
TECHNOLOGIES = ("Ethernet", "InfiniBand", "RoCE")
DEGREES = st.sampled_from([1, 1, 1, 2, 4, 8])


def waits_s(forecast: gpuwise.Forecast) -> float:
    return sum(seconds for name, seconds in forecast.breakdown.items() if name.startswith("communication"))


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@example("dp=16", "Ethernet", 233, 400, " a device")  # from 400 Gbit/s on the catalog has RoCE alone
@given(
    st.sampled_from(MESHES),
    st.sampled_from(TECHNOLOGIES),
    st.integers(1, 1600),
    st.integers(1, 1600),
    st.sampled_from(["", " a device"]),
)
def test_more_bandwidth_is_never_slower(mesh: str, technology: str, one: int, other: int, serves: str):
    slow, fast = (
        gpuwise.forecast(
            "llama3-8b", on="h100-sxm:8x2", mesh=mesh, recompute="full", network=f"{gbit} Gbit {technology}{serves}"
        )
        for gbit in sorted((one, other))
    )
    assert fast.step_time_s.value <= slow.step_time_s.value * (1 + 1e-9)


@settings(deadline=None, max_examples=15)
@given(st.sampled_from(["gpt2", "bert-base", "resnet50"]), st.integers(1, 6), st.sampled_from(["dp", "dp_shard"]))
def test_more_machines_add_nothing_but_communication_to_equal_work(job: str, doublings: int, axis: str):
    machines = 2**doublings
    few, many = (
        gpuwise.forecast(job, on=f"a100-80gb-sxm:8x{n}", mesh=f"{axis}={8 * n}", micro_batch=4, network="8 x ib-hdr")
        for n in (machines, 2 * machines)
    )
    assert many.step_time_s.value - waits_s(many) <= (few.step_time_s.value - waits_s(few)) * (1 + 1e-9)
    assert many.throughput <= 2 * few.throughput * 1.05  # each has a smaller part to update
    assert many.memory.peak_allocated_bytes <= few.memory.peak_allocated_bytes * 1.001


@settings(deadline=None, max_examples=60)
@given(dp=DEGREES, dp_shard=DEGREES, tp=DEGREES, pp=DEGREES, cp=DEGREES, other=st.sampled_from([0, 0, 0, 2, 4]))
def test_a_mesh_is_of_all_devices_or_is_refused(dp: int, dp_shard: int, tp: int, pp: int, cp: int, other: int):
    mesh = Mesh(dp_replicate=dp, dp_shard=dp_shard, tp=tp, pp=pp, cp=cp)
    product = dp * dp_shard * tp * pp * cp
    machines = other or max(2, product // 8)
    assert mesh.devices == product
    ask = {"on": f"h100-sxm:8x{machines}", "mesh": mesh, "recompute": "full", "seq_len": 1024, "network": "8 x ib-ndr"}
    if product != 8 * machines:
        with pytest.raises(InputError, match="the mesh"):
            gpuwise.forecast("llama3-8b", **ask)
        return
    forecast = gpuwise.forecast("llama3-8b", **ask)
    step, strategy = forecast.step_time_s, forecast.strategy
    assert forecast.count == product
    assert step.low <= step.value <= step.high
    assert strategy.global_batch == strategy.micro_batch * strategy.accumulation * dp * dp_shard
    assert forecast.throughput * step.value == pytest.approx(strategy.global_batch * 1024)  # tokens
    assert forecast.throughput_per_device * product == pytest.approx(forecast.throughput)
    assert sum(forecast.breakdown.values()) == pytest.approx(step.value)
    assert forecast.usd_per_million == pytest.approx(forecast.usd_per_hour / 3600 / forecast.throughput * 1e6)
    assert 0 < forecast.mfu < 1


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12)
NUMBERS = st.one_of(st.integers(-2, 64), st.sampled_from([10**6, 10**9, 10**18, -(10**18)]))
AXES = st.sampled_from(["dp", "dp_shard", "tp", "pp", "cp", "ep", "xp", ""])
MESH_TEXTS = st.one_of(
    st.lists(st.tuples(AXES, NUMBERS), max_size=4).map(lambda axes: ",".join(f"{axis}={degree}" for axis, degree in axes)),
    TEXT,
)
NETWORKS = st.one_of(
    st.sampled_from(["100 Gbit Ethernet", "8 x ib-ndr", "ib-ndr a device", "efa2", "nvlink4", "x 8", "1e3 Gbit", "nan Gbit"]),
    st.tuples(NUMBERS, st.sampled_from(["Gbit", "GB/s", "Tbit", "", "GbE"]), TEXT).map(lambda parts: " ".join(map(str, parts))),
    TEXT,
)
DEVICES = st.one_of(
    st.sampled_from(["h100-sxm", "h100-sxm:8x2", "h100-sxm:16", "tpu-v5e:16", "rtx-4090:2", "mi300x:8x2", "cpu:2", "cpu:1x2"]),
    st.tuples(st.sampled_from(["h100-sxm", "t4", "a100-40gb-sxm"]), NUMBERS, NUMBERS).map(lambda d: f"{d[0]}:{d[1]}x{d[2]}"),
    TEXT.filter(lambda text: not text.strip().lower().startswith("here")),
)


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from(["forecast", "scale", "timeline"]),
    DEVICES,
    st.fixed_dictionaries(
        {},
        optional={
            "mesh": MESH_TEXTS,
            "network": NETWORKS,
            "accumulate": NUMBERS,
            "micro_batch": NUMBERS,
            "pipeline_schedule": st.sampled_from([*PIPELINE_SCHEDULES, "none"]),
            "stages_per_rank": NUMBERS,
            "context": st.sampled_from(["gather", "all-to-all", "ring", "none"]),
            "shard": st.sampled_from(["parameters", "gradients", "optimizer", "none"]),
        },
    ),
)
def test_what_makes_no_sense_is_refused_and_all_else_is_json(verb: str, on: str, options: dict):
    of_verb = {"forecast": gpuwise.forecast, "scale": gpuwise.scale, "timeline": gpuwise.step_timeline}[verb]
    try:
        result = of_verb("gpt2", on=on, **options)
    except GpuwiseError:
        return
    json.dumps(result.forecast.to_dict() if verb == "timeline" else result.to_dict(), allow_nan=False)
