"""The figures of collectives, and whose bandwidth a link of the catalog is."""

from __future__ import annotations

import pytest

from gpuwise.cost.network.figures import network_figures, technology_of
from gpuwise.hardware import Catalog
from gpuwise.hardware.types import FABRICS

CATALOG = Catalog()
FIGURES = network_figures()
LINKS = list(CATALOG.links.values())


@pytest.mark.parametrize("link", LINKS, ids=lambda link: link.id)
def test_each_link_has_figures_and_says_whose_bandwidth_it_has(link):
    assert technology_of(link) in FIGURES
    assert link.technology
    assert link.fabric in FABRICS
    if link.kind == "scale-out":
        assert link.serves in ("port", "machine")
        assert link.fabric == "network"
        assert ("node" in (link.notes or "").lower() or "host" in (link.notes or "").lower()) or link.serves == "port"
    else:
        assert link.serves == "device"


@pytest.mark.parametrize("figures", FIGURES.values(), ids=list(FIGURES))
def test_figures_are_plausible(figures):
    assert 0.3 <= figures.efficiency <= 1
    assert 0 <= figures.own_part <= 1.5
    assert 0.3 <= figures.crowded <= 1
    assert 0.3 <= figures.direct <= 1
    assert 0 <= figures.in_switch_efficiency <= 1
    assert figures.source
    assert figures.basis in ("fitted", "published", "assumed")
    first, _, last = figures.protocols
    assert last.share == 1
    assert 0 < first.share <= 1
    assert all(1e-6 <= p.call_s <= 5e-5 and 1e-7 <= p.hop_s <= 5e-4 for p in figures.protocols)


def test_spreads_hold_the_forecast_and_are_wider_where_nobody_measured():
    assert all(0.4 < f.spread[0] < 1.05 and 0.95 < f.spread[1] < 3 for f in FIGURES.values())
    widths = {name: f.spread[1] / f.spread[0] for name, f in FIGURES.items()}
    assumed = [name for name, f in FIGURES.items() if f.basis == "assumed"]
    assert max(widths["nvlink"], widths["nvlink-2"], widths["infiniband"]) < min(widths[name] for name in assumed)


def test_an_offers_network_is_that_of_its_link():
    for offer in CATALOG.offers:
        link = CATALOG.links.get(offer.network_link_id or "")
        if link is not None and offer.network_bytes_per_s and link.id.startswith(("efa", "azure", "gcp")):
            assert link.per_direction_bytes_per_s == pytest.approx(offer.network_bytes_per_s, rel=0.26), offer.instance
