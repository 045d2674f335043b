"""Time and money under each kind of terms, against numbers worked out by hand."""

from __future__ import annotations

import math
import random

import pytest

from gpuwise.cost.forecast import Interval
from gpuwise.hardware import Offer
from gpuwise.plan.economics import spot
from gpuwise.plan.economics.bill import at_price, bill, outcome
from gpuwise.plan.economics.rented import of_several, rental
from gpuwise.plan.economics.spot import daly_interval_s
from gpuwise.plan.economics.terms import HOUR_S, Terms


def test_on_demand_is_the_time_and_the_setup_at_the_price():
    result = bill(10 * HOUR_S, Terms("on-demand", 3.0, setup_s=HOUR_S))
    assert result.machine_s == result.calendar_s == 11 * HOUR_S
    assert result.usd == pytest.approx(33.0)


def test_a_short_run_pays_the_minimum_and_hourly_billing_rounds_up():
    assert bill(1.0, Terms("on-demand", 3.6, setup_s=0.0, minimum_s=60.0)).usd == pytest.approx(0.06)
    hourly = Terms("on-demand", 2.0, setup_s=0.0, minimum_s=HOUR_S, billing_step_s=HOUR_S)
    assert bill(1.5 * HOUR_S, hourly).usd == pytest.approx(4.0)


def test_a_reservation_is_paid_to_its_end():
    result = bill(24 * HOUR_S, Terms("reserved-1y", 1.0, setup_s=0.0))
    assert result.calendar_s == 24 * HOUR_S
    assert result.usd == pytest.approx(365 * 24)
    assert bill(24 * HOUR_S, Terms("reserved-3y", 1.0, setup_s=0.0)).usd == pytest.approx(3 * 365 * 24)


def test_dalys_interval_is_near_youngs_and_never_beyond_the_mean_time_between_interruptions():
    assert daly_interval_s(60.0, 24 * HOUR_S) == pytest.approx(math.sqrt(2 * 60 * 24 * HOUR_S) - 60, rel=0.01)
    assert daly_interval_s(50 * HOUR_S, 24 * HOUR_S) == 24 * HOUR_S


def test_interruptions_cost_time_and_the_chosen_interval_is_about_the_best():
    terms = Terms("spot", 1.0, setup_s=0.0, interruptions_per_day=1.0, save_s=120.0, restart_s=600.0)
    work_s = 100 * HOUR_S
    chosen = bill(work_s, terms)
    assert work_s < chosen.machine_s < 1.2 * work_s
    others = [bill(work_s, terms, interval_s=factor * chosen.checkpoint_interval_s) for factor in (0.25, 0.5, 0.8, 1.25, 2, 4)]
    assert chosen.machine_s <= 1.001 * min(other.machine_s for other in others)


def test_without_checkpoints_in_reach_a_long_spot_run_never_ends():
    terms = Terms("spot", 1.0, interruptions_per_day=24.0, restart_s=600.0)
    assert bill(1e9, terms, interval_s=1e9).usd == math.inf


def test_spot_counts_lost_work_and_more_interruptions_cost_more():
    def spot(per_day):
        return bill(50 * HOUR_S, Terms("spot", 1.0, interruptions_per_day=per_day, save_s=60.0, restart_s=660.0))

    assert spot(1).machine_s > spot(0).machine_s
    assert spot(4).usd > spot(1).usd > spot(0).usd
    assert spot(1).checkpoint_interval_s is not None
    assert spot(1).interruptions == pytest.approx(50 / 24, rel=0.1)


def test_a_free_tier_stretches_work_over_weeks_and_costs_nothing():
    terms = Terms("free", 0.0, setup_s=300.0, save_s=0.0, session_s=12 * HOUR_S, week_s=30 * HOUR_S)
    result = bill(100 * HOUR_S, terms)
    sessions = math.ceil(100 * HOUR_S / (12 * HOUR_S - 300))
    assert result.machine_s == 100 * HOUR_S + sessions * 300
    assert result.calendar_s == pytest.approx(3 * 7 * 24 * HOUR_S + result.machine_s - 90 * HOUR_S)
    assert result.usd == 0.0
    assert result.checkpoint_interval_s is not None


def test_a_session_shorter_than_its_own_setup_never_gets_anywhere():
    assert bill(HOUR_S, Terms("free", 0.0, setup_s=600.0, session_s=500.0)).calendar_s == math.inf


@pytest.mark.parametrize(("deadline_h", "low", "high"), [(20, 0.99, 1.0), (10, 0.49, 0.51), (5, 0.0, 0.1)])
def test_the_probability_to_finish_follows_the_forecast_interval(deadline_h, low, high):
    work = Interval(10 * HOUR_S, 7 * HOUR_S, 14 * HOUR_S)
    result = outcome(work, Terms("on-demand", 1.0, setup_s=0.0), deadline_s=deadline_h * HOUR_S)
    assert low <= result.finish_probability <= high
    assert result.usd.low == pytest.approx(7.0)
    assert result.usd.high == pytest.approx(14.0)


