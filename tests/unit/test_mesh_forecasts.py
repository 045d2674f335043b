"""forecast and fit with a mesh, from presets: what is answered, and what is refused before any tracing."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from test_plan_synthetic import synthetic_trace

import gpuwise
from gpuwise.cost.kernels import KernelTimes
from gpuwise.cost.network.collectives import NOTHING
from gpuwise.cost.network.topology import group_path, ranks_per_machine
from gpuwise.cost.parameters import parameters
from gpuwise.cost.rank_time import RankTime
from gpuwise.cost.timeline.stages import pipeline_wait
from gpuwise.errors import InputError
from gpuwise.hardware import load_catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.types import Link
from gpuwise.strategy import Mesh, Parallelism, Strategy
from gpuwise.trace.header import RankGroup
from gpuwise.trace.parallel.communication import Communication
from gpuwise.trace.parallel.ranks import RankStep

H100 = load_catalog().chip("h100-80gb-sxm")
INSIDE = Link("inside", "a switch", "scale-up", per_direction_bytes_per_s=400e9)
BETWEEN = Link("between", "a network", "scale-out", per_direction_bytes_per_s=320e9)
NO_KERNELS = KernelTimes(*[np.zeros(0)] * 6, names=(), figures=(), notes=(), peaks=())
CLUSTER = Cluster(H100, 8, 4, inside=INSIDE, between=BETWEEN)


def kinds(result: gpuwise.Forecast) -> set[str]:
    return {note.kind for note in result.assumption_notes}


def test_a_model_of_405_billion_parameters_on_16384_devices() -> None:
    result = gpuwise.forecast(
        "llama3-405b", on="h100-sxm:8x2048", mesh="dp_shard=128,tp=8,pp=16", recompute="full", sequence_parallel=True
    )
    assert result.count == 16_384
    assert result.strategy.accumulation == 16
    assert {"assumed-micro-batches", "composed-rank", "worst-rank", "pipeline-bubble", "waits-for-collectives"} <= kinds(result)
    assert sum(result.bound.values()) == pytest.approx(1)
    assert result.bound["pipeline"] > 0.3  # 15 of 31
    assert sum(result.breakdown.values()) == pytest.approx(result.step_time_s.value)
    assert result.breakdown["bubble"] == pytest.approx(result.bound["pipeline"] * result.step_time_s.value)
    communication = [seconds for name, seconds in result.breakdown.items() if name.startswith("communication_")]
    assert sum(communication) == pytest.approx(result.bound["communication"] * result.step_time_s.value)
    assert 0.7 < result.breakdown["recompute"] / result.breakdown["forward"] <= 1
    # 6 operations a parameter and token, and attention; 2,048 sequences of 8,192 tokens.
    tokens = 2048 * 8192
    assert result.flops_per_step == pytest.approx(6 * 405.85e9 * tokens, rel=0.15)
    assert result.throughput == pytest.approx(tokens / result.step_time_s.value)
    # State in fp32: parameters and two moments, over all devices.
    state = result.memory.by_category["parameter"] + result.memory.by_category["optimizer_state"]
    assert state * 16_384 == pytest.approx(12 * 405.85e9, rel=0.15)
    assert result.memory.fits


def test_a_forecast_of_16384_devices_loads_no_pytorch() -> None:
    """Which would take longer to import than the forecast does."""
    program = (
        "import sys, gpuwise\n"
        "gpuwise.forecast('llama3-405b', on='h100-sxm:8x2048', mesh='dp_shard=128,tp=8,pp=16', recompute='full')\n"
        "gpuwise.step_timeline('llama3-8b', on='h100-sxm:8x64', mesh='dp_shard=64,tp=8', recompute='full')\n"
        "gpuwise.scale('llama3-8b', on='h100-sxm:8x64', recompute='full')\n"
        "heavy = {'torch', 'pandas', 'scipy', 'matplotlib', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("micro_batches", [512, 10_000_000])
@pytest.mark.parametrize("mesh", ["dp_shard=128,tp=8,pp=16", "dp_shard=16384"])
def test_a_step_of_a_cluster_counts_more_operations_than_64_bits_hold(mesh: str, micro_batches: int) -> None:
    """6 operations a parameter and token, and attention's; each rank's share alone passes 2^63."""
    few, many = (
        gpuwise.forecast("llama3-405b", on="h100-sxm:8x2048", mesh=mesh, accumulate=count, recompute="full")
        for count in (16, micro_batches)
    )
    assert many.flops_per_step * 16 == few.flops_per_step * micro_batches > 0
    samples = micro_batches * (16_384 if mesh == "dp_shard=16384" else 128)
    assert many.flops_per_step == pytest.approx(6 * 405.85e9 * samples * 8192, rel=0.15)
    assert many.throughput > 0.99 * few.throughput
    assert many.bound["communication"] <= 1


def test_more_micro_batches_fill_a_pipeline() -> None:
    mesh = "pp=4"
    few, many = (gpuwise.forecast("llama3-8b", on="h100-sxm:4", mesh=mesh, accumulate=n, recompute="full") for n in (4, 32))
    assert many.mfu is not None
    assert few.mfu is not None
    assert many.mfu > 1.4 * few.mfu
    assert many.flops_per_step == 8 * few.flops_per_step


def test_tensor_parallelism_across_machines_is_noted_and_slower() -> None:
    inside, across = (gpuwise.forecast("llama2-7b", on=on, mesh="tp=16") for on in ("a100-40gb-sxm:16", "a100-80gb-sxm:8x2"))
    assert "model-parallel-across-machines" in {note.kind for note in across.warning_notes}
    assert not inside.warning_notes
    assert across.step_time_s.value > inside.step_time_s.value


def test_fit_takes_a_mesh_over_machines() -> None:
    result = gpuwise.fit("llama3-8b", on="h100-sxm:16", mesh="dp_shard=2,tp=8", sequence_parallel=True)
    assert (result.largest_micro_batch or 0) >= 2


@pytest.mark.parametrize(
    ("mesh", "words"),
    [
        ("tp=4", "the mesh tp=4 is of 4 devices, but 'h100-sxm:8' names 8"),
        ("tp=8,pp=0", "mesh pp"),
        ("pp=8", "needs at least 8 micro-batches"),
        ("dp_shard=2,tp=4,xp=2", "cannot read mesh"),
    ],
)
def test_bad_meshes_are_refused(mesh: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        gpuwise.forecast("llama3-8b", on="h100-sxm:8", mesh=mesh, accumulate=2)


def test_a_mesh_that_one_device_does_not_have_keeps_the_others_in_its_way_out() -> None:
    with pytest.raises(InputError, match=r"--on h100-sxm:8x2,a100-80gb-sxm:16$"):
        gpuwise.compare("gpt2", on=["h100-sxm:8x2", "a100-80gb-sxm:8x4"], mesh="dp_shard=16")


@pytest.mark.parametrize(
    ("on", "mesh", "precision", "autocasts"),
    [
        ("h100-sxm:8", "tp=8", "amp-bf16", True),
        ("h100-sxm:8", "tp=8", "bf16", False),
        ("h100-sxm:8x2", "dp=2,tp=8", "amp-bf16", False),
    ],
)
def test_autocast_of_a_mesh_without_data_parallelism_is_noted(on: str, mesh: str, precision: str, autocasts: bool) -> None:
    """Beside replicas the same ranks are FSDP2's, which casts parameters."""
    forecast = gpuwise.forecast("llama3-8b", on=on, mesh=mesh, precision=precision, recompute="full", micro_batch=1)
    assert ("autocast-without-shards" in {note.kind for note in forecast.assumption_notes}) == autocasts


