"""Prices far below what a chip usually costs: found by one rule, marked where they decide, the best without them beside."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from statistics import median

import pytest
from test_plan_synthetic import offer, synthetic_source
from test_report_text import line, text

import gpuwise
from gpuwise.hardware import Catalog
from gpuwise.hardware.prices import OUTLIER_SHARE, is_outlier, median_prices, share_of_median
from gpuwise.plan import NothingInside, Request
from gpuwise.plan.file import load_plan, save_plan
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.plan.search import plan
from gpuwise.report.plan import plan_report

CATALOG = Catalog(user_files=())
MEDIANS = median_prices(CATALOG.offers)
T4 = MEDIANS["t4"]
REQUEST = Request(samples=10**9, global_batch=256)


def planned(*offers, request=REQUEST):
    return plan(StepTraces(synthetic_source(width=2048)), request, offers, CATALOG)


def test_the_median_is_of_todays_prices_on_demand_of_whole_devices():
    prices = [0.5, 0.6, 0.7]
    offers = [offer("t4", price) for price in prices]
    assert median_prices(offers) == {"t4": 0.6}
    more = [
        offer("t4", 0.1, terms="spot"),
        offer("t4", 0.0, terms="free"),
        replace(offer("t4", 9.0), stale=True),
        replace(offer("t4", 9.0), count=0.5),
        offer("xeon-8380", 3.0, count=0),
    ]
    assert median_prices(offers + more) == {"t4": 0.6}
    assert median_prices([*offers, offer("t4", 3.0, count=4)]) == {"t4": pytest.approx(0.65)}  # 0.75 a device
    assert median_prices(offers[:2]) == {}  # two prices make no median


def test_the_rule_over_the_catalog_by_hand():
    prices = defaultdict(list)
    for each in CATALOG.offers:
        if each.terms == "on-demand" and each.count >= 1 and not each.stale:
            prices[each.chip_id].append(each.usd_per_hour / each.count)
    rented = [each for each in CATALOG.offers if each.count and each.terms not in ("free", "owned")]
    known = [each for each in rented if len(prices[each.chip_id]) >= 3]
    odd = {each for each in known if each.usd_per_hour / each.count < median(prices[each.chip_id]) / 5}
    assert {each for each in CATALOG.offers if is_outlier(share_of_median(each, MEDIANS))} == odd
    named = {(each.provider, each.chip_id, each.terms) for each in odd}
    assert {
        ("nebius", "b300-288gb-sxm", "spot"),
        ("nebius", "h100-80gb-sxm", "spot"),
        ("vast", "v100-sxm2-16gb", "on-demand"),
    } <= named
    assert not any(each.provider in ("lambda", "crusoe") for each in odd)
    assert len(odd) < 0.1 * len(CATALOG.offers)


def test_what_is_not_rented_has_no_share():
    for each in (offer("t4", 0.0, terms="free"), offer("t4", 0.01, terms="owned"), offer("xeon-8380", 0.01, count=0)):
        assert share_of_median(each, MEDIANS) is None
    assert not is_outlier(None)
    assert share_of_median(offer("t4", T4 / 2), MEDIANS) == pytest.approx(0.5)
    assert share_of_median(offer("t4", T4, count=4), MEDIANS) == pytest.approx(0.25)


@pytest.mark.parametrize(("share", "odd"), [(0.9 * OUTLIER_SHARE, True), (1.1 * OUTLIER_SHARE, False)])
def test_the_threshold(share, odd):
    result = planned(offer("t4", share * T4), offer("rtx-4090", 50.0))
    assert result.best.device == "t4"
    assert result.best.price_outlier is odd
    assert (result.best_at_usual_price is not None) is odd


def test_a_first_plan_at_an_odd_price_is_marked_with_the_best_without_it():
    odd, usual, dear = offer("t4", 0.1 * T4, terms="spot"), offer("rtx-4090", 2.0), offer("h100-80gb-sxm", 30.0)
    result = planned(odd, usual, dear)
    best = result.best
    assert (best.device, best.price_outlier, best.price_of_median) == ("t4", True, pytest.approx(0.1))
    other = result.best_at_usual_price
    assert other is next(p for p in result.plans if not p.price_outlier)
    reason = next(each for each in best.reasons if "median" in each)
    assert "below a fifth of the chip's median on demand: counted at" in reason
    shown = text(plan_report(result), 160)
    assert "✓!" in line(shown, "t4", "spot")
    assert "! counted at a likely price: the listed one may not hold" in shown
    assert "if the listed price holds" in shown
    answer = json.loads(json.dumps(result.to_dict()))
    assert answer["plans"][0]["price_outlier"] is True
    assert answer["plans"][0]["price_of_median"] == pytest.approx(0.1)
    assert answer["best_at_usual_price"] == answer["plans"][other.rank - 1]


def test_usual_prices_are_not_marked():
    result = planned(offer("t4", T4), offer("rtx-4090", 2.0))
    assert result.best_at_usual_price is None
    assert result.to_dict()["best_at_usual_price"] is None
    assert not any("median" in reason for each in result.plans for reason in each.reasons)
    shown = text(plan_report(result), 160)
    assert "! counted" not in shown


def test_an_odd_price_further_down_is_marked_but_needs_no_other():
    result = planned(offer("t4", 0.0, terms="free"), offer("t4", 0.1 * T4))
    assert [each.price_outlier for each in result.plans] == [False, True]
    assert result.best_at_usual_price is None
    assert "2!" in line(text(plan_report(result), 160), "t4", "on-demand")


def test_the_best_without_it_is_in_the_table_whatever_the_limit():
    odd = [offer(chip, 0.05 * MEDIANS[chip]) for chip in ("t4", "l4", "a10", "rtx-a6000", "l40s")]
    result = planned(*odd, offer("rtx-4090", 50.0), request=replace(REQUEST, limit=3))
    assert len(result.plans) == 3
    assert result.best_at_usual_price in result.plans


def test_where_all_prices_are_odd_nothing_else_is_named():
    result = planned(offer("t4", 0.1 * T4))
    assert result.best_at_usual_price is None


def test_what_a_bought_machine_is_compared_with_is_no_odd_price():
    result = planned(offer("t4", 0.05 * T4), offer("t4", T4), request=replace(REQUEST, own=(("rtx-4090", 1),)))
    (machine,) = (each for each in result.at_hand if each.purchase_usd)
    assert "median" not in machine.rental


def test_an_error_that_names_an_odd_price_says_so():
    with pytest.raises(NothingInside, match=r"10 % of the chip's median price"):
        planned(offer("t4", 0.1 * T4), request=replace(REQUEST, budget_usd=0.01))


def test_a_plan_file_keeps_it(tmp_path):
    best = planned(offer("t4", 0.1 * T4)).best
    save_plan(best, tmp_path / "plan.toml")
    assert load_plan(tmp_path / "plan.toml") == best


def test_a_forecast_at_an_odd_price_says_so():
    result = gpuwise.forecast("gpt2", on="v100-sxm2-16gb:8")
    (price,) = (each for each in result.assumptions if each.startswith("price of"))
    assert "the cheapest on demand at 4 % of the chip's median price" in price
    usual = gpuwise.forecast("gpt2", on="h100-80gb-sxm")
    assert not any("median" in each for each in usual.assumptions)


def test_the_headline_of_the_readme():
    result = gpuwise.plan("llama3-8b", tokens=20 * 10**9, budget=20_000, deadline="30d")
    (cheap,) = [each for each in result.plans if (each.offer.provider, each.device) == ("nebius", "b300-288gb-sxm")]
    assert cheap.offer.terms == "spot"
    assert cheap.price_outlier
    assert cheap.price_of_median < 0.15
    assert cheap.usd.value > result.best.usd.value  # at the price that such machines usually have
    assert not result.best.price_outlier
    assert result.best_at_usual_price is None
