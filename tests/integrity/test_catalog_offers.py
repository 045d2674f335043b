"""The catalog's price lists, apart from the code that reads them. A known exception carries a caveat in the data."""

from collections import defaultdict
from statistics import median

import pytest

from gpuwise.hardware import Catalog, link_between, link_inside, machine_of
from gpuwise.hardware.rows import latest_day

CATALOG = Catalog()
ROWS = CATALOG.offer_rows
PAID = [offer for offer in CATALOG.offers if offer.terms != "free"]
PER_GPU = [offer for offer in PAID if offer.count]


def title(item):
    return f"{item.provider} {item.instance} {item.region} {getattr(item, 'terms', '')}".strip()


def test_counts():
    assert len(ROWS) == 367
    assert len({(row.provider, row.instance, row.region) for row in ROWS}) == 367
    assert {row.provider for row in ROWS} == {
        "aws",
        "azure",
        "gcp",
        "lambda",
        "coreweave",
        "runpod",
        "vast",
        "nebius",
        "crusoe",
        "hyperstack",
        "paperspace",
        "colab",
        "kaggle",
    }


def test_rows_without_offer_say_why():
    reasons = defaultdict(int)
    for row in CATALOG.incomplete_offers:
        reasons[row.why_no_offer.split(";")[0]] += 1
    assert reasons == {
        "no price": 8,
        "its chip is not in the catalog": 3,
        "number of devices unknown": 1,
        "price of the accelerators only": 3,
    }


@pytest.mark.parametrize("row", ROWS, ids=title)
def test_prices_have_source_and_date(row):
    for terms in row.prices:
        source = row.sources.get(terms, row.source)
        assert source.text.strip()
        assert latest_day(source.as_of) is not None


@pytest.mark.parametrize("row", ROWS, ids=title)
def test_spot_is_not_above_on_demand(row):
    prices = row.prices
    for cheaper in ("spot", "reserved-1y", "reserved-3y"):
        if cheaper in prices and "on-demand" in prices:
            assert prices[cheaper] <= prices["on-demand"]


@pytest.mark.parametrize("offer", PER_GPU, ids=title)
def test_price_of_a_device_hour_is_sane(offer):
    assert 0 < offer.usd_per_device_hour < 50


def test_price_is_within_five_times_of_the_chips_median():
    by_chip = defaultdict(list)
    for offer in PER_GPU:
        by_chip[offer.chip_id].append(offer.usd_per_device_hour)
    out_of_line = set()
    for offer in PER_GPU:
        middle = median(by_chip[offer.chip_id])
        if not middle / 5 <= offer.usd_per_device_hour <= middle * 5:
            out_of_line.add(title(offer))
    assert out_of_line == {title(offer) for offer in PER_GPU if offer.terms in offer.caveats}


def test_free_tiers_have_their_quotas():
    free = {
        offer.instance: (offer.max_session_hours, offer.hours_per_week) for offer in CATALOG.offers if offer.terms == "free"
    }
    assert free == {
        "Colab free T4": (12, None),
        "Colab free TPU v5e-1": (12, None),
        "Kaggle P100": (12, 30),
        "Kaggle T4x2": (12, 30),
        "Kaggle TPU v3-8": (9, 20),
    }


def test_no_paid_price_is_zero_and_no_paid_offer_is_limited():
    assert all(offer.usd_per_hour > 0 for offer in PAID)
    assert all(offer.hours_per_week is None for offer in PAID)


def test_stale_prices_are_marked():
    stale = {offer.instance for offer in CATALOG.offers if offer.stale}
    assert "Standard_NC6" in stale  # 2024
    assert "p5.48xlarge" not in stale
    v100 = [o for o in CATALOG.offers if o.instance == "Standard_NC6s_v3"]
    assert {o.terms: o.stale for o in v100} == {"on-demand": False, "spot": True}  # the spot price is of 2024


def test_slices_dies_and_pods_are_counted_as_sold():
    rows = {row.instance: row for row in ROWS}
    assert rows["g6f.large"].values["count"] == 0.125
    assert rows["p2.xlarge"].chip_id == "k80-die"
    assert rows["v5p-8"].values["count"] == 4  # names count cores, of which two work as one device


def test_chips_of_several_devices_are_counted_as_devices():
    """Chips and cores of an instance: cloud.google.com/tpu/docs/v2 and v3; aws.amazon.com/ec2/instance-types, inf1 to trn2."""
    rows = {row.instance: row for row in ROWS}
    counts = {
        "v2-8": 8,
        "v3-8": 8,
        "v3-2048": 2048,
        "v4-8": 4,
        "Kaggle TPU v3-8": 8,
        "Colab free TPU v5e-1": 1,
        "inf1.xlarge": 4,
        "inf1.24xlarge": 64,
        "inf2.xlarge": 2,
        "inf2.48xlarge": 24,
        "trn1.2xlarge": 2,
        "trn1.32xlarge": 32,
        "trn2.48xlarge": 64,
        "trn2.3xlarge": 4,
        "p2.16xlarge": 16,
        "g3.16xlarge": 4,
    }
    assert {name: rows[name].values["count"] for name in counts} == counts
    (v3,) = [offer for offer in CATALOG.offers if offer.instance == "v3-8" and offer.terms == "on-demand"]
    assert v3.usd_per_device_hour == pytest.approx(1.0)  # a chip 2.00 dollars
    assert machine_of(v3, catalog=CATALOG).count == 8


@pytest.mark.parametrize("offer", CATALOG.offers, ids=title)
def test_links_of_offers(offer):
    inside = link_inside(offer, offer.count, catalog=CATALOG)
    if offer.count <= 1:
        assert inside is None
    elif "PCIe" in (offer.interconnect or ""):
        assert inside.kind == "host"
    between = link_between(offer, catalog=CATALOG)
    assert between is None or between.per_direction_bytes_per_s > 0
    assert machine_of(offer, catalog=CATALOG).count > 0
