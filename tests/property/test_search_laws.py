"""Laws of the search over strategies: it finds what trying every strategy finds, within memory, and the same each time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.quick import quick

from gpuwise.api.devices import device_of
from gpuwise.api.sources import source_of
from gpuwise.cost.forecast import Forecast
from gpuwise.errors import InputError, UnsupportedError
from gpuwise.hardware import load_catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.job import Job
from gpuwise.job.models.language import next_token_batch, token_loss
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.plan.compose.best import best_on
from gpuwise.plan.compose.blocks import JobBlocks
from gpuwise.plan.compose.search import ComposedSearch, search
from gpuwise.plan.compose.table import BlockTable
from gpuwise.plan.compose.verify import verified
from gpuwise.plan.pricing.step import HEADROOM, StepPricer
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.plan.space.layouts import ModelLimits, accumulations, fills_pipeline, layouts
from gpuwise.plan.space.neighbours import neighbours
from gpuwise.strategy import Mesh, Parallelism, Strategy, check_techniques
from gpuwise.strategy.parallelism import SHARDS
from gpuwise.strategy.pipeline import SPLIT_SCHEDULES

BATCH, MICRO_BATCHES = 16, (1, 2, 4)
DEGREES, RECOMPUTES, SWITCH = (1, 2, 4), ("none", "selective", "full"), (False, True)
TECHNIQUES = Strategy("amp-bf16", optimizer="adamw")
# One machine with fast links, one without, and two machines.
CLUSTERS = ("h100-sxm:4", "rtx-4090:4", "a100-80gb-sxm:2x2")


@cache
def traces() -> StepTraces:
    """A model of six blocks, small enough to try every strategy."""
    config = LlamaConfig(vocabulary=4096, width=512, layers=6, heads=8, kv_heads=8, hidden=1536)
    job = Job(
        model=lambda: Llama(config),
        batch=lambda n: next_token_batch(n, vocabulary=4096, seq_len=256),
        loss=token_loss,
        seq_len=256,
        sample_unit="token",
        tokens_per_sample=256,
    )
    return source_of(job).traces()


@cache
def cluster_of(name: str) -> Cluster:
    return device_of(name, load_catalog()).cluster


@cache
def table_of(name: str) -> BlockTable:
    return BlockTable(traces(), cluster_of(name).chip, TECHNIQUES, micro_batches=MICRO_BATCHES)


def searched(name: str, cluster: Cluster, *, keep: int = 4, table: BlockTable | None = None) -> ComposedSearch:
    return search(table or table_of(name), cluster, global_batch=BATCH, recomputes=RECOMPUTES, keep=keep)


def every_strategy(devices: int) -> Iterator[Strategy]:
    """All combinations of settings whose degrees and batches make so many devices and the global batch, legal or not."""
    for tp, pp, replicas, shards in product(DEGREES, repeat=4):
        mesh = Mesh(tp=tp, pp=pp, dp_replicate=replicas, dp_shard=shards)
        for stages, shard, sequence, loss in product((1, 2, 3), SHARDS, SWITCH, SWITCH):
            without_effect = (
                (pp == 1 and stages > 1) or (shards == 1 and shard != "parameters") or (tp == 1 and (sequence or loss))
            )
            if mesh.devices != devices or without_effect:
                continue
            schedule = "1f1b" if stages == 1 else "interleaved-1f1b"
            parallelism = Parallelism(shard, sequence, loss, pipeline_schedule=schedule, stages_per_rank=stages)
            for recompute, micro_batch in product(RECOMPUTES, MICRO_BATCHES):
                accumulation, rest = divmod(BATCH, micro_batch * mesh.data_parallel)
                if accumulation and not rest:
                    yield TECHNIQUES.but(
                        recompute=recompute,
                        micro_batch=micro_batch,
                        accumulation=accumulation,
                        mesh=mesh,
                        parallelism=parallelism,
                    )


@cache
def pricer() -> StepPricer:
    return StepPricer(traces())


@cache
def forecasts(name: str) -> tuple[Forecast, ...]:
    """The exact forecast of every strategy that is legal."""
    result = []
    for strategy in every_strategy(cluster_of(name).devices):
        try:
            result.append(pricer().forecast(strategy, cluster_of(name), replay=False))
        except (InputError, UnsupportedError):
            continue
    return tuple(result)


@pytest.mark.parametrize("name", quick(CLUSTERS, slow=CLUSTERS[:2]))
def test_the_search_looks_at_every_legal_strategy(name: str) -> None:
    """Left out are tensor parallelism across machines, which is far slower, and selective recompute of whole sequences."""
    cluster = cluster_of(name)
    within = [f.strategy for f in forecasts(name) if f.strategy.mesh.tp <= cluster.devices_per_machine]
    whole = [one for one in within if one.recompute != "selective" or one.mesh.tp == 1 or _divides(one.parallelism)]
    assert searched(name, cluster).points == len(whole) > 300


def _divides(parallelism: Parallelism) -> bool:
    return parallelism.sequence_parallel and parallelism.loss_parallel


@pytest.mark.parametrize("name", CLUSTERS)
def test_the_search_finds_the_best_of_all_strategies(name: str) -> None:
    needs = sorted(forecast.memory.device_bytes for forecast in forecasts(name))
    chosen = set()
    blocks = JobBlocks(traces(), TECHNIQUES, micro_batches=MICRO_BATCHES)
    for capacity in np.linspace(needs[0] * 1.02, needs[-1] * 1.05, 8) / HEADROOM:
        cluster = replace(cluster_of(name), memory_bytes=int(capacity))
        points = best_on(blocks, [cluster], global_batch=BATCH, recomputes=RECOMPUTES, keep=4)[0].points
        every = searched(name, cluster).best
        assert [point.step_s for point in points] == pytest.approx([point.step_s for point in every])
        assert all(point.device_bytes <= HEADROOM * capacity for point in points)
        best = verified(points, pricer(), cluster, replay=False).finalists[0].forecast
        assert best.memory.device_bytes <= HEADROOM * capacity
        # Composed memory may be 0.5 % off: what is that close to the limit is not compared.
        fitting = [f.step_time_s.value for f in forecasts(name) if f.memory.device_bytes <= 0.995 * HEADROOM * capacity]
        assert best.step_time_s.value <= 1.01 * min(fitting)
        chosen.add(best.strategy)
    assert len(chosen) > 1  # memory decides


@pytest.mark.slow
def test_the_search_and_its_neighbours_find_the_best_of_all_schedules() -> None:
    """Machines of one device, joined by a slow network: pipelines, whose other schedules are not composed."""
    name = "h100-sxm:1x4"
    cluster, whole = cluster_of(name), list(forecasts(name))
    for other in [
        strategy for strategy in every_strategy(4) if strategy.mesh.pp > 1 and strategy.parallelism.stages_per_rank > 1
    ]:
        for schedule in SPLIT_SCHEDULES:
            try:
                parallelism = replace(other.parallelism, pipeline_schedule=schedule)
                whole.append(pricer().forecast(other.but(parallelism=parallelism), cluster, replay=False))
            except (InputError, UnsupportedError):
                continue
    finals = verified(searched(name, cluster).best, pricer(), cluster, replay=False)
    best = min(whole, key=lambda forecast: forecast.step_time_s.value)
    assert best.strategy.parallelism.pipeline_schedule in SPLIT_SCHEDULES
    assert finals.best is not None
    assert finals.best.step_time_s.value <= 1.01 * best.step_time_s.value
    assert finals.best.step_time_s.value < finals.finalists[0].forecast.step_time_s.value
    assert finals.best.strategy.global_batch == BATCH
    assert finals.best.strategy.mesh.devices == 4


@pytest.mark.parametrize(
    "strategy",
    [
        TECHNIQUES.but(mesh=Mesh(pp=4, dp_shard=2), accumulation=8),
        TECHNIQUES.but(mesh=Mesh(tp=8, dp_shard=4), recompute="full", parallelism=Parallelism(sequence_parallel=True)),
        TECHNIQUES.but(mesh=Mesh(dp_shard=8, ep=4), accumulation=2, recompute="full"),
        TECHNIQUES.but(mesh=Mesh(pp=2, tp=2), accumulation=8, adapter="lora"),
        TECHNIQUES,
    ],
    ids=lambda strategy: str(strategy.mesh),
)
def test_neighbours_are_legal_and_have_as_many_devices_and_samples(strategy: Strategy) -> None:
    others = neighbours(strategy, experts=8)
    assert bool(others) == (strategy.mesh.devices > 1)
    assert strategy not in others
    for other in others:
        check_techniques(other)
        assert other.mesh.devices == strategy.mesh.devices
        assert other.global_batch == strategy.global_batch
    if strategy.mesh.dp_shard > 1 and strategy.mesh.pp == strategy.mesh.tp == 1:
        assert {2, 8} <= {other.mesh.ep for other in others}


@settings(deadline=None, max_examples=15)
@given(st.sampled_from(CLUSTERS), st.floats(1.0, 8.0), st.floats(1.0, 4.0))
def test_more_memory_never_makes_the_optimum_worse(name: str, tenths: float, times: float) -> None:
    least = searched(name, cluster_of(name)).least_bytes
    assert least is not None
    less, more = (
        searched(name, replace(cluster_of(name), memory_bytes=int(bytes_)))
        for bytes_ in (least * tenths, least * tenths * times)
    )
    assert less.points == more.points
    assert less.fitting <= more.fitting
    for found, share in ((less, 1.0), (more, times)):
        assert all(point.device_bytes <= HEADROOM * least * tenths * share for point in found.best)
        assert all(point.strategy.global_batch == BATCH for point in found.best)
    if less.best:
        assert more.best[0].step_s <= less.best[0].step_s


@settings(deadline=None, max_examples=12)
@given(st.sampled_from(CLUSTERS), st.floats(0.1, 10.0), st.floats(1.0, 8.0))
def test_more_bandwidth_never_makes_the_optimum_worse(name: str, share: float, times: float) -> None:
    cluster = cluster_of(name)
    slow, fast = (searched(name, _with_bandwidth(cluster, share * more), keep=1) for more in (1.0, times))
    assert fast.best[0].step_s <= slow.best[0].step_s * (1 + 1e-9)


def _with_bandwidth(cluster: Cluster, times: float) -> Cluster:
    """The cluster with faster links inside and between machines."""
    links = {}
    for place in ("inside", "between"):
        link = getattr(cluster, place)
        if link is not None and link.per_direction_bytes_per_s is not None:
            rate = times * link.per_direction_bytes_per_s
            links[place] = replace(link, id=f"{link.id}-times-{times}", per_direction_bytes_per_s=rate)
    assert links
    return replace(cluster, **links)


@pytest.mark.parametrize("name", CLUSTERS[::2])
def test_the_same_search_gives_the_same_result(name: str) -> None:
    cluster = device_of(name, load_catalog()).cluster
    anew = BlockTable(traces(), cluster.chip, TECHNIQUES, micro_batches=MICRO_BATCHES)
    first, again = searched(name, cluster), searched(name, cluster, table=anew)
    assert first == again
    assert searched(name, cluster, keep=2).best == first.best[:2]


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 96), st.integers(1, 600), st.integers(1, 40), st.sampled_from([(1,), (1, 2), (1, 2, 4, 8), (1, 3)]))
def test_every_point_makes_the_global_batch(devices: int, batch: int, blocks: int, degrees: tuple[int, ...]) -> None:
    space = layouts(devices, ModelLimits(blocks, degrees))
    sizes = (1, 2, 3, 4, 6, 8)
    for row in range(len(space)):
        mesh, parallelism = space.mesh(row), space.parallelism(row)
        assert mesh.devices == devices
        counts = accumulations(batch, data_parallel=mesh.data_parallel, micro_batches=sizes)
        legal = fills_pipeline(counts, pp=mesh.pp, stages_per_rank=parallelism.stages_per_rank)
        assert (np.array(sizes) * counts * mesh.data_parallel)[legal].tolist() == [batch] * int(legal.sum())