def test_ranks_are_numbered_through_the_machines() -> None:
    assert ranks_per_machine(RankGroup("tp", 8, 1), 8) == 8
    assert ranks_per_machine(RankGroup("dp_shard", 16, 2), 8) == 4
    assert ranks_per_machine(RankGroup("pp", 4, 8), 8) == 1


@pytest.mark.parametrize(
    ("group", "bandwidth", "crosses"),
    [
        (RankGroup("tp", 8, 1), 400e9, False),
        (RankGroup("dp_shard", 32, 1), 320e9, True),  # all devices of a machine share its line rate
        (RankGroup("dp_shard", 4, 8), 40e9, True),  # eight groups share it
        (RankGroup("dp_shard", 8, 4), 80e9, True),
        (RankGroup("tp", 16, 1), 320e9, True),
    ],
)
def test_a_machines_network_is_shared_by_the_groups_that_cross_it(group: RankGroup, bandwidth: float, crosses: bool) -> None:
    path = group_path(group, CLUSTER, parameters().network)
    assert path.segments[-1].bandwidth_bytes_per_s == pytest.approx(bandwidth)
    assert (path.between is not None) is crosses


@pytest.mark.parametrize(
    ("schedule", "stages", "idle"),
    [("1f1b", 1, 3), ("gpipe", 1, 3), ("interleaved-1f1b", 3, 1)],
)
def test_schedules_leave_ranks_idle(schedule: str, stages: int, idle: float) -> None:
    """Of alike ranks, (p - 1) / stages of a rank in micro-batches (Narayanan et al. 2021)."""
    parallelism = Parallelism(pipeline_schedule=schedule, stages_per_rank=stages, shard="gradients")
    strategy = Strategy(mesh=Mesh(pp=4), accumulation=8, parallelism=parallelism)
    rank = rank_of(forward_s=8.0, backward_s=16.0, optimizer_s=2.0)
    wait = pipeline_wait([rank], strategy, CLUSTER)
    assert wait.idle_s == pytest.approx(3 * idle)
    assert wait.send_s == 0


def test_the_slowest_stage_sets_the_pace() -> None:
    """Of 64 micro-batches, the last stage takes 2 s each and the others 1 s: it waits for the first forward passes alone, and
    the others for its last backward pass to come back."""
    strategy = Strategy(mesh=Mesh(pp=4), accumulation=64)
    fast = rank_of(forward_s=64 / 4, backward_s=64 * 3 / 4, micro_batches=64)
    slow = rank_of(forward_s=64 / 2, backward_s=64 * 3 / 2, micro_batches=64)
    assert pipeline_wait([fast, fast, slow], strategy, CLUSTER).idle_s == pytest.approx(3 / 4 + 3 * 3 / 4)


def test_sends_between_machines_lengthen_a_step() -> None:
    slow, fast = (
        gpuwise.forecast("llama3-8b", on=on, mesh="pp=4", accumulate=8, micro_batch=1, recompute="full")
        for on in ("h100-sxm:1x4", "h100-sxm:4")
    )
    assert slow.step_time_s.value > fast.step_time_s.value
    assert slow.bound["communication"] > fast.bound["communication"] > 0


def rank_of(*, forward_s: float, backward_s: float, optimizer_s: float = 0.0, micro_batches: int = 8) -> RankTime:
    phase_s = {"forward": forward_s, "backward": backward_s, "recompute": 0.0, "optimizer": optimizer_s}
    trace = synthetic_trace(micro_batch=1).with_accumulation(micro_batches)
    return RankTime(RankStep("", trace, Communication()), NO_KERNELS, phase_s, NOTHING, None)
