"""What the search leaves out, because what it tries takes no longer in no more memory: held to exact forecasts."""

from __future__ import annotations

import math
from functools import cache

import pytest

from gpuwise.api.devices import device_of
from gpuwise.api.sources import source_of
from gpuwise.cost.forecast import Forecast
from gpuwise.hardware import load_catalog
from gpuwise.plan.compose.verify import faster_neighbour
from gpuwise.plan.pricing.step import StepPricer
from gpuwise.plan.space.neighbours import neighbours
from gpuwise.strategy import OPTIMIZERS, Mesh, Parallelism, Strategy, kernels_for

TECHNIQUES = Strategy("amp-bf16", optimizer="adamw")
PLACES = pytest.mark.parametrize("on", ["h100-sxm:4", "rtx-4090:4", "h100-sxm:1x4"])


@cache
def pricer(job: str, seq_len: int | None = None) -> StepPricer:
    return StepPricer(source_of(job, seq_len=seq_len).traces())


def forecast(job: str, strategy: Strategy, on: str, *, seq_len: int | None = None) -> Forecast:
    return pricer(job, seq_len).forecast(strategy, device_of(on, load_catalog()).cluster, replay=False)


def check(better: Forecast, worse: Forecast, *, time: float = 1.0, memory: float = 1.0) -> None:
    """time, memory: those of the better one over those of the worse one, at most."""
    assert better.step_time_s.value <= time * worse.step_time_s.value * (1 + 1e-9)
    assert better.memory.device_bytes <= memory * worse.memory.device_bytes


@PLACES
@pytest.mark.parametrize("mesh", [Mesh(pp=4), Mesh(pp=2, dp_replicate=2), Mesh(pp=2, dp_shard=2)], ids=str)
def test_1f1b_takes_as_long_as_all_forwards_first_in_less_memory(on: str, mesh: Mesh) -> None:
    for recompute, accumulation in (("none", 4), ("none", 16), ("full", 8)):
        strategy = TECHNIQUES.but(recompute=recompute, micro_batch=4, accumulation=accumulation, mesh=mesh)
        plain, gpipe, interleaved, looped = (
            forecast("gpt2", strategy.but(parallelism=Parallelism(pipeline_schedule=name, stages_per_rank=stages)), on)
            for name, stages in (("1f1b", 1), ("gpipe", 1), ("interleaved-1f1b", 2), ("looped-bfs", 2))
        )
        check(plain, gpipe, memory=0.7)
        # Where sends cross machines, all forwards first may hide more of them: the search forecasts both.
        assert looped.strategy in neighbours(interleaved.strategy)
        cluster = device_of(on, load_catalog()).cluster
        reached = faster_neighbour(interleaved, pricer("gpt2"), cluster, replay=False) or interleaved
        assert reached.step_time_s.value <= looped.step_time_s.value * (1 + 1e-9)
        check(interleaved, looped, time=1.007 if cluster.machines == 1 else math.inf, memory=0.9)


@pytest.mark.parametrize(
    ("on", "mesh"),
    [
        ("h100-sxm:8", Mesh(cp=8)),
        ("rtx-4090:4", Mesh(cp=4)),
        ("h100-sxm:8x2", Mesh(cp=16)),
        ("h100-sxm:8x2", Mesh(cp=2, dp_shard=8)),
    ],
    ids=str,
)
def test_gathered_keys_take_as_long_as_passed_ones(on: str, mesh: Mesh) -> None:
    """In as much memory where all is computed again; where nothing is, a ring has each rank's own keys alone."""
    for recompute, memory in (("full", 1.001), ("none", 1.2)):
        gather, ring, to_all = (
            forecast(
                "llama3-8b",
                TECHNIQUES.but(recompute=recompute, mesh=mesh, parallelism=Parallelism(context=context)),
                on,
                seq_len=32768,
            )
            for context in ("gather", "ring", "all-to-all")
        )
        check(gather, ring, time=1.003, memory=memory)
        check(gather, to_all, memory=memory)


@pytest.mark.parametrize("on", ["h100-sxm:1", "rtx-4090:1"])
@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if len(kernels_for(name)) > 1])
def test_the_usual_kernels_of_an_optimizer_take_no_longer_in_no_more_memory(optimizer: str, on: str) -> None:
    """But for SGD, whose update is little of a step, and Adafactor, whose usual kernels take less memory: PyTorch's
    documentation calls them the slower ones."""
    usual, *others = kernels_for(optimizer)
    strategy = TECHNIQUES.but(optimizer=optimizer, micro_batch=4)
    first = forecast("gpt2", strategy.but(optimizer_kernels=usual), on)
    for kernels in others:
        other = forecast("gpt2", strategy.but(optimizer_kernels=kernels), on)
        check(first, other, time=1.05 if optimizer in ("sgd", "momentum", "adafactor") else 1.0)
