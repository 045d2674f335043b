"""Ranks that share a CPU: what they exchange with, measured or rough, and what that does to the interval of a forecast."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwise.api.shared_cpu import AROUND_A_CALL_S, ROUGH, gloo_link, ranks_on_cpu, shared_cpu_note
from gpuwise.cost.interval import step_interval
from gpuwise.cost.network.collectives import communication_time
from gpuwise.cost.parameters import parameters
from gpuwise.hardware import Catalog
from gpuwise.hardware.types import AchievedRates, Chip
from gpuwise.measure.chip_figures import chip_figures
from gpuwise.results.measurement import MeasuredRow, Timing
from gpuwise.strategy import Mesh, Strategy
from gpuwise.trace.parallel.communication import Collective, Communication, group_along

CPU = replace(Catalog().chips["epyc-9654"], sm_count=2)
RATES = AchievedRates(
    all_reduce_devices=2,
    all_reduce_busbw_bytes_per_s=1e9,
    all_reduce_latency_s=1e-3,
    all_reduce_error=0.12,
    collective_busbw_bytes_per_s={"all_reduce": 1e9, "all_gather": 5e8, "reduce_scatter": 2.5e8, "broadcast": 4e9},
    collective_spread=(0.5, 3.0),
)
MEASURED = replace(CPU, achieved=RATES)


def test_two_ranks_exchange_as_two_processes_did():
    link = gloo_link(MEASURED, 2)
    assert (link.allreduce_busbw_bytes_per_s, link.latency_s, link.exchange_spread) == (1e9, 1e-3, (0.5, 3.0))
    assert link.collective_busbw_bytes_per_s == {**RATES.collective_busbw_bytes_per_s, "send": 4e9}
    assert "measured here between 2 (± 12 %)" in link.name
    assert "from what 2 processes reached in `gpuwise measure`" in shared_cpu_note(MEASURED, 2).text


def test_four_ranks_on_two_cores_take_turns_and_were_not_measured():
    link = gloo_link(MEASURED, 4)
    assert link.allreduce_busbw_bytes_per_s == 1e9 / 2
    assert link.collective_busbw_bytes_per_s["all_gather"] == 5e8 / 2
    assert link.latency_s == pytest.approx(1e-3 * 3 * 2)  # three turns of a ring, each twice as long
    assert link.exchange_spread == ROUGH.collective_spread
    roomy = gloo_link(replace(MEASURED, sm_count=64), 4)
    assert (roomy.allreduce_busbw_bytes_per_s, roomy.latency_s) == (1e9, pytest.approx(3e-3))


@pytest.mark.parametrize(("threads", "share"), [(0, 0.5), (2, 0.5), (1, 1.0), (8, 0.5)])
def test_a_rank_has_its_part_of_what_so_many_threads_reached(threads: int, share: float):
    chip = replace(CPU, achieved=replace(RATES, threads=threads))
    peak = ranks_on_cpu(chip, 2, memory_bytes=None).chip.peak_flops_per_s["fp32"]
    assert peak == pytest.approx(share * CPU.peak_flops_per_s["fp32"])


@pytest.mark.parametrize("chip", [CPU, replace(CPU, achieved=AchievedRates()), replace(CPU, achieved=AchievedRates({}, 3e10))])
def test_without_a_measurement_the_figures_are_rough(chip: Chip):
    link = gloo_link(chip, 2)
    assert link.allreduce_busbw_bytes_per_s == ROUGH.all_reduce_busbw_bytes_per_s
    assert link.exchange_spread == ROUGH.collective_spread
    assert "benchmarks.gloo_here" in link.source_of("allreduce_busbw_bytes_per_s").text
    assert "a rough figure of gloo" in shared_cpu_note(chip, 2).text


def test_each_collective_has_its_own_rate_and_hides_behind_nothing():
    """On a CPU the cores that compute move the bytes."""
    group = group_along(Mesh(dp_shard=2), "dp_shard")
    gather, scatter = Collective("all_gather", group, 10**8, 4, "step"), Collective("reduce_scatter", group, 10**8, 2, "step")
    cluster = ranks_on_cpu(MEASURED, 2, memory_bytes=None)
    time = communication_time(
        Communication((gather, scatter)), cluster, backward_s=10, forward_s=5, micro_batches=1, parameters=parameters()
    )
    assert time.total_s == pytest.approx(0.5e8 / 5e8 + 4e-3 + 0.5e8 / 2.5e8 + 2e-3 + 6 * AROUND_A_CALL_S)
    assert time.exposed_s == time.total_s
    assert time.spread == (0.5, 3.0)


def test_python_around_a_collective_takes_longer_where_ranks_share_cores():
    def around_s(ranks: int) -> float:
        inside, link = ranks_on_cpu(MEASURED, ranks, memory_bytes=None).inside, gloo_link(MEASURED, ranks)
        assert inside is not None
        return (inside.latency_s or 0.0) - (link.latency_s or 0.0)

    assert around_s(2) == pytest.approx(AROUND_A_CALL_S)
    assert around_s(4) == pytest.approx(2 * AROUND_A_CALL_S)


def test_the_interval_widens_by_the_spread_of_the_exchange():
    def interval(share: float, spread: tuple[float, float] | None) -> tuple[float, float]:
        of_step = step_interval(1.0, {"family": 1.0}, CPU, Strategy(), communication=share, exchange_spread=spread)
        return of_step.low, of_step.high

    low, high = interval(0.0, None)
    assert interval(0.6, None) == pytest.approx((low, high))  # of a datasheet, as its kernels
    assert interval(0.6, (0.2, 8.0)) == (pytest.approx(0.4 * low + 0.12), pytest.approx(0.4 * high + 4.8))


def test_figures_come_from_the_largest_calls_and_their_spread_from_all():
    def call(name: str, size: int, median_s: float) -> MeasuredRow:
        timing = Timing(median_s, 0.9 * median_s, 1.3 * median_s, 0.8 * median_s, 9)
        return MeasuredRow("collective", name, timing, "fp32", {"bytes": size, "processes": 2}, bytes=size)

    calls = [call("all_reduce", 4_000, 1e-3), call("all_reduce", 10**6, 5e-3), call("all_reduce", 10**8, 0.1)]
    achieved = chip_figures(CPU, [*calls, call("all_gather", 10**8, 0.2)], [], [])["achieved"]
    assert achieved["all_reduce_devices"] == 2
    assert achieved["all_reduce_busbw_bytes_per_s"] == 1e9  # 2 x 1/2 x 100 MB in 0.1 s
    assert achieved["collective_busbw_bytes_per_s"] == {"all_reduce": 1e9, "all_gather": 2.5e8}
    assert achieved["all_reduce_latency_s"] == 1e-3
    assert achieved["all_reduce_error"] == 0.2
    low, high = achieved["collective_spread"]
    assert low == pytest.approx(0.9 * 0.1 / (0.1 + 1e-3), rel=1e-3)
    assert high == pytest.approx(1.3 * 5e-3 / (1e-3 + 1e-3), rel=1e-3)  # of 1 MB
    assert "achieved" not in chip_figures(CPU, [], [], [])
