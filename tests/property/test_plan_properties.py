"""Properties of plans that hold whatever is asked."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuwise.cost.forecast import Forecast, Interval, MemoryForecast
from gpuwise.errors import FileFormatError, NoPlanError
from gpuwise.hardware import load_catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.types import TERMS, Offer, Source
from gpuwise.notes import Note
from gpuwise.plan import Plan, Request, load_plan, save_plan
from gpuwise.plan.economics.bill import bill
from gpuwise.plan.economics.terms import Terms
from gpuwise.plan.pricing.step import StepPricer
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.plan.search import plan
from gpuwise.plan.space.constraints import Constraints, NoStrategy
from gpuwise.plan.space.legal import batch_for, micro_batches
from gpuwise.plan.space.strategies import StrategySearch
from gpuwise.strategy import OPTIMIZERS, PRECISIONS, RECOMPUTES, Mesh, Strategy

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from test_plan_synthetic import offer, synthetic_source

FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
MANY = settings(FEW, max_examples=150)
CATALOG = load_catalog()
SOURCE = synthetic_source(width=2048, layers=4)

text = st.text(max_size=12)
real = st.floats(allow_nan=False, allow_infinity=False)
positive = st.floats(1e-9, 1e15)
whole = st.integers(0, 2**62)
count = st.integers(1, 4096)


def some(kind):
    return st.none() | kind


mesh = st.builds(Mesh, dp_replicate=count, dp_shard=count)
strategies = st.builds(
    Strategy,
    precision=st.sampled_from(PRECISIONS),
    micro_batch=count,
    accumulation=count,
    recompute=st.sampled_from(RECOMPUTES),
    mesh=mesh,
    optimizer=some(st.sampled_from(OPTIMIZERS)),
    compile=st.booleans(),
)
sources = st.builds(Source, text, text, st.booleans())
offers = st.builds(
    Offer,
    text,
    text,
    text,
    text,
    st.floats(0, 64),
    st.sampled_from(TERMS),
    positive,
    some(whole),
    some(whole),
    some(whole),
    some(text),
    some(positive),
    some(text),
    some(positive),
    some(positive),
    st.booleans(),
    source=sources,
    sources=st.dictionaries(text, sources, max_size=2),
    caveats=st.dictionaries(text, text, max_size=2),
    notes=text,
)
notes = st.lists(
    st.builds(Note, text, text, st.dictionaries(text, st.one_of(real, whole, text, st.booleans()), max_size=2), some(text)),
    max_size=2,
).map(tuple)
intervals = st.builds(Interval, real, real, real)
memories = st.builds(MemoryForecast, whole, whole, whole, some(whole), st.dictionaries(text, whole, max_size=3))
forecasts = st.builds(
    Forecast,
    text,
    text,
    count,
    strategies,
    intervals,
    real,
    text,
    memories,
    whole,
    some(real),
    st.dictionaries(text, real, max_size=3),
    some(real),
    st.dictionaries(text, text, max_size=3),
    some(real),
    notes,
    notes,
    st.lists(st.tuples(text, real), max_size=2).map(tuple),
)
plans = st.builds(
    Plan,
    count,
    text,
    text,
    text,
    strategies,
    offers,
    text,
    positive,
    forecasts,
    positive,
    positive,
    intervals,
    st.floats(0, 1),
    whole,
    whole,
    text,
    text,
    st.dictionaries(text, count, max_size=2),
    some(positive),
    notes,
    notes,
)


@MANY
@given(made=plans)
def test_a_plan_file_reads_back_equal(made, tmp_path):
    save_plan(made, tmp_path / "plan.toml")
    assert load_plan(tmp_path / "plan.toml") == made


@FEW
@given(made=plans, data=st.data())
def test_a_damaged_plan_file_is_valid_or_exactly_one_error(made, data, tmp_path):
    path = tmp_path / "plan.toml"
    save_plan(made, path)
    raw = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(raw))
    with contextlib.suppress(FileFormatError):
        assert isinstance(load_plan(path), Plan)


terms = st.builds(
    Terms,
    st.sampled_from(TERMS),
    st.just(1.0),
    setup_s=st.floats(0, 3600),
    minimum_s=st.floats(0, 3600),
    interruptions_per_day=st.floats(0, 4),
    save_s=st.floats(0, 900),
    restart_s=st.floats(0, 3600),
    session_s=some(st.floats(7200, 86400)),
    week_s=some(st.floats(86400, 604800)),
)


@MANY
@given(terms=terms, work_s=st.floats(1, 1e7), low=st.floats(0, 50), more=st.floats(0, 50))
def test_cost_grows_with_the_price_and_time_does_not_depend_on_it(terms, work_s, low, more):
    cheap = bill(work_s, replace(terms, usd_per_hour=low))
    dear = bill(work_s, replace(terms, usd_per_hour=low + more))
    assert dear.usd >= cheap.usd
    assert dear.calendar_s == cheap.calendar_s


@MANY
@given(terms=terms, work_s=st.floats(1, 1e7), factor=st.floats(1, 10))
def test_more_work_never_takes_less_time_or_money(terms, work_s, factor):
    assert bill(work_s * factor, terms).calendar_s >= bill(work_s, terms).calendar_s * (1 - 1e-9)
    assert bill(work_s * factor, terms).usd >= bill(work_s, terms).usd * (1 - 1e-9)


@MANY
@given(batch=st.integers(1, 5000), devices=st.integers(1, 16), micro_batch=some(st.integers(1, 32)), exact=st.booleans())
def test_micro_batch_times_accumulation_times_devices_is_the_global_batch(batch, devices, micro_batch, exact):
    result = batch_for(batch, devices=devices, micro_batch=micro_batch, exact=exact)
    if exact:
        assert result in (None, batch)
    if result is None:
        return
    constraints = Constraints(result, micro_batch=micro_batch)
    ladder = StrategySearch(StepPricer(StepTraces(SOURCE))).ladder(
        "fp32", "none", Mesh(dp_replicate=devices), constraints, micro_batches(result // devices, micro_batch)
    )
    assert ladder
    for strategy in ladder:
        assert strategy.micro_batch * strategy.accumulation * devices == strategy.global_batch == result


SEARCH = StrategySearch(StepPricer(StepTraces(SOURCE)))  # one for all examples: traces are made once


@FEW
@given(
    memory=st.floats(0.02, 80),
    more=st.floats(0, 80),
    batch=st.sampled_from([8, 32, 96]),
    devices=st.sampled_from([1, 2, 8]),
    chip=st.sampled_from(["h100-80gb-sxm", "rtx-4090", "t4"]),
)
def test_more_memory_never_makes_a_fitting_strategy_unfit_or_slower(memory, more, batch, devices, chip):
    from gpuwise.hardware import link_inside

    device = CATALOG.chip(chip)
    link = link_inside(device, devices, catalog=CATALOG)
    less = SEARCH.best(Cluster(device, devices, inside=link, memory_bytes=int(memory * 2**30)), Constraints(batch))
    roomier = SEARCH.best(Cluster(device, devices, inside=link, memory_bytes=int((memory + more) * 2**30)), Constraints(batch))
    if isinstance(less, Forecast):
        assert isinstance(roomier, Forecast)
        assert roomier.memory.fits
        assert SEARCH.memory(
            less.strategy, Cluster(device, devices, inside=link, memory_bytes=int((memory + more) * 2**30))
        ).fits
    else:
        assert isinstance(less, NoStrategy)


OFFERS = [
    offer(chip, price, count=n, terms=kind)
    for chip, price, n, kind in [
        ("rtx-4090", 0.4, 1, "on-demand"),
        ("rtx-4090", 0.3, 1, "spot"),
        ("a100-80gb-sxm", 12.0, 8, "on-demand"),
        ("h100-80gb-sxm", 25.0, 8, "on-demand"),
        ("h100-80gb-sxm", 9.0, 8, "spot"),
        ("t4", 0.5, 1, "on-demand"),
        ("xeon-8380", 2.0, 0, "on-demand"),
        ("h100-80gb-sxm", 2.0, 1, "reserved-1y"),
    ]
]


def _offers_inside(samples, budget, deadline_h):
    request = Request(samples=samples, budget_usd=budget, deadline_s=deadline_h * 3600, limit=None)
    try:
        result = plan(StepTraces(SOURCE), request, OFFERS, CATALOG)
    except NoPlanError:
        return set()
    assert all(p.usd.value <= budget and p.hours <= deadline_h for p in result.plans)
    return {p.offer.instance for p in result.plans}


@FEW
@given(
    samples=st.integers(10**5, 10**10),
    budget=st.floats(0.01, 1000),
    more=st.floats(0, 1000),
    deadline_h=st.floats(0.2, 1000),
    later=st.floats(0, 1000),
)
def test_more_budget_or_time_never_removes_a_plan(samples, budget, more, deadline_h, later):
    inside = _offers_inside(samples, budget, deadline_h)
    assert inside <= _offers_inside(samples, budget + more, deadline_h + later)
