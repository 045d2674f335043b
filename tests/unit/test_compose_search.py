"""The search over composed strategies: its optimum, its laws, and its finalists."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from gpuwise.api.devices import device_of
from gpuwise.api.sources import source_of
from gpuwise.errors import InputError, UnsupportedError
from gpuwise.hardware import load_catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.plan.compose.best import best_on
from gpuwise.plan.compose.blocks import JobBlocks
from gpuwise.plan.compose.job_arrays import limits_of
from gpuwise.plan.compose.point import ComposedPoint
from gpuwise.plan.compose.search import ComposedSearch, search
from gpuwise.plan.compose.table import BlockTable
from gpuwise.plan.compose.variant import BlockVariant
from gpuwise.plan.compose.verify import verified
from gpuwise.plan.pricing.step import HEADROOM, StepPricer, has_headroom
from gpuwise.plan.space.layouts import layouts
from gpuwise.strategy import Mesh, Parallelism, Strategy

BATCH = 32
CLUSTER = device_of("h100-sxm:8x2", load_catalog()).cluster
TRACES = source_of("llama2-7b").traces()
# Long sequences: of one sample on four devices.
LONG = Strategy(
    mesh=Mesh(tp=4, dp_shard=4),
    accumulation=4,
    recompute="full",
    parallelism=Parallelism("optimizer", sequence_parallel=True, loss_parallel=True),
)


def searched(cluster: Cluster = CLUSTER, *, keep: int = 6, most_stages: int = 2) -> ComposedSearch:
    table = BlockTable(TRACES, cluster.chip, Strategy("amp-bf16", optimizer="adamw"), micro_batches=(1, 2, 4))
    space = layouts(cluster.devices, limits_of(table.job, 4), most_stages=most_stages)
    return search(table, cluster, global_batch=BATCH, keep=keep, chosen=space)


@pytest.fixture(scope="module")
def result() -> ComposedSearch:
    return searched()


def test_the_best_fit_and_make_the_global_batch(result: ComposedSearch) -> None:
    assert 0 < result.fitting < result.points
    assert CLUSTER.capacity_bytes is not None
    for point in result.best:
        assert point.strategy.global_batch == BATCH
        assert point.strategy.mesh.devices == CLUSTER.devices
        assert point.device_bytes <= HEADROOM * CLUSTER.capacity_bytes
    seconds = [point.step_s for point in result.best]
    assert seconds == sorted(seconds)


@pytest.mark.parametrize("name", ["h100-sxm:8x4", "h200-141gb-sxm:1x2", "a100-80gb-sxm:8x2"])
def test_selective_recompute_is_composed_on_several_machines_where_it_is_faster(name: str) -> None:
    cluster, traces = device_of(name, load_catalog()).cluster, source_of("llama3-8b").traces()
    blocks = JobBlocks(traces, Strategy("amp-bf16", optimizer="adamw"), micro_batches=(1, 2, 4))
    without, best = (
        best_on(blocks, [cluster], global_batch=512, recomputes=recomputes)[0].points[0]
        for recomputes in (("none", "full"), ("none", "selective", "full"))
    )
    assert best.strategy.recompute == "selective"
    assert best.step_s < 0.96 * without.step_s
    exact = StepPricer(traces).forecast(best.strategy, cluster, replay=False)
    assert best.step_s == pytest.approx(exact.step_time_s.value, rel=0.01)
    assert best.device_bytes == pytest.approx(exact.memory.device_bytes, rel=0.005)


def test_few_are_the_first_of_many(result: ComposedSearch) -> None:
    assert searched(keep=2).best == result.best[:2]


@pytest.mark.slow
def test_more_memory_never_makes_the_optimum_worse(result: ComposedSearch) -> None:
    assert CLUSTER.capacity_bytes is not None
    optimum = np.inf
    fitting = -1
    for share in (0.3, 0.5, 1.0, 2.0):
        other = searched(replace(CLUSTER, memory_bytes=int(share * CLUSTER.capacity_bytes)), keep=1)
        assert other.points == result.points
        assert other.fitting >= fitting
        step_s = other.best[0].step_s if other.best else np.inf
        assert step_s <= optimum
        optimum, fitting = step_s, other.fitting


@pytest.mark.slow
def test_more_bandwidth_never_makes_the_optimum_worse(result: ComposedSearch) -> None:
    between = CLUSTER.between
    assert between is not None
    rate = between.per_direction_bytes_per_s
    assert rate
    faster, slower = (
        searched(
            replace(CLUSTER, between=replace(between, id=f"times-{times}", per_direction_bytes_per_s=times * rate)), keep=1
        )
        for times in (4, 0.25)
    )
    assert faster.best[0].step_s <= result.best[0].step_s <= slower.best[0].step_s


def test_nothing_fits_a_small_device() -> None:
    other = searched(replace(CLUSTER, memory_bytes=2**30))
    assert other.best == ()
    assert other.fitting == 0
    assert other.least_bytes is not None
    assert other.least_bytes > 2**30


def test_finalists_are_forecast_as_they_would_run(result: ComposedSearch) -> None:
    finals = verified(result.best, StepPricer(TRACES), CLUSTER, replay=False)
    assert len(finals.finalists) + len(finals.dropped) == len(result.best)
    for finalist in finals.finalists:
        assert finalist.forecast.strategy == finalist.point.strategy
        assert abs(finalist.time_change) < 0.01
        assert abs(finalist.memory_change) < 0.005
    assert finals.finalists[0].forecast.step_time_s.value == min(f.forecast.step_time_s.value for f in finals.finalists)


def test_one_call_finds_the_best_of_every_cluster() -> None:
    catalog = load_catalog()
    clusters = [device_of(name, catalog).cluster for name in ("h100-sxm:8", "a100-80gb-sxm:8x2", "rtx-4090:2")]
    techniques = Strategy("amp-bf16", optimizer="adamw")
    blocks = JobBlocks(TRACES, techniques, micro_batches=(1, 2))
    few = partial(layouts, most_stages=2)
    for cluster, best in zip(clusters, best_on(blocks, clusters, global_batch=BATCH, keep=4, layouts_of=few), strict=True):
        table = BlockTable(TRACES, cluster.chip, techniques, micro_batches=(1, 2))
        chosen = few(cluster.devices, limits_of(table.job, cluster.devices_per_machine))
        alone = search(table, cluster, global_batch=BATCH, keep=4, chosen=chosen)
        assert best.considered == alone.points
        assert [point.step_s for point in best.points] == pytest.approx([point.step_s for point in alone.best])
        assert [point.device_bytes for point in best.points] == [point.device_bytes for point in alone.best]
        assert (best.least_bytes is None) == bool(alone.best)


def test_a_chip_without_bf16_is_searched_in_fp16() -> None:
    cluster = device_of("v100-sxm2-32gb:8x8", load_catalog()).cluster
    other = JobBlocks(TRACES, Strategy("amp-bf16", optimizer="adamw"), micro_batches=(1, 2))
    alone, shared = (
        best_on(
            JobBlocks(TRACES, Strategy("amp-fp16", optimizer="adamw"), micro_batches=(1, 2), like=like),
            [cluster],
            global_batch=64,
            layouts_of=partial(layouts, most_stages=1),
        )
        for like in (None, other)
    )
    point = alone[0].points[0]
    forecast = StepPricer(TRACES).forecast(point.strategy, cluster, replay=False)
    assert point.step_s == pytest.approx(forecast.step_time_s.value, rel=0.002)
    assert point.device_bytes == pytest.approx(forecast.memory.device_bytes, rel=0.005)
    assert shared == alone  # with what both half precisions have in common composed once


@pytest.mark.parametrize("model", ["llama3-8b", "gpt2-xl", "mixtral-8x7b"])
def test_degrees_of_tensor_parallelism_are_those_that_compose(model: str) -> None:
    blocks = JobBlocks(source_of(model).traces(), Strategy("amp-bf16", optimizer="adamw"), micro_batches=(1, 2))
    composed = [1]
    for tp in range(2, 13):
        with suppress(InputError, UnsupportedError):
            blocks.rows(BlockVariant(), tp=tp, sharded=False)
            composed.append(tp)
    assert limits_of(blocks, 12).tensor_degrees == tuple(composed)


@pytest.mark.parametrize(
    ("model", "seq_len", "on", "strategy", "axis"),
    [
        ("mixtral-8x7b", 4096, "h100-sxm:8x4", Strategy(mesh=Mesh(dp_shard=32), micro_batch=4, recompute="full"), "ep"),
        ("llama3-8b", 65536, "h100-sxm:8x2", LONG, "cp"),
    ],
)
def test_a_finalist_leads_on_to_axes_that_are_not_composed(
    model: str, seq_len: int, on: str, strategy: Strategy, axis: str
) -> None:
    cluster, first = device_of(on, load_catalog()).cluster, strategy.but(precision="amp-bf16", optimizer="adamw")
    pricer = StepPricer(source_of(model, seq_len=seq_len).traces())
    finals = verified([ComposedPoint(first, 1.0, 1.0)], pricer, cluster, replay=False)
    assert finals.faster is not None
    assert finals.best is finals.faster
    assert finals.faster.step_time_s.value < finals.finalists[0].forecast.step_time_s.value
    assert getattr(finals.faster.strategy.mesh, axis) > 1
    assert has_headroom(finals.faster.memory)
    assert finals.faster.strategy.global_batch == first.global_batch
