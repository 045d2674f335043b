"""What stands where in the table: what `gpuwise train` runs first, and the user's own machines always."""

from __future__ import annotations

import json

import pytest
from test_plan_synthetic import offer, synthetic_source
from test_report_text import line, text

from gpuwise.hardware import Machine, load_catalog
from gpuwise.plan import NothingInside, Request
from gpuwise.plan.buying.runnable import train_obstacle
from gpuwise.plan.economics.bill import bill
from gpuwise.plan.economics.owned import break_even_months
from gpuwise.plan.economics.terms import Terms
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.plan.search import plan
from gpuwise.report.plan import plan_report
from gpuwise.strategy import Mesh, Strategy

CATALOG = load_catalog()
TPU = offer("tpu-v5e", 0.0, terms="free", max_session_hours=12)
PLUG_IN = offer("gaudi2", 0.01, count=8)
RENTED, EIGHT = offer("rtx-4090", 0.4), offer("h100-80gb-sxm", 0.01, count=8)
JOB = {"width": 2048}


def planned(request: Request, *offers, **shape):
    return plan(StepTraces(synthetic_source(**(shape or JOB))), request, offers, CATALOG)


@pytest.mark.parametrize(
    ("chip", "devices", "runs"),
    [
        ("rtx-4090", 1, True),
        ("xeon-8380", 1, True),
        ("xeon-8380", 2, True),
        ("h100-80gb-sxm", 8, True),
        ("tpu-v5e", 1, False),
        ("tpu-v5e", 8, False),
        ("gaudi2", 1, False),
        ("mi300x", 8, True),
        ("intel-max-1550", 2, True),
        ("apple-m2-max", 1, True),
        ("apple-m2-max", 2, False),
    ],
)
def test_train_runs_cpus_and_gpus(chip: str, devices: int, runs: bool):
    matching = [each for name, each in CATALOG.chips.items() if name.startswith(chip)]
    assert matching
    assert all((train_obstacle(each, Strategy(mesh=Mesh(dp_shard=devices))) == "") is runs for each in matching)


def test_what_train_refuses_on_shards_is_an_obstacle():
    sharded = Strategy(mesh=Mesh(dp_shard=8), channels_last=True)
    assert "channels last" in train_obstacle(CATALOG.chip("h100-80gb-sxm"), sharded)


def test_what_train_cannot_run_stands_behind_and_is_marked():
    result = planned(Request(samples=10**9, global_batch=256), TPU, PLUG_IN, RENTED)
    assert [p.device for p in result.plans] == ["rtx-4090", "tpu-v5e", "gaudi2"]
    assert [bool(p.train_obstacle) for p in result.plans] == [False, True, True]
    assert result.plans[1].usd.value < result.plans[0].usd.value
    assert result.plans[1].train_obstacle == "needs PyTorch/XLA"
    assert any("2 offers cost less" in reason and "--xla" in reason for reason in result.best.reasons)
    shown = text(plan_report(result))
    assert line(shown, "tpu-v5e", "free").startswith("2*")
    assert "2: needs PyTorch/XLA" in shown
    assert json.loads(json.dumps(result.to_dict()))["plans"][1]["train_obstacle"] == "needs PyTorch/XLA"


def test_several_gpus_are_ranked_by_cost():
    result = planned(Request(samples=10**9, global_batch=256), offer("rtx-4090", 40.0), EIGHT)
    assert [(p.device, p.count, p.strategy.mesh.devices) for p in result.plans] == [("h100-80gb-sxm", 8, 8), ("rtx-4090", 1, 1)]
    assert not any(p.train_obstacle for p in result.plans)
    assert "cheapest of 2 offers" in result.best.reasons[0]


def test_xla_mixes_them_by_price():
    result = planned(Request(samples=10**9, global_batch=256, xla=True), TPU, PLUG_IN, RENTED)
    costs = [p.usd.value for p in result.plans]
    assert costs == sorted(costs)
    assert result.best.device == "tpu-v5e"
    assert not any("--xla" in reason for reason in result.best.reasons)


def test_where_train_can_run_nothing_the_cheapest_is_still_first():
    result = planned(Request(samples=10**9, global_batch=256), TPU, offer("gaudi2", 30.0, count=8))
    assert [p.device for p in result.plans] == ["tpu-v5e", "gaudi2"]
    assert "cheapest of 2 offers" in result.best.reasons[0]


def test_the_limit_holds_and_keeps_what_matters():
    offers = [offer("rtx-4090", 0.4 + n / 100) for n in range(20)] + [TPU, EIGHT, offer("h100-80gb-sxm", 40.0)]
    result = planned(Request(samples=10**9, global_batch=256, own=(("t4", 1),), limit=6), *offers)
    assert len(result.plans) == 6
    assert {"t4", "tpu-v5e"} <= {p.device for p in result.plans}
    assert min(p.hours for p in result.plans if not p.train_obstacle) == min(
        p.hours
        for p in planned(Request(samples=10**9, global_batch=256, own=(("t4", 1),), limit=None), *offers).plans
        if not p.train_obstacle
    )
    assert len(planned(Request(samples=10**9, global_batch=256, limit=1), *offers).plans) == 1


