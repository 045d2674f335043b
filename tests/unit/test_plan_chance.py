"""The chance to finish on spot machines against simulated runs, and how plans that may miss are ranked and said."""

from __future__ import annotations

import json
import math
import random

import pytest
from test_plan_synthetic import offer, synthetic_source
from test_report_text import line, text

from gpuwise.errors import InputError
from gpuwise.hardware import Catalog
from gpuwise.plan import Request
from gpuwise.plan.economics.rented import rental
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.plan.search import plan
from gpuwise.plan.types import Plan
from gpuwise.report.plan import plan_report

CATALOG = Catalog(user_files=())
Z_90 = 1.6449


def planned(request: Request, *offers):
    return plan(StepTraces(synthetic_source(width=2048)), request, offers, CATALOG)


def simulated_h(made: Plan, draw: random.Random, *, per_day: float, save_s: float, restart_s: float, setup_s: float) -> float:
    """The hours of one run: its work is lognormal, interruptions undo work since the last checkpoint."""
    step = made.forecast.step_time_s
    sigma = math.log(step.high / step.low) / (2 * Z_90)
    left_s = step.value * made.steps * math.exp(draw.gauss(0, sigma))
    time_s, interval_s = setup_s, made.checkpoint_interval_s
    next_s = draw.expovariate(per_day / 86400)
    while left_s > 0:
        part_s = min(interval_s, left_s)
        length_s = part_s + (save_s if left_s > interval_s else 0.0)
        if next_s < length_s:
            time_s += next_s + restart_s
            next_s = draw.expovariate(per_day / 86400)
        else:
            time_s, left_s, next_s = time_s + length_s, left_s - part_s, next_s - length_s
    return time_s / 3600


@pytest.mark.parametrize("factor", [0.85, 1.0, 1.3])
def test_the_chance_of_a_spot_run_is_that_of_simulated_runs(factor):
    rented = offer("rtx-4090", 0.4, terms="spot")
    request = {"samples": 10**10, "global_batch": 256, "interruptions_per_day": 6.0, "confidence": 0.0}
    expected_h = planned(Request(**request), rented).best.hours
    made = planned(Request(**request, deadline_s=1.31 * expected_h * 3600), rented).best
    assert made.checkpoint_interval_s
    terms, _ = rental(rented, parameters=8 * 2048**2 // 2, interruptions_per_day=6.0)
    draw = random.Random(0)
    figures = {"per_day": 6.0, "save_s": terms.save_s, "restart_s": terms.restart_s, "setup_s": terms.setup_s}
    runs = [simulated_h(made, draw, **figures) for _ in range(1500)]
    within = sum(hours <= factor * expected_h for hours in runs) / len(runs)
    if factor < 1:  # the plan is outside, so its chance is that of the front's point
        late = planned(Request(**request, deadline_s=factor * expected_h * 3600), rented, offer("h100-80gb-sxm", 60.0, count=8))
        (point,) = [each for each in late.front.points if each.device == "rtx-4090"]
        assert not point.inside
        chance = point.chance
    else:
        chance = planned(Request(**request, deadline_s=factor * expected_h * 3600), rented).best.chance
    assert chance == pytest.approx(within, abs=0.05)


SLOW, FAST = offer("rtx-4090", 0.4), offer("h100-80gb-sxm", 4.0)
JOB = {"samples": 10**9, "global_batch": 256}


@pytest.fixture(scope="module")
def slow_h():
    return planned(Request(**JOB), SLOW).best.hours


def test_what_may_miss_stands_behind_what_keeps_the_deadline_and_says_so(slow_h):
    request = Request(**JOB, deadline_s=1.02 * slow_h * 3600)
    result = planned(request, SLOW, FAST)
    assert [made.device for made in result.plans] == ["h100-80gb-sxm", "rtx-4090"]
    sure, risky = result.plans
    assert risky.usd.value < sure.usd.value
    assert 0.5 < risky.chance < 0.9 <= sure.chance
    assert any("may miss the limits" in reason and "--confidence 0" in reason for reason in sure.reasons)
    shown = text(plan_report(result))
    assert "?" in line(shown, "rtx-4090", "micro-batch").split()[0]
    assert "likely to keep the limits" in shown
    assert "may miss the deadline or the budget" in shown
    assert json.loads(json.dumps(result.to_dict()))["plans"][1]["chance"] == risky.chance


def test_confidence_zero_ranks_by_cost_alone(slow_h):
    request = Request(**JOB, deadline_s=1.02 * slow_h * 3600, confidence=0.0)
    result = planned(request, SLOW, FAST)
    assert [made.device for made in result.plans] == ["rtx-4090", "h100-80gb-sxm"]
    assert "may miss" not in text(plan_report(result))


def test_where_everything_may_miss_the_objective_decides(slow_h):
    result = planned(Request(**JOB, deadline_s=1.02 * slow_h * 3600), SLOW)
    assert result.best.device == "rtx-4090"
    assert any("may miss: " in reason for reason in result.best.reasons)


def test_a_budget_is_kept_with_the_same_confidence():
    usd = planned(Request(**JOB), SLOW).best.usd
    tight = planned(Request(**JOB, budget_usd=1.01 * usd.value), SLOW).best
    roomy = planned(Request(**JOB, budget_usd=1.5 * usd.high), SLOW).best
    assert tight.chance < 0.9 < roomy.chance
    assert tight.finish_probability == roomy.finish_probability == 1.0


def test_senseless_settings():
    with pytest.raises(InputError, match="confidence is a share"):
        Request(samples=1, confidence=1.0)
    with pytest.raises(InputError, match="unknown objective 'best'"):
        Request(samples=1, objective="best")
