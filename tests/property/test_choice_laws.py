"""Laws of the choice among plans, on random offers and limits of a small job."""

from __future__ import annotations

import copy
import math
import sys
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.errors import NoPlanError
from gpuwise.hardware import Catalog
from gpuwise.plan import Request
from gpuwise.plan.choose import choose
from gpuwise.plan.plan_result import PlanResult
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.plan.search import plan, search
from gpuwise.plan_settings import OBJECTIVES

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from test_plan_synthetic import offer, synthetic_source

FEW = settings(max_examples=20, deadline=None)
CATALOG = Catalog(user_files=())
TRACES = StepTraces(synthetic_source(width=2048, layers=4))
CHIPS = ("t4", "rtx-4090", "a100-80gb-sxm", "h100-80gb-sxm")
REQUEST = Request(samples=10**9, global_batch=256, confidence=0.0, limit=None)

offers = st.lists(
    st.builds(
        lambda chip, usd, count, terms: offer(chip, usd, count=count, terms=terms),
        st.sampled_from(CHIPS),
        st.floats(0.1, 30),
        st.sampled_from((1, 2, 8)),
        st.sampled_from(("on-demand", "spot")),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda each: each.instance,
)
limits = st.fixed_dictionaries(
    {"budget_usd": st.none() | st.floats(1, 500), "deadline_s": st.none() | st.floats(3600, 30 * 86400)}
)


def planned(request: Request, rented, catalog: Catalog = CATALOG) -> PlanResult | None:
    try:
        return plan(TRACES, request, rented, catalog)
    except NoPlanError:
        return None


def cost(result: PlanResult | None) -> float:
    return math.inf if result is None else result.best.usd.value


def hours(result: PlanResult | None) -> float:
    return math.inf if result is None else result.best.hours


@FEW
@given(rented=offers, factor=st.floats(0.3, 1), limit=limits)
def test_a_lower_price_never_makes_the_optimum_dearer(rented, factor, limit):
    request = replace(REQUEST, **limit)
    cheaper = [replace(rented[0], usd_per_hour=factor * rented[0].usd_per_hour), *rented[1:]]
    assert cost(planned(request, cheaper)) <= cost(planned(request, rented)) * (1 + 1e-9)


@FEW
@given(rented=offers, more=offers, limit=limits)
def test_another_offer_never_makes_the_optimum_worse(rented, more, limit):
    request = replace(REQUEST, **limit)
    fastest = replace(request, objective="fastest")
    names = {each.instance for each in rented}
    both = [*rented, *(each for each in more if each.instance not in names)]
    assert cost(planned(request, both)) <= cost(planned(request, rented)) + 0.011  # money is compared to the cent
    assert hours(planned(fastest, both)) <= hours(planned(fastest, rented)) * (1 + 1e-9)


def roomier(chip_id: str, **factors: float) -> Catalog:
    catalog = copy.copy(CATALOG)
    chip = CATALOG.chips[chip_id]
    changed = replace(chip, **{name: type(getattr(chip, name))(getattr(chip, name) * by) for name, by in factors.items()})
    catalog.__dict__["chips"] = {**CATALOG.chips, chip_id: changed}
    return catalog


@FEW
@given(chip=st.sampled_from(CHIPS), count=st.sampled_from((1, 8)), memory=st.floats(1, 4), bandwidth=st.floats(1, 3))
def test_more_memory_and_bandwidth_never_make_the_optimum_worse(chip, count, memory, bandwidth):
    rented = [offer(chip, 2.0, count=count)]
    before = planned(REQUEST, rented)
    after = planned(REQUEST, rented, roomier(chip, memory_bytes=memory, memory_bandwidth_bytes_per_s=bandwidth))
    assert hours(after) <= hours(before) * (1 + 1e-6)


@FEW
@given(rented=offers, limit=limits, objective=st.sampled_from(OBJECTIVES), confidence=st.sampled_from((0.0, 0.5, 0.9)))
def test_plans_keep_what_they_claim_and_the_first_is_the_best_of_its_kind(rented, limit, objective, confidence):
    result = planned(replace(REQUEST, objective=objective, confidence=confidence, **limit), rented)
    if result is None:
        return
    for each in result.plans:
        assert each.usd.value <= (limit["budget_usd"] or math.inf)
        assert each.hours * 3600 <= (limit["deadline_s"] or math.inf)
        assert each.forecast.memory.device_bytes <= each.forecast.memory.capacity_bytes
        assert any(note.kind == "may-miss" for note in each.reason_notes) == (each.chance < confidence)
    sure = [each for each in result.plans if each.chance >= confidence] or list(result.plans)
    assert result.best in sure
    if objective == "fastest":
        assert result.best.hours == min(each.hours for each in sure)
    if objective == "cheapest":
        assert result.best.usd.value <= min(each.usd.value for each in sure) + 0.011


@FEW
@given(rented=offers, limit=limits)
def test_the_front_is_what_no_other_plan_beats(rented, limit):
    everything = planned(REQUEST, rented)
    assert everything is not None
    figures = {
        (each.offer.instance): (each.hours, each.usd.value, each.forecast.energy_j * each.steps) for each in everything.plans
    }
    on_demand = {name: row for name, row in figures.items() if "on-demand" in name}  # energy without repeated work
    result = planned(replace(REQUEST, **limit), rented) or everything
    front = {point.offer.instance for point in result.front.points}
    assert len(result.front.points) + len(result.front.others) == len(figures)
    for name, row in on_demand.items():
        beaten = any(all(a <= b for a, b in zip(other, row, strict=True)) and other != row for other in on_demand.values())
        if beaten:
            assert name not in front
    for point in result.front.points:
        assert (point.hours, point.usd) == figures[point.offer.instance][:2]
        inside = point.usd <= (limit["budget_usd"] or math.inf) and point.hours * 3600 <= (limit["deadline_s"] or math.inf)
        assert point.inside == inside or result is everything


@FEW
@given(rented=offers, first=limits, second=limits, objective=st.sampled_from(OBJECTIVES))
def test_choose_depends_on_its_arguments_alone(rented, first, second, objective):
    """Moving sliders and moving them back gives the same plans."""
    searched = search(TRACES, REQUEST, rented, CATALOG)

    def chosen(limit):
        try:
            return choose(searched, replace(REQUEST, objective=objective, **limit)).to_dict()
        except NoPlanError as error:
            return str(error)

    before = chosen(first)
    chosen(second)
    assert chosen(first) == before
