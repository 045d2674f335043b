"""Properties of what a run costs: prices, offers and terms."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.hardware import Catalog
from gpuwise.plan import Request
from gpuwise.plan.economics.bill import bill
from gpuwise.plan.economics.terms import HOUR_S, Terms
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.plan.search import plan

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from test_plan_synthetic import offer, synthetic_source

SOME = settings(max_examples=30, deadline=None)
MANY = settings(SOME, max_examples=200)
CATALOG = Catalog(user_files=())
SOURCE = synthetic_source(width=2048, layers=4)

offers = st.builds(
    offer,
    st.sampled_from(["t4", "rtx-4090", "h100-80gb-sxm"]),
    st.floats(0.01, 50),
    terms=st.sampled_from(["on-demand", "spot"]),
    provider=st.sampled_from(["aws", "gcp", "nebius", "vast"]),
)


def least_usd(considered):
    request = Request(samples=10**8, global_batch=256, limit=1, confidence=0.0)
    return plan(StepTraces(SOURCE), request, considered, CATALOG).best.usd.value


@SOME
@given(st.lists(offers, min_size=1, max_size=4), offers)
def test_another_offer_never_makes_the_best_dearer(considered, more):
    assert least_usd([*considered, more]) <= least_usd(considered) * (1 + 1e-9) + 0.01


@SOME
@given(st.lists(offers, min_size=1, max_size=4), st.data(), st.floats(0.01, 1))
def test_a_lower_price_never_makes_the_best_dearer(considered, data, factor):
    row = data.draw(st.integers(0, len(considered) - 1))
    lower = list(considered)
    lower[row] = replace(lower[row], usd_per_hour=factor * lower[row].usd_per_hour)
    assert least_usd(lower) <= least_usd(considered) * (1 + 1e-9) + 0.01


@MANY
@given(st.floats(0, 1e6), st.floats(0, 7200), st.sampled_from([1.0, 60.0, 3600.0]), st.floats(0, 1e4))
def test_billed_time_is_at_least_the_minimum_and_in_whole_units(work_s, minimum_s, step_s, setup_s):
    terms = Terms("on-demand", 3600.0, setup_s=setup_s, minimum_s=minimum_s, billing_step_s=step_s)  # a dollar a second
    usd = bill(work_s, terms).usd
    used_s = max(work_s + setup_s, minimum_s)
    assert used_s * (1 - 1e-9) <= usd <= (used_s + (step_s if step_s > 1 else 0)) * (1 + 1e-9) + 1e-6
    if step_s > 1:
        assert math.isclose(usd / step_s, round(usd / step_s), abs_tol=1e-6)


@MANY
@given(st.floats(60, 1e7), st.floats(1, 1e4), st.floats(0, 1e4), st.floats(0.001, 10), st.sampled_from([0.0, 1.0, 8.0]))
def test_interruptions_never_save_time(work_s, save_s, restart_s, per_day, day_machines):
    calm = Terms("on-demand", 1.0, save_s=save_s, restart_s=restart_s)
    spot = replace(calm, kind="spot", interruptions_per_day=per_day, day_machines=day_machines)
    assert bill(work_s, spot).machine_s >= bill(work_s, calm).machine_s * (1 - 1e-9)
    more = replace(spot, interruptions_per_day=2 * per_day)
    assert bill(work_s, more).machine_s >= bill(work_s, spot).machine_s * (1 - 0.01)  # parts of work are whole numbers


@MANY
@given(st.floats(1, 1e6), st.floats(1.0, 24), st.floats(1, 168))
def test_a_free_tier_never_works_more_than_its_hours_a_week(work_s, session_h, week_h):
    terms = Terms("free", 0.0, setup_s=60.0, save_s=10.0, session_s=session_h * HOUR_S, week_s=week_h * HOUR_S)
    result = bill(work_s, terms)
    assert result.usd == 0
    assert result.calendar_s >= result.machine_s * (1 - 1e-9)
    assert result.machine_s <= (math.floor(result.calendar_s / (168 * HOUR_S)) + 1) * week_h * HOUR_S * (1 + 1e-9)