def test_an_owned_machine_that_is_out_stands_in_the_table_with_why():
    here = Machine(CATALOG.chip("xeon-8380"), 1, host_memory_bytes=64 * 2**30, name="this machine")
    result = planned(
        Request(samples=10**9, own=(("t4", 1),), here=here, deadline_s=8 * 3600.0),
        offer("h100-80gb-sxm", 3.0),
        width=2048,
        layers=4,
    )
    out = {machine.device: machine for machine in result.at_hand}
    assert out["xeon-8380"].rank is None
    assert out["xeon-8380"].reason.startswith("past the deadline: ")
    assert out["xeon-8380"].hours > 8
    shown = line(text(plan_report(result)), "xeon-8380", "not ranked")
    assert "past the deadline" in shown
    listed = result.to_dict()["at_hand"]
    assert {"device": "xeon-8380", "rank": None}.items() <= next(m for m in listed if m["device"] == "xeon-8380").items()


def test_an_owned_machine_without_the_memory_says_so():
    result = planned(Request(samples=10**4, own=(("rtx-4090", 1),)), offer("h200-141gb-sxm"), width=8192, layers=24)
    (machine,) = result.at_hand
    assert machine.rank is None
    assert machine.reason.startswith("does not fit in memory: needs")
    assert machine.hours is None
    with pytest.raises(NothingInside, match="Your 1 × rtx-4090: does not fit in memory"):
        planned(Request(samples=10**9, budget_usd=0.0, own=(("rtx-4090", 1),)), offer("h200-141gb-sxm"), width=8192, layers=24)


def test_an_owned_machine_in_the_table_has_its_rank():
    result = planned(Request(samples=10**9, own=(("rtx-4090", 1),)), offer("h100-80gb-sxm", 3.0))
    (machine,) = result.at_hand
    assert (machine.rank, machine.reason) == (1, "")
    assert "not ranked" not in text(plan_report(result))


def test_free_owned_and_cpu_rows_show_the_interval_of_the_time_and_zero_once():
    result = planned(Request(samples=10**9, own=(("rtx-4090", 1),)), offer("t4", 0.0, terms="free"), RENTED)
    shown = text(plan_report(result))
    free, owned = line(shown, "t4", "free"), line(shown, "rtx-4090", "owned")
    assert "$0" in free
    assert free.count("$") == 1
    assert " h to " in free or " days to " in free
    assert owned.count("$") == 1
    assert line(shown, "somewhere rtx-4090x1", "micro-batch").count("$") == 3
    for made in result.plans:
        assert made.hours_interval.low <= made.hours <= made.hours_interval.high
        assert made.to_dict()["hours_interval"]["low"] == made.hours_interval.low


def test_break_even_is_what_buying_and_renting_cost_month_by_month():
    """By brute force: runs back to back, until the purchase and its electricity are no more than the rent."""
    own, rented = bill(7200.0, Terms("owned", 0.1, setup_s=0.0, minimum_s=0.0)), bill(3600.0, Terms("on-demand", 2.0))
    runs = 0
    while 1000 + runs * own.usd > runs * rented.usd:
        runs += 1
    months = runs * own.calendar_s / (365 * 86400 / 12)
    result = break_even_months(1000, own_usd=own.usd, own_hours=own.calendar_s / 3600, rental_usd=rented.usd)
    assert result == pytest.approx(months, rel=0.002)
    assert break_even_months(1000, own_usd=3.0, own_hours=1.0, rental_usd=3.0) is None


def test_an_owned_machine_says_when_it_has_paid_for_itself():
    result = planned(Request(samples=10**9, own=(("rtx-4090", 1),)), RENTED, TPU, offer("h100-80gb-sxm", 0.001, stale=True))
    (machine,) = result.at_hand
    assert machine.purchase_usd == CATALOG.chip("rtx-4090").street_price_usd or CATALOG.chip("rtx-4090").msrp_usd
    rented = next(p for p in result.plans if p.offer.terms == "on-demand")
    own = next(p for p in result.plans if p.offer.terms == "owned")
    saved = rented.usd.value - own.usd.value
    assert machine.break_even_months == pytest.approx(machine.purchase_usd / saved * own.hours / (365 * 24 / 12))
    assert "pays for itself after" in text(plan_report(result))
    assert "never pays for itself" in text(
        plan_report(planned(Request(samples=10**9, own=(("rtx-4090", 1),), usd_per_kwh=50.0), RENTED))
    )


def test_this_machine_has_no_price_to_pay_back():
    here = Machine(CATALOG.chip("xeon-8380"), 1, host_memory_bytes=64 * 2**30, name="this machine")
    result = planned(Request(samples=1000, here=here), RENTED, width=64, layers=1)
    assert [machine.purchase_usd for machine in result.at_hand] == [None]
    assert "pays for itself" not in text(plan_report(result))


def test_the_limit_of_devices_counts_what_is_sold_as_one_once():
    """Sixteen Trainium chips are 32 devices, as large a machine as sixteen GPUs."""
    result = planned(Request(samples=10**9, global_batch=1024), offer("trainium1", 20.0, count=32), offer("t4", 0.5))
    assert {(p.device, p.count) for p in result.plans} == {("trainium1", 32), ("t4", 1)}
    more = planned(Request(samples=10**9, global_batch=1024), offer("trainium1", 20.0, count=64), offer("t4", 0.5))
    assert {p.device for p in more.plans} == {"t4"}
    assert more.rejected["more than 16 devices"].count == 1
