"""Intervals near saturation: waiting multiplies what passes are off by, and what is measured lies inside."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.test_serving_forward import small_job

from gpuwise.api.serving_check import serve_check
from gpuwise.api.serving_load import check_plan
from gpuwise.api.serving_run import NEAR, compared
from gpuwise.cost.forecast import Interval
from gpuwise.runtime.serving.server import LoadReplay
from gpuwise.serving.check import checked_latencies
from gpuwise.serving.group_server import GroupServer
from gpuwise.serving.instance import LoadShape
from gpuwise.serving.lengths import Lengths
from gpuwise.serving.pass_times import ForwardTimes
from gpuwise.serving.windowed import ServerCosts, WindowPolicy

LOADS = LoadShape(Lengths(1, 1))
PASS_S, SPREAD = 0.01, (0.95, 1.05)


def server(batch: int = 1, costs: ServerCosts | None = None) -> GroupServer:
    seconds = {size: PASS_S * (1 + 0.2 * (size - 1)) for size in (1, batch)}
    times = ForwardTimes({size: Interval(each, SPREAD[0] * each, SPREAD[1] * each) for size, each in seconds.items()})
    return GroupServer(times, WindowPolicy(batch), costs or ServerCosts())


def test_five_percent_slower_passes_double_the_waiting_at_ninety_percent():
    """Pollaczek and Khinchine: a mean wait of s u / (2 (1 - u)), u the rate times s."""
    count = 200_000
    load = LOADS.at(0.9 / PASS_S, count=count)
    rate = count / load.arrival_s[-1]
    factors = (1.0, *SPREAD)
    outcomes = zip(server().outcomes(load), factors, strict=True)
    waits = [float(np.mean(served.latency_s)) - factor * PASS_S for served, factor in outcomes]
    expected = []
    for factor in factors:
        busy = rate * factor * PASS_S
        expected.append(factor * PASS_S * busy / (2 * (1 - busy)))
    assert waits == pytest.approx(expected, rel=0.08)
    assert expected[2] / expected[0] == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 0.97])
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("factor", [0.951, 0.98, 1.02, 1.049])
def test_passes_inside_their_interval_keep_every_percentile_inside(share: float, batch: int, factor: float):
    # A batch that meets an idle server draws another cost than one that meets a busy one.
    ours = server(batch, None if batch == 1 else ServerCosts((0.0, 0.001), 0.0005, (0.9, 1.0, 1.15)))
    load = LOADS.at(share * ours.capacity(LOADS).value, count=1000)
    forecasts, measured = ours.outcomes(load), ours.served(load, factor=factor)
    figures = checked_latencies(forecasts, measured)["latency_s"]
    rounding = 1e-9 if batch == 1 else 0.05  # batches of other requests form, so that a faster pass may end a request later
    for figure in figures.values():
        assert figure.forecast.low * (1 - rounding) <= figure.measured <= figure.forecast.high * (1 + rounding)
    capacity = ours.capacity(LOADS)
    assert capacity.low <= ours.capacity(LOADS).value / factor <= capacity.high
    width = figures[99].forecast.high / figures[99].forecast.low
    if batch == 1:
        assert width > 1.1 if share < 0.9 else width > 1.35  # 1.1 where nobody waits


def test_a_check_near_saturation_says_so():
    plan = check_plan(small_job(), rate="1/s", requests=200, batch=1)
    most, slower = plan.server.capacity(plan.shape), plan.server.spread[1]
    notes = {}
    for share in (0.3 * NEAR / slower, 0.95, 1.5):
        rate = share * most.value
        named = check_plan(small_job(), rate=f"{rate:.6f}/s", requests=200, batch=1)
        served = named.server.served(named.load)
        result = compared(named, LoadReplay(served), None)
        notes[share] = {note.kind: note for note in result.remark_notes}
    near = [("waiting-multiplies-errors" in kinds, "above-capacity" in kinds) for kinds in notes.values()]
    assert near == [(False, False), (True, False), (False, True)]
    figures = notes[0.95]["waiting-multiplies-errors"].figures
    assert figures["share"] == pytest.approx(0.95, rel=1e-3)
    assert figures["slower"] == pytest.approx(slower)
    assert figures["longer"] > slower  # waiting multiplies
    assert figures["overloads"] == (0.95 * slower > 1)


def test_a_real_check_at_all_at_once_has_no_rate_to_be_near():
    result = serve_check(small_job(), rate="inf", requests=20)
    assert "waiting-multiplies-errors" not in {note.kind for note in result.remark_notes}
