"""Instances that follow the day, stop, start and are lost; energy. Against hours and dollars by hand, and simulations."""

from __future__ import annotations

import heapq
import json
import math
from itertools import pairwise

import numpy as np
import pytest
from click.testing import CliRunner
from tests.one_recording import one_recording  # noqa: F401
from tests.unit.test_api_serving import job

from gpuwise.api.serving import serve_plan
from gpuwise.cli.main import main
from gpuwise.errors import InputError
from gpuwise.hardware.catalog import load_catalog
from gpuwise.report.serving_running import spot_words
from gpuwise.serving.api_price import break_even
from gpuwise.serving.cold_start import TERMS, cold_start
from gpuwise.serving.fleets import HOURS_A_MONTH, Fleet, rate_ranges
from gpuwise.serving.idle import on_off, scaled_to_zero
from gpuwise.serving.schedule import DOWN, FleetSchedule, spare_instances
from gpuwise.serving.spot_fleet import spot_fleet

DAY = FleetSchedule(tuple([0.25] * 8 + [1.0] * 8 + [1.75] * 8), follows=True, start_s=360.0)


def test_hours_and_dollars_by_hand():
    """4/s on average of instances that take 1/s: 1 for 8 hours, 4 for 8, 7 for 8; 6 starts of a tenth of an hour."""
    fleet = Fleet("a", 2.0, 1.0, DAY)
    assert DAY.counts(4.0, 1.0).tolist() == [1] * 8 + [4] * 8 + [7] * 8
    assert fleet.replicas(4.0) == 7
    assert fleet.usd_per_hour_at(4.0) == pytest.approx(2.0 * (8 * (1 + 4 + 7) + 6 * 0.1) / 24)
    always = Fleet("a", 2.0, 1.0, FleetSchedule(DAY.multiples))
    assert always.usd_per_hour_at(4.0) == pytest.approx(2.0 * 7)
    assert always.replicas(4.0) == 7
    assert Fleet("a", 2.0, 1.0).usd_per_hour_at(4.0) == 8.0


def test_steps_of_a_day_are_where_its_price_changes():
    fleet = Fleet("a", 2.0, 1.0, DAY)
    steps = fleet.steps(5.0)
    rates = np.linspace(0.001, 5.0, 20_001)
    usd = fleet.usd_at_each(rates)
    jumps = rates[1:][np.diff(usd) != 0]
    assert np.all(np.abs(steps[None, :] - jumps[:, None]).min(axis=1) < 3e-4)
    assert np.all(np.diff(usd) >= 0)


def test_a_fleet_that_follows_the_day_may_be_the_cheapest():
    small, large = Fleet("small", 1.0, 1.0, DAY), Fleet("large", 3.0, 4.0, DAY)
    ranges = rate_ranges([small, large], up_to=20.0)
    by_name = {"small": small, "large": large}
    for each in ranges:
        for rate in np.linspace(each.above_per_s, each.up_to_per_s, 7)[1:]:
            least = min(fleet.usd_per_hour_at(rate) for fleet in by_name.values())
            assert by_name[each.device].usd_per_hour_at(rate) == pytest.approx(least)


@pytest.mark.parametrize("usd_per_request", [1e-5, 3e-4, 6e-4, 1e-3, 1e-2])
def test_break_even_over_a_day(usd_per_request: float):
    fleet = Fleet("a", 2.0, 1.0, DAY)
    even = break_even(fleet, usd_per_request)
    rates = np.linspace(0.01, 90, 9000)
    cheaper = fleet.usd_at_each(rates) < usd_per_request * rates * 3600
    if even is None:
        assert not cheaper.any()
        return
    assert not cheaper[rates < even.from_per_s * (1 - 1e-9)].any()
    assert cheaper[np.searchsorted(rates, even.from_per_s, side="right")]
    assert cheaper[rates > even.always_from_per_s * (1 + 1e-9)].all()


def test_a_cold_start_is_five_terms():
    start = cold_start(21.8 * 2**30)
    assert start.weights.value == pytest.approx(18, rel=0.15)  # the run of 277 s whose weights took 18
    total = start.total_s
    assert total.value == pytest.approx(sum(getattr(start, name).value for name in TERMS))
    assert total.low < 60 < total.value < 277 < total.high
    for name in TERMS:
        term = getattr(start, name)
        assert term.low <= term.value <= term.high
    assert set(start.to_dict()["sources"]) == set(TERMS)
    assert cold_start(3.42 * 2**30).total_s.low == pytest.approx(34, rel=0.15)  # with everything cached
    assert cold_start(0.0).weights.value == 0


def simulated_on_off(rate: float, busy_s: float, idle_s: float, start_s: float) -> tuple[float, float, float]:
    """Share of the time that is paid, of requests that meet a cold start, and their mean wait, request by request."""
    rng = np.random.default_rng(7)
    on_since, ready_s, off_s = 0.0, 0.0, 0.0
    paid, waits, now, count = 0.0, [], 0.0, 300_000
    for gap in rng.exponential(1 / rate, count):
        now += gap
        if now > off_s:  # it has stopped
            paid += off_s - on_since
            on_since, ready_s = now, now + start_s
        wait = max(0.0, ready_s - now)
        if wait:
            waits.append(wait)
        off_s = max(off_s, now + wait + busy_s + idle_s)
    return (paid + now - on_since) / now, len(waits) / count, float(np.mean(waits))


