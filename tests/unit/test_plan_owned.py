"""One's own machines: power at the wall, purchase and resale, and when buying beats renting, by brute force."""

import re

import pytest

import gpuwise
from gpuwise.errors import FileFormatError, InputError
from gpuwise.hardware.catalog import load_catalog
from gpuwise.hardware.hosts import host_for, hosts, kept_a_year
from gpuwise.plan.break_even import cheapest_of_each_chip
from gpuwise.plan.economics.costs_file import costs_of
from gpuwise.plan.economics.owned import OwnedCosts, OwnedRate, break_even_hours_a_week

CATALOG = load_catalog()


def plan(**more):
    return gpuwise.plan("gpt2", samples=100_000, on="rtx-3090,l4", **more)


def test_an_hour_at_the_wall():
    """450 W of cards and 100 W of a host behind a supply of 90 %, with as much again in five parts for cooling."""
    costs = OwnedCosts(pue=1.2)
    assert costs.wall_w(450) == pytest.approx((450 + 100) / 0.9 * 1.2)
    assert costs.electricity_usd_per_hour(450, usd_per_kwh=0.3) == pytest.approx(550 / 0.9 * 1.2 / 1000 * 0.3)


def test_a_purchase_is_spread_over_the_hours_of_its_life():
    costs = OwnedCosts(purchase_usd=4000, hours_a_week=20, lifetime_years=3, resale_share=0.25)
    assert costs.capital_usd_per_hour("gpu-consumer") == pytest.approx(3000 / (20 * 3 * 365 / 7))
    assert OwnedCosts().capital_usd_per_hour("gpu-consumer") == 0
    usual = OwnedCosts(purchase_usd=1000, lifetime_years=2)
    assert usual.lost_usd(1000, "gpu-consumer") == pytest.approx(1000 * (1 - kept_a_year("gpu-consumer") ** 2))


def test_several_machines_and_half_a_machine():
    costs = OwnedCosts(purchase_usd=4000, resale_share=0.0, lifetime_years=4, hours_a_week=40)
    capital = 4000 / (4 * 365 / 7 * 40)
    whole = OwnedRate(costs, "gpu-consumer", 0.2, 300.0)
    assert whole.usd_per_hour(None) == pytest.approx(400 / 0.9 / 1000 * 0.2 + capital)
    two = OwnedRate(costs, "gpu-consumer", 0.2, 600.0, machines=2)
    assert two.usd_per_hour(500.0) == pytest.approx(2 * ((250 + 100) / 0.9 / 1000 * 0.2 + capital))
    half = OwnedRate(costs, "gpu-consumer", 0.2, 300.0, share=0.5)
    assert half.usd_per_hour(0.0) == pytest.approx(100 / 0.9 / 1000 * 0.2 + capital / 2)


@pytest.mark.parametrize(("own_usd", "own_hours", "rental_usd"), [(0.1, 2.0, 1.0), (0.5, 10.0, 0.9), (0.02, 0.3, 0.05)])
def test_break_even_hours_week_by_week(own_usd, own_hours, rental_usd):
    """By brute force: both are paid for run by run over every week of the lifetime, at ever more runs a week."""
    lost_usd, years = 1500.0, 3.0
    weeks = years * 365 / 7

    def saved_usd(hours_a_week):
        runs = hours_a_week / own_hours * weeks
        return runs * rental_usd - (lost_usd + runs * own_usd)

    expected = next((hours / 100 for hours in range(1, 16801) if saved_usd(hours / 100) >= 0), None)
    hours = break_even_hours_a_week(lost_usd, own_usd=own_usd, own_hours=own_hours, rental_usd=rental_usd, lifetime_years=years)
    assert (hours is None) == (expected is None)
    if hours is not None and expected is not None:
        assert hours == pytest.approx(expected, abs=0.011)


def test_electricity_dearer_than_renting_never_pays():
    assert break_even_hours_a_week(1.0, own_usd=2.0, own_hours=1.0, rental_usd=1.0, lifetime_years=3) is None


def test_the_plan_pays_for_the_power_of_its_own_forecast():
    (own,) = [p for p in plan(own="rtx-4090").plans if p.offer.provider == "own"]
    chips_w = own.forecast.energy_j / own.forecast.step_time_s.value
    assert own.usd.value == pytest.approx((chips_w + 100) / 0.9 / 1000 * 0.17 * own.machine_hours)
    assert chips_w <= 450


def test_a_purchase_counts_and_break_even_is_against_each_rental():
    result = plan(own="rtx-4090:2", purchase="5k", limit=None)
    (whole,) = [m for m in result.at_hand if m.count == 2]
    assert whole.purchase_usd == 5000
    mine = next(p for p in result.plans if p.offer is whole.offer)
    lost = 5000 * (1 - kept_a_year("gpu-consumer") ** 4)
    assert mine.usd.value == pytest.approx(whole.break_even[0].own_usd + lost / (4 * 365 / 7 * 40) * mine.machine_hours)
    rented = {p.rank: p for p in result.plans if p.offer.terms in ("on-demand", "spot")}
    assert {row.rank for row in whole.break_even} == set(rented)
    for row in whole.break_even:
        saved = rented[row.rank].usd.value - row.own_usd
        hours = lost / saved * mine.hours / (4 * 365 / 7) if saved > 0 else 1e9
        assert row.hours_a_week == (pytest.approx(hours) if hours <= 168 else None)
    assert whole.to_dict()["break_even"][0]["rank"] == whole.break_even[0].rank


