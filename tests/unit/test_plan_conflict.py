"""No plan inside the limits: which limits exclude what, the nearest plan on either side, and ways out that work."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_plan_synthetic import offer, synthetic_source

from gpuwise.errors import InputError
from gpuwise.hardware import Catalog
from gpuwise.plan import NothingInside, Request
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.plan.search import plan
from gpuwise.units import parse_duration, parse_usd

CATALOG = Catalog(user_files=())
TRACES = StepTraces(synthetic_source(width=2048))
# Slow and cheap beside fast and dear.
OFFERS = [offer("t4", 0.4), offer("rtx-4090", 0.8), offer("h100-80gb-sxm", 60.0, count=8)]
REQUEST = Request(samples=10**9, global_batch=256, limit=None)


def planned(request: Request):
    return plan(TRACES, request, OFFERS, CATALOG)


@pytest.fixture(scope="module")
def every():
    return planned(REQUEST).plans


def refused(**limits) -> NothingInside:
    with pytest.raises(NothingInside) as caught:
        planned(replace(REQUEST, **limits))
    return caught.value


def test_limits_that_exclude_each_other_name_the_nearest_plan_on_either_side(every):
    fast = min(every, key=lambda made: made.hours)
    cheap = min(every, key=lambda made: made.usd.value)
    between_h = min(made.hours for made in every if made is not fast) * 0.9
    error = refused(deadline_s=between_h * 3600, budget_usd=cheap.usd.value * 1.01)
    conflict = error.conflict
    assert conflict.limits == ("budget", "deadline")
    assert conflict.cheapest_in_time.hours == fast.hours
    affordable = [made for made in every if made.usd.value <= cheap.usd.value * 1.01]
    assert conflict.fastest_in_budget.hours == min(made.hours for made in affordable)
    assert "exclude each other" in str(error)
    ways = error.ways_out
    assert len(ways) == 2
    assert "--budget" in ways[0]
    assert "--deadline" in ways[1]
    listed = json.loads(json.dumps(error.to_dict()))["conflict"]
    assert listed["exclude_each_other"]
    assert listed["cheapest_in_time"]["usd"] == fast.usd.value


def test_a_deadline_shorter_than_the_fastest_plan(every):
    error = refused(deadline_s=min(made.hours for made in every) * 3600 * 0.5, budget_usd=10**6)
    assert error.conflict.limits == ("deadline",)
    assert "every plan takes longer" in str(error)
    assert error.fastest.hours == min(made.hours for made in every)


def test_a_budget_below_the_cheapest_plan(every):
    error = refused(budget_usd=min(made.usd.value for made in every) * 0.5)
    assert error.conflict.limits == ("budget",)
    assert "every plan costs more" in str(error)


def test_both_below_everything():
    error = refused(budget_usd=0.001, deadline_s=1.0)
    assert error.conflict.limits == ("deadline", "budget")
    assert not error.conflict.exclude_each_other
    assert "takes longer, and costs more" in str(error)


@settings(max_examples=25, deadline=None)
@given(budget=st.none() | st.floats(0.01, 300), deadline_h=st.none() | st.floats(0.1, 200))
def test_every_advised_limit_admits_a_plan(budget, deadline_h):
    """Each way out with a figure is followed alone."""
    request = replace(REQUEST, budget_usd=budget, deadline_s=None if deadline_h is None else deadline_h * 3600)
    try:
        planned(request)
    except NothingInside as error:
        for way in error.ways_out:
            money = re.search(r"budget to (\$[\d,.]+)", way)
            time = re.search(r"(?:give it|deadline to) ([\d.,]+ \w+)", way)
            changes: dict[str, float] = {}
            if money:
                changes["budget_usd"] = parse_usd(money[1].rstrip("."))
            if time:
                changes["deadline_s"] = parse_duration(time[1].replace(" ", "").replace("days", "d").replace("min", "m"))
            if changes:
                assert planned(replace(request, **changes)).plans


@pytest.mark.parametrize("name", ["global_batch", "micro_batch", "max_devices"])
def test_parts_of_samples_and_devices_are_refused(name: str):
    with pytest.raises(InputError, match=f"{name.replace('_', ' ')} must be a whole number, got 6.5"):
        replace(REQUEST, **{name: 6.5})