@pytest.mark.parametrize(
    ("rate", "busy_s", "idle_s", "start_s"),
    [(0.01, 5, 60, 90), (0.002, 20, 300, 200), (0.05, 2, 30, 40), (0.02, 1, 0.001, 100)],
)
def test_scale_to_zero_against_a_simulation(rate: float, busy_s: float, idle_s: float, start_s: float):
    paid, cold, wait_s = simulated_on_off(rate, busy_s, idle_s, start_s)
    result = on_off(rate, busy_s=busy_s, idle_s=idle_s, start_s=start_s)
    assert result.paid == pytest.approx(paid, rel=0.02)
    assert result.cold == pytest.approx(cold, rel=0.02)
    assert result.wait_s == pytest.approx(wait_s, rel=0.02)
    assert result.starts_per_s < rate


def test_scale_to_zero_at_the_ends():
    busy = on_off(10.0, busy_s=1, idle_s=300, start_s=100)
    assert (busy.paid, busy.cold) == (1.0, 0.0)
    rare = on_off(1e-7, busy_s=1, idle_s=300, start_s=100)
    assert rare.cold == pytest.approx(1, abs=1e-3)
    assert rare.wait_s == pytest.approx(100, rel=1e-3)
    assert rare.paid == pytest.approx(1e-7 * 401, rel=1e-3)
    assert on_off(0.0, busy_s=1, idle_s=1, start_s=1).paid == 0
    fleet = scaled_to_zero(
        [(1e-7, 1)] * 12 + [(8.0, 3)] * 12,
        busy_s=1,
        idle_s=300,
        start_s=100,
        usd_per_hour=2.0,
        always_on_usd_per_hour=4.0,
    )
    assert fleet.usd_per_month == pytest.approx(3 / 2 * 2.0 * HOURS_A_MONTH, rel=1e-4)  # three for half of the day
    assert fleet.always_on_usd_per_month == pytest.approx(4 * HOURS_A_MONTH)
    assert fleet.break_even_idle_s == 100


@pytest.mark.parametrize("mean", [1e-4, 0.05, 0.5, 3.0, 40.0, 99.0])
def test_spare_instances_cover_all_but_a_thousandth_of_the_time(mean: float):
    spare = spare_instances(mean)
    terms = [math.exp(-mean + k * math.log(mean) - math.lgamma(k + 1)) for k in range(spare + 1)]
    assert spare >= 1
    assert 1 - sum(terms) <= DOWN * (1 + 1e-9)
    assert spare == 1 or 1 - sum(terms[:-1]) > DOWN
    assert spare_instances(101.0) == pytest.approx(spare_instances(99.0), abs=4)


def test_the_number_that_is_gone_is_what_a_simulation_has():
    """200 instances, each lost twice a day and back after 5 minutes."""
    rng, count, per_day, start_s, days = np.random.default_rng(3), 200, 2.0, 300.0, 400
    schedule = FleetSchedule(gone=per_day * start_s / 86_400)
    spare = schedule.spare(count)
    losses = np.sort(rng.uniform(0, days * 86_400, rng.poisson(count * per_day * days)))
    back: list[float] = []
    gone_s = 0.0
    for time, following in pairwise(losses):
        heapq.heappush(back, time + start_s)
        at = time
        while back and back[0] <= following:
            gone_s += (back[0] - at) * (len(back) > spare)
            at = heapq.heappop(back)
        gone_s += (following - at) * (len(back) > spare)
    assert gone_s / (days * 86_400) <= DOWN * 1.3
    assert schedule.counts(count * 1.0, 1.0)[0] == count + spare


def test_requests_on_lost_instances():
    fleet = spot_fleet(
        usd_per_hour=1.0,
        on_demand_usd_per_hour=3.0,
        interruptions_per_day=2.0,
        start_s=200.0,
        spare=1,
        paid=11.0,
        rate_per_s=20.0,
        latency_s=6.0,
    )
    assert fleet.lost_per_month == pytest.approx(11 * 2 * HOURS_A_MONTH / 24)
    # Each of 11 instances has 20 / 11 requests a second for 6 s each at once (Little's law).
    assert fleet.retried_per_month == pytest.approx(fleet.lost_per_month * 20 / 11 * 6)