def test_break_even_is_known_against_every_offer_and_shown_against_the_cheapest_of_each_chip():
    few, all_of_them = (plan(own="rtx-4090:2", purchase="5k", limit=limit) for limit in (3, None))
    (machine,) = [m for m in few.at_hand if m.count == 2]
    rented = [p for p in all_of_them.plans if p.offer.terms in ("on-demand", "spot")]
    of_plans = {(p.device, p.count, p.offer.instance, p.offer.region, p.offer.terms): p.usd.value for p in rented}
    of_rows = {(row.device, row.count, row.instance, row.region, row.terms): row.usd for row in machine.break_even_offers}
    assert of_rows == pytest.approx(of_plans, rel=0.01)  # what few does not show is composed, not forecast exactly
    assert {row.rank for row in machine.break_even_offers} - {None} == {row.rank for row in machine.break_even}
    of_each = {row.device: row for row in cheapest_of_each_chip(machine.break_even_offers)}
    assert set(of_each) == {p.device for p in rented}
    for device, row in of_each.items():
        assert row.usd == pytest.approx(min(p.usd.value for p in rented if p.device == device), rel=0.01)
    assert len(few.to_dict()["at_hand"][1]["break_even_offers"]) == len(rented)


def test_a_price_of_the_catalog_has_the_computer_around_the_cards():
    result = plan(own="rtx-4090:2")
    (whole,) = [m for m in result.at_hand if m.count == 2]
    host = host_for(CATALOG.chip("rtx-4090"), 2)
    assert host is not None
    assert host.most_cards >= 2
    assert whole.purchase_usd == 2 * CATALOG.chip("rtx-4090").msrp_usd + host.usd


def test_a_file_of_costs(tmp_path):
    path = tmp_path / "costs.toml"
    path.write_text('electricity = 0.4\npue = 1.5\nlifetime_years = 5\n[machine."rtx-4090:2"]\npurchase = 4200\nresale = 0.3\n')
    costs, usd_per_kwh = costs_of(str(path), purchase_usd=None, machine_of=lambda name: ("rtx-4090", 2))
    assert usd_per_kwh == 0.4
    assert costs.of("rtx-4090", 2) == OwnedCosts(4200, pue=1.5, lifetime_years=5, resale_share=0.3)
    assert costs.of("rtx-4090", 1) == OwnedCosts(None, pue=1.5, lifetime_years=5)
    (own,) = [p for p in plan(own="rtx-4090", costs=str(path)).plans if p.offer.provider == "own"]
    chips_w = own.forecast.energy_j / own.forecast.step_time_s.value
    assert own.usd.value == pytest.approx((chips_w + 100) / 0.9 * 1.5 / 1000 * 0.4 * own.machine_hours)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("electricty = 0.4\n", "line 1: unknown key 'electricty'"),
        ("pue = 1.5\npurchase = -3\n", "line 2: purchase must be from 0"),
        ("pue = 0.5\n", "line 1: pue must be from 1"),
        ("pue = true\n", "line 1: pue must be a number"),
        ("hours_a_week = 200\n", "line 1: hours_a_week must be above 0 and at most 168"),
        ('[machine."rtx-4090:2"]\nresale = 2\n', "line 2: resale must be from 0 and at most 1"),
        ('[machine."rtx-9999"]\nresale = 0.2\n', "line 1: 'rtx-9999' is no machine: unknown chip"),
        ("machine = 3\n", "line 1: machine must hold tables"),
        ("pue = \n", "line 1: not valid TOML"),
        ("pue = nan\n", "line 1: pue must be a number, got nan"),
    ],
)
def test_mistakes_in_the_file_name_line_and_key(tmp_path, text, message):
    path = tmp_path / "costs.toml"
    path.write_text(text)
    with pytest.raises(FileFormatError, match=re.escape(message)) as raised:
        plan(own="rtx-4090", costs=str(path))
    assert raised.value.ways_out


def test_senseless_prices_and_missing_files_are_refused(tmp_path):
    for price in ("-5", "1e300", "cheap"):
        with pytest.raises(InputError):
            plan(own="rtx-4090", purchase=price)
    with pytest.raises(FileFormatError, match="cannot be read"):
        plan(own="rtx-4090", costs=str(tmp_path / "none.toml"))


def test_hosts_have_figures_that_can_be():
    for host in hosts().values():
        assert min(host.usd, host.host_w, host.most_cards) > 0
        assert 0.8 <= host.psu_efficiency < 1
        assert bool(host.source)
        assert set(host.assumed) <= {"usd", "host_w"}
    assert host_for(CATALOG.chip("h100-80gb-sxm"), 8).cooling == "module"
    assert host_for(CATALOG.chip("rtx-4090"), 8) is None