def test_interruptions_make_a_deadline_less_certain():
    work = Interval(10 * HOUR_S, 9.9 * HOUR_S, 10.1 * HOUR_S)
    calm = outcome(work, Terms("on-demand", 1.0), deadline_s=12 * HOUR_S)
    spot = Terms("spot", 1.0, interruptions_per_day=4.0, save_s=60.0, restart_s=660.0)
    assert outcome(work, spot, deadline_s=12 * HOUR_S).finish_probability < calm.finish_probability


def test_what_a_rental_assumes_is_named_with_the_flag_that_changes_it():
    def offered(terms, provider, usd_per_hour):
        return Offer(provider, "machine", "here", "h100-80gb-sxm", 1, terms, usd_per_hour)

    terms, assumed = rental(offered("spot", "aws", 1.0), parameters=10**9)
    assert terms.interruptions_per_day == spot.DEFAULT_INTERRUPTIONS_PER_DAY + spot.FAILURES_PER_DEVICE_DAY
    assert terms.save_s == pytest.approx(12e9 / spot.WRITE_BYTES_PER_S)
    assert any(note.flag == "--interruptions" for note in assumed)
    terms, assumed = rental(offered("spot", "aws", 1.0), parameters=10**9, interruptions_per_day=3.0)
    assert terms.interruptions_per_day == pytest.approx(3.0, rel=1e-3)
    assert not any(note.flag == "--interruptions" for note in assumed)
    terms, assumed = rental(offered("free", "colab", 0.0), parameters=10**9)
    assert terms.session_s == 12 * HOUR_S
    assert any("quota" in note.text for note in assumed)


def test_what_a_provider_bills_and_takes_away():
    def of(provider, terms="on-demand", count=1):
        return rental(Offer(provider, "machine", "here", "t4", count, terms, 1.0), parameters=10**8)[0]

    assert (of("paperspace").minimum_s, of("paperspace").billing_step_s) == (HOUR_S, HOUR_S)
    assert (of("vast").minimum_s, of("aws").minimum_s) == (1.0, 60.0)
    assert of("gcp", "spot").day_machines == 1.0
    assert of("gcp").day_machines == of("aws", "spot").day_machines == 0.0
    assert of("vast", "spot").interruptions_per_day > of("aws", "spot").interruptions_per_day
    assert of("aws", count=8).interruptions_per_day == pytest.approx(8 * of("aws").interruptions_per_day)


def test_thousands_of_devices_restart_as_llama_3_did():
    one, _ = rental(Offer("aws", "p5.48xlarge", "here", "h100-80gb-sxm", 8, "on-demand", 50.0), parameters=405 * 10**9)
    result = bill(54 * 24 * HOUR_S, of_several(one, 2048))
    assert result.interruptions == pytest.approx(419, rel=0.15)  # 419 in 54 days of the calendar
    assert 1.0 < result.machine_s / (54 * 24 * HOUR_S) < 1.15


def test_spot_takes_no_less_time_than_on_demand():
    rng = random.Random(0)
    for _ in range(200):
        provider, count = rng.choice(["aws", "gcp", "vast", "nebius"]), rng.choice([1, 2, 8])
        machines, parameters = rng.choice([1, 4, 64]), 10 ** rng.randint(6, 11)
        work_s, rate = math.exp(rng.uniform(3, 15)), rng.choice([None, 0.0, 0.3, 5.0])
        both = [
            bill(work_s, of_several(rental(each, parameters=parameters, interruptions_per_day=rate)[0], machines))
            for each in (Offer(provider, "m", "r", "t4", count, terms, 1.0) for terms in ("on-demand", "spot"))
        ]
        assert both[1].machine_s >= both[0].machine_s * (1 - 1e-9)
        assert both[0].machine_s >= work_s


def test_storage_and_transfer_are_billed_beside_the_machine():
    def of(provider):
        offered = Offer(provider, "machine", "here", "h100-80gb-sxm", 1, "on-demand", 2.0)
        return rental(offered, parameters=10**9, interruptions_per_day=0.0)[0]

    aws, elsewhere = (bill(730 * HOUR_S, of(name)) for name in ("aws", "lambda"))
    stored_usd = 2 * 12 * 0.023 * elsewhere.calendar_s / HOUR_S / 730
    assert aws.data_usd == pytest.approx(stored_usd + 4 * 0.09)
    assert aws.usd == pytest.approx(elsewhere.usd + aws.data_usd)
    assert elsewhere.data_usd == 0
    listed = outcome(Interval(HOUR_S, 0.9 * HOUR_S, 1.2 * HOUR_S), of("aws"), deadline_s=None)
    dearer = at_price(listed, 2.0, Interval(6.0, 6.0, 6.0))
    assert dearer.usd.value == pytest.approx(3 * (listed.usd.value - listed.bill.data_usd) + listed.bill.data_usd)
