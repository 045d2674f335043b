"""The search over parts of sequences and of experts: it finds what trying every strategy finds, on 2, 4 and 8 devices."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from math import prod

import numpy as np
import pytest
from tests.quick import quick

from gpuwise.api.devices import device_of
from gpuwise.api.sources import source_of
from gpuwise.cost.forecast import Forecast
from gpuwise.errors import InputError, UnsupportedError
from gpuwise.hardware import load_catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.plan.compose.best import best_on
from gpuwise.plan.compose.blocks import JobBlocks
from gpuwise.plan.pricing.step import HEADROOM, StepPricer
from gpuwise.plan.space.layouts import Layouts, ModelLimits, layouts
from gpuwise.strategy import Mesh, Parallelism, Strategy
from gpuwise.strategy.parallelism import SHARDS

MICRO_BATCHES, RECOMPUTES, PARTS = (1, 4), ("none", "full"), (1, 2, 4, 8)
TECHNIQUES = Strategy("amp-bf16", optimizer="adamw")


@cache
def pricer() -> StepPricer:
    return StepPricer(source_of("gpt2", seq_len=1024).traces())


def with_parts(devices: int, limits: ModelLimits) -> Layouts:
    return layouts(devices, replace(limits, context_degrees=PARTS), most_stages=2)


@cache
def forecasts(name: str, batch: int) -> tuple[Forecast, ...]:
    """The exact forecast of every strategy that is legal, with replicas or shards of parameters alone."""
    cluster, result = cluster_of(name), []
    degrees = [d for d in product((1, 2, 4, 8), repeat=5) if prod(d) == cluster.devices]
    for (tp, pp, replicas, shards, cp), micro_batch, recompute in product(degrees, MICRO_BATCHES, RECOMPUTES):
        mesh = Mesh(tp=tp, pp=pp, dp_replicate=replicas, dp_shard=shards, cp=cp)
        accumulation, rest = divmod(batch, micro_batch * mesh.data_parallel)
        if rest or not accumulation:
            continue
        split = product(*[(False, True) if tp > 1 else (False,)] * 2)
        for (sequence, loss), stages in product(split, (1, 2) if pp > 1 else (1,)):
            for shard in SHARDS if shards * cp > 1 else SHARDS[:1]:
                schedule = "1f1b" if stages == 1 else "interleaved-1f1b"
                parallelism = Parallelism(shard, sequence, loss, pipeline_schedule=schedule, stages_per_rank=stages)
                strategy = TECHNIQUES.but(
                    mesh=mesh,
                    parallelism=parallelism,
                    micro_batch=micro_batch,
                    accumulation=accumulation,
                    recompute=recompute,
                )
                try:
                    result.append(pricer().forecast(strategy, cluster, replay=False))
                except (InputError, UnsupportedError):
                    continue
    return tuple(result)


@cache
def cluster_of(name: str) -> Cluster:
    return device_of(name, load_catalog()).cluster


@pytest.mark.parametrize(
    ("name", "batch"),
    quick(
        [("h100-sxm:2", 4), ("h100-sxm:2x2", 8), ("rtx-4090:8", 1), ("rtx-4090:8", 4)],
        slow=[("h100-sxm:2x2", 8), ("rtx-4090:8", 4)],
    ),
)
def test_the_search_finds_the_best_of_all_strategies_with_parts_of_sequences(name: str, batch: int) -> None:
    cluster, blocks = cluster_of(name), JobBlocks(pricer().traces, TECHNIQUES, micro_batches=MICRO_BATCHES)
    whole = [f for f in forecasts(name, batch) if f.strategy.mesh.tp <= cluster.devices_per_machine]
    needs, chosen = sorted(forecast.memory.device_bytes for forecast in whole), set()
    for capacity in np.linspace(needs[0] * 1.02, needs[-1] * 1.05, 8) / HEADROOM:
        smaller = replace(cluster, memory_bytes=int(capacity))
        best = best_on(blocks, [smaller], global_batch=batch, recomputes=RECOMPUTES, keep=4, layouts_of=with_parts)[0]
        assert best.considered == len(whole)
        fitting = [f.step_time_s.value for f in whole if f.memory.device_bytes <= 0.98 * HEADROOM * capacity]
        exact = [pricer().forecast(point.strategy, smaller, replay=False) for point in best.points]
        assert all(abs(f.step_time_s.value / p.step_s - 1) < 0.01 for f, p in zip(exact, best.points, strict=True))
        fit = [f for f in exact if f.memory.device_bytes <= HEADROOM * capacity]
        if fitting:
            first = min(fit, key=lambda forecast: forecast.step_time_s.value)
            assert first.step_time_s.value <= 1.01 * min(fitting)
            chosen.add(first.strategy)
    assert len(chosen) > 1  # memory decides
    assert batch > 1 or any(strategy.mesh.cp > 1 for strategy in chosen)


@pytest.mark.parametrize(("name", "batch"), [("h100-sxm:2", 4), ("h100-sxm:1x2", 1)])
def test_a_job_that_fits_in_no_other_way_has_parts_of_sequences(name: str, batch: int) -> None:
    """Of short sequences, which are not divided where something else fits; and of fewer samples than machines."""
    inside = [f for f in forecasts(name, batch) if f.strategy.mesh.tp <= cluster_of(name).devices_per_machine]
    parts, whole = ([f for f in inside if (f.strategy.mesh.cp > 1) == divided] for divided in (True, False))
    needs = [min((f.memory.device_bytes for f in some), default=2**40) for some in (parts, whole)]
    assert needs[0] < 0.97 * needs[1]
    blocks = JobBlocks(pricer().traces, TECHNIQUES, micro_batches=MICRO_BATCHES)
    cluster = replace(cluster_of(name), memory_bytes=int(1.01 * needs[0] / HEADROOM))
    best = best_on(blocks, [cluster], global_batch=batch, recomputes=RECOMPUTES)[0]
    assert best.points[0].strategy.mesh.cp == 2


@pytest.mark.slow
@pytest.mark.parametrize("on", ["h100-sxm:8x4", "h200-sxm:8x2"])
def test_the_search_divides_experts_as_exact_forecasts_do(on: str) -> None:
    """Every strategy with parts of experts, against the best one that is composed."""
    pricer, cluster = StepPricer(source_of("mixtral-8x7b").traces()), cluster_of(on)
    blocks = JobBlocks(pricer.traces, TECHNIQUES, micro_batches=(1, 4))
    best = best_on(blocks, [cluster], global_batch=128, keep=64)[0]
    split = [point for point in best.points if point.strategy.mesh.ep > 1]
    assert split[0] == best.points[0]
    for point in split[::4]:
        exact = pricer.forecast(point.strategy, cluster, replay=False)
        assert point.step_s == pytest.approx(exact.step_time_s.value, rel=0.005)
        assert point.device_bytes == pytest.approx(exact.memory.device_bytes, rel=0.02)
    fastest = np.inf
    assert cluster.capacity_bytes is not None
    for ep, shards, shard, recompute, micro_batch in product((2, 4, 8), (8, 16, 32), SHARDS, RECOMPUTES, (1, 4)):
        mesh = Mesh(dp_replicate=max(1, cluster.devices // shards), dp_shard=shards, ep=ep)
        accumulation, rest = divmod(128, micro_batch * mesh.data_parallel)
        if mesh.devices == cluster.devices and accumulation and not rest:
            settings = {"micro_batch": micro_batch, "accumulation": accumulation, "recompute": recompute}
            strategy = TECHNIQUES.but(mesh=mesh, parallelism=Parallelism(shard), **settings)
            exact = pricer.forecast(strategy, cluster, replay=False)
            if exact.memory.device_bytes <= 0.98 * HEADROOM * cluster.capacity_bytes:
                fastest = min(fastest, exact.step_time_s.value)
    assert best.points[0].step_s <= 1.01 * fastest