def test_a_plan_over_a_day():
    flat = serve_plan(job(), on="rtx-4090", rate="1000/s", slo="ttft=500ms").rows[0]
    busy = serve_plan(job(), on="rtx-4090", rate="1000/s", slo="ttft=500ms", day="0:1,12:3").rows[0]
    scaled = serve_plan(job(), on="rtx-4090", rate="1000/s", slo="ttft=500ms", day="0:1,12:3", autoscale=True)
    row = scaled.rows[0]
    assert flat.saturation_rate == busy.saturation_rate == row.saturation_rate
    peak, night = (math.ceil(1000 * multiple / row.takes) for multiple in (1.5, 0.5))
    assert busy.replicas == row.replicas == peak
    assert row.running.instances == (night,) * 12 + (peak,) * 12
    assert busy.usd_per_hour == pytest.approx(flat.usd_per_instance_hour * peak)
    start_h = row.running.cold_start.total_s.value / 3600
    mean = (night + peak) / 2 + (peak - night) * start_h / 24
    assert row.usd_per_hour == pytest.approx(flat.usd_per_instance_hour * mean)
    assert row.usd_per_request == pytest.approx(row.usd_per_hour / 3600 / 1000)
    assert row.running.hours_paid_per_day == pytest.approx(24 * mean)
    assert row.latency == busy.latency
    data = scaled.to_dict()
    assert data["arrivals"]["day"]["multiples"][0] == 0.5
    assert data["rows"][0]["running"]["cold_start"]["total_s"]["value"] == pytest.approx(3600 * start_h)
    json.dumps(data, allow_nan=False)


@pytest.mark.parametrize(("on_demand", "cheaper"), [(0.6, True), (0.74, True), (0.9, False), (None, False)])
def test_spot_machines_that_cost_more_than_others_say_so(on_demand: float | None, cheaper: bool):
    fleet = spot_fleet(
        usd_per_hour=0.74,
        on_demand_usd_per_hour=on_demand,
        interruptions_per_day=1.0,
        start_s=60.0,
        spare=1,
        paid=2.0,
        rate_per_s=1.0,
        latency_s=1.0,
    )
    assert ("leave out --spot" in spot_words(fleet)) == cheaper


@pytest.mark.parametrize("usd_per_request", [1e-5, 1e-4, 1e-3, 0.1])
@pytest.mark.parametrize("start_s", [20.0, 300.0])
def test_break_even_of_an_instance_that_stops(usd_per_request: float, start_s: float):
    sizes = {"busy_s": 2.0, "idle_s": 60.0, "start_s": start_s}
    idle = scaled_to_zero([(0.01, 1)], **sizes, usd_per_hour=0.7, always_on_usd_per_hour=0.7)
    fleet = Fleet("l4", takes=20.0, usd_per_hour=0.7)
    even, always_on = break_even(fleet, usd_per_request, idle=idle), break_even(fleet, usd_per_request)
    assert (even is None) == (always_on is None)
    rates = np.geomspace(1e-6, 20.0, 200)
    paid = np.array([on_off(float(rate), **sizes).paid for rate in rates])
    cheaper = 0.7 * paid <= 3600 * usd_per_request * rates
    assert cheaper.tolist() == [even is not None and rate >= even.from_per_s for rate in rates]
    if even is not None and always_on is not None:
        assert even.from_per_s <= always_on.from_per_s


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--scale-to-zero", "--idle", "5min", "--api-price", "1000,1000"), "cheaper at any rate"),
        (("--api-price", "1000,1000"), "cheaper from"),
        (("--scale-to-zero", "--idle", "5min", "--api-price", "0.001,0.001"), "cheaper at no rate"),
    ],
)
def test_words_of_a_break_even(flags: tuple[str, ...], words: str):
    shown = CliRunner().invoke(main, ["serve-plan", "gpt2", "--on", "l4", "--rate", "20/day", *flags])
    assert shown.exit_code == 0
    assert words in shown.stdout


def test_stopping_when_idle_and_spot_machines():
    settings = {"on": "l4", "rate": "20/day", "scale_to_zero": True, "idle": "5min", "spot": True}
    result = serve_plan(job(), **settings)
    row = result.rows[0]
    idle, spot = row.running.idle, row.running.spot
    assert idle.idle_s == 300
    assert 0.9 < idle.cold_share < 1
    assert idle.usd_per_month < 0.2 * idle.always_on_usd_per_month
    assert idle.always_on_usd_per_month == pytest.approx(row.usd_per_month)
    assert (row.replicas, spot.spare) == (2, 1)
    spots = [o.usd_per_hour for o in load_catalog().offers if (o.chip_id, o.count, o.terms) == ("l4", 1, "spot")]
    assert row.usd_per_instance_hour == spot.usd_per_hour
    assert spot.usd_per_hour in spots
    for part in ("stopped when idle", "spot machines", "cold start of l4", "CUDA graphs", "energy of the devices"):
        assert part in str(result)
    json.dumps(result.to_dict(), allow_nan=False)


def test_bad_input():
    with pytest.raises(InputError, match="--idle"):
        serve_plan(job(), on="l4", rate="1/s", idle="5min")
    with pytest.raises(InputError, match="--autoscale"):
        serve_plan(job(), on="l4", rate="1/s", autoscale=True)
    run = CliRunner().invoke(main, ["serve-plan", "gpt2", "--on", "l4"])
    assert run.exit_code == 2
    assert "--rate 5/s" in run.output
