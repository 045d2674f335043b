"""Listed prices that may not hold: the likely price against the formula by hand and against random draws."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import date
from itertools import pairwise

import numpy as np
import pytest
from test_plan_synthetic import offer

from gpuwise.hardware import Catalog
from gpuwise.hardware.prices import PRICE_KINDS, UsualPrices, price_kind
from gpuwise.hardware.providers import providers
from gpuwise.hardware.types import Source
from gpuwise.plan.economics.likely_price import DAY_S, PriceLaw, likely_price, likely_prices, likely_usd

CATALOG = Catalog(user_files=())
MARKET = UsualPrices.of(CATALOG.offers, today=CATALOG.today)
TODAY = Source("a test", MARKET.today.isoformat())


def hour(each, days):
    return likely_price(each, MARKET, run_s=days * DAY_S).usd_per_hour


def test_the_kinds_of_prices():
    assert price_kind(offer("t4")) == "published"
    assert price_kind(offer("t4", terms="spot")) == "spot"
    assert price_kind(offer("t4", terms="spot", provider="nebius")) == "from"
    assert price_kind(offer("t4", provider="vast")) == "marketplace"
    for terms in ("reserved-1y", "owned", "free"):
        assert price_kind(offer("t4", terms=terms)) is None
    assert {kind for each in providers().values() for kind in each.price_kinds.values()} <= set(PRICE_KINDS)
    assert set(providers()) <= {row.provider for row in CATALOG.offer_rows}


def test_a_price_of_this_quarter_holds_for_a_day():
    each = replace(offer("t4", 0.4), source=TODAY)
    likely = likely_price(each, MARKET, run_s=DAY_S)
    assert likely.usd_per_hour.value == pytest.approx(0.4, rel=0.01)
    assert likely.note is None


def test_a_price_that_changes_every_15_minutes_holds_for_minutes_not_for_weeks():
    each = replace(offer("b300-288gb-sxm", 2.0, terms="spot", provider="nebius"), source=TODAY)
    usual = MARKET.usual(each)
    assert hour(each, 1 / 1440).value == pytest.approx(2.0, rel=0.05)
    assert hour(each, 17).value == pytest.approx(usual, rel=0.01)
    prices = [hour(each, days).value for days in (0.001, 0.01, 0.1, 1, 10)]
    assert prices == sorted(prices)


def test_the_formula_by_hand():
    each = replace(offer("h100-80gb-sxm", 2.0, terms="spot"), source=Source("a test", "2026-10-10"))  # 30 days before 11-09
    assert MARKET.today == date(2026, 11, 9)
    left = math.exp(-1) * (1 - math.exp(-2)) / 2  # 30 days old, a run of 60, a time constant of 30
    usual = MARKET.usual(each)
    assert hour(each, 60).value == pytest.approx(2.0**left * usual ** (1 - left))
    high = hour(each, 60).value * math.exp(1.6449 * MARKET.spread * math.sqrt(1 - left**2))
    assert hour(each, 60).high == pytest.approx(high, rel=1e-3)


def test_the_mean_of_the_logarithm_is_that_of_simulated_prices():
    """Ornstein-Uhlenbeck paths by small steps; their averages over the run."""
    rng = np.random.default_rng(0)
    tau, run, steps, paths = 30.0, 45.0, 900, 4000
    x = np.full(paths, math.log(1.0 / 3.0))  # of the listed price over the usual one
    mean, step = np.zeros(paths), run / steps
    for _ in range(steps):
        mean += x / steps
        x += -x * step / tau + 0.3 * math.sqrt(2 * step / tau) * rng.standard_normal(paths)
    value, _, _ = likely_usd(run, start_usd=1.0, usual_usd=3.0, hold_s=tau, left=1.0, spread=0.3)
    assert 3.0 * math.exp(mean.mean()) == pytest.approx(float(value), rel=0.02)


def test_spot_is_judged_by_other_providers_and_by_the_usual_discount():
    each = offer("b300-288gb-sxm", 0.99, terms="spot", provider="nebius")
    (coreweave,) = (o for o in CATALOG.offers if (o.provider, o.chip_id, o.terms) == ("coreweave", each.chip_id, "spot"))
    discounted = MARKET.spot_share * MARKET.on_demand[each.chip_id]
    assert MARKET.usual(each) == pytest.approx(math.sqrt(coreweave.usd_per_device_hour * discounted))


def test_bounds_over_the_catalog():
    for each in CATALOG.offers:
        likely = likely_price(each, MARKET, run_s=5 * DAY_S)
        low, value, high = likely.usd_per_hour.low, likely.usd_per_hour.value, likely.usd_per_hour.high
        assert low <= each.usd_per_hour <= value * (1 + 1e-9)
        assert value <= high
        own = MARKET.own_on_demand.get((each.provider, each.chip_id))
        if each.terms == "spot" and own is not None and each.count >= 1:
            assert high <= max(own * each.devices, each.usd_per_hour) * (1 + 1e-9)
        assert (likely.note is not None) == (value > 1.05 * each.usd_per_hour > 0 and price_kind(each) is not None)


@pytest.mark.parametrize("provider", ["somewhere", "nebius", "vast"])
@pytest.mark.parametrize("terms", ["on-demand", "spot"])
def test_a_lower_listed_price_is_never_a_higher_likely_one(provider, terms):
    prices = [hour(offer("t4", usd, terms=terms, provider=provider), 3).value for usd in np.geomspace(0.001, 10, 60)]
    assert all(a <= b * (1 + 1e-12) for a, b in pairwise(prices))


def test_arrays_give_what_single_prices_give():
    offers = CATALOG.offers[::7]
    laws = [PriceLaw.of(each, MARKET) for each in offers]
    columns = {name: [getattr(law, name) for law in laws] for name in ("start_usd", "usual_usd", "hold_s", "left", "spread")}
    values, _, _ = likely_usd(2 * DAY_S, **columns)
    prices = likely_prices(offers, MARKET, run_s=[2 * DAY_S] * len(offers))
    assert [price.usd_per_hour for price in prices] == [hour(each, 2) for each in offers]
    for each, law, value in zip(offers, laws, values, strict=True):
        assert hour(each, 2).value == pytest.approx(min(value, law.most_usd))


def test_a_chip_without_a_median_is_judged_by_the_listed_price_alone():
    assert "k80-die" in CATALOG.chips
    law = PriceLaw.of(replace(offer("no-such-chip", 1.0, provider="vast"), source=TODAY), MARKET)
    assert (law.start_usd, law.usual_usd) == (1.0, 1.4)
    assert PriceLaw.of(offer("no-such-chip", 1.0), MARKET).usual_usd == 1.0
