"""Rows that passed the gates, as the kept file has them and back."""

from __future__ import annotations

from collections.abc import Iterable

from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.refreshed import RefreshedList
from gpuwise.json_types import JsonObject
from gpuwise.refresh.listed import number, text
from gpuwise.refresh.outcome import KeyedPrices, PriceMove, moves
from gpuwise.refresh.row_gates import ListedOffer

PRICE_COLUMNS = {"on-demand": "on_demand_usd_per_hour", "spot": "spot_usd_per_hour"}  # of the catalog's files


def table_of(offer: ListedOffer) -> JsonObject:
    """The row under the names of the catalog's columns."""
    host: dict[str, int | float | None] = {"vcpus": offer.vcpus, "host_memory_gib": offer.host_memory_gib}
    prices = {PRICE_COLUMNS[terms]: usd for terms, usd in offer.prices().items()}
    stated = {name: value for name, value in host.items() if value is not None}
    return {"instance": offer.instance, "region": offer.region, "chip": offer.chip_id, "count": offer.count, **stated, **prices}


def offers_of(kept: RefreshedList | None) -> list[ListedOffer]:
    """The rows of a kept list, as they passed the gates; none of no list."""
    return [] if kept is None else [_offer(kept.provider, row) for row in kept.offers]


def _offer(provider: str, row: JsonObject) -> ListedOffer:
    return ListedOffer(
        provider,
        text(row.get("instance")),
        text(row.get("region")),
        text(row.get("chip")),
        number(row.get("count")) or 1.0,
        number(row.get(PRICE_COLUMNS["on-demand"])),
        number(row.get(PRICE_COLUMNS["spot"])),
    )


def prices_of(offers: Iterable[ListedOffer]) -> KeyedPrices:
    """The prices of rows, by key."""
    return [(offer.key, offer.prices()) for offer in offers]


def shipped_prices(shipped: Catalog, provider: str) -> KeyedPrices:
    """The prices of a provider in the shipped catalog, of the terms that lists have."""
    rows = (row for row in shipped.offer_rows if row.provider == provider)
    return [
        ((row.provider, row.instance, row.region), {terms: usd for terms, usd in row.prices.items() if terms in PRICE_COLUMNS})
        for row in rows
    ]


def moves_from_shipped(kept: RefreshedList, shipped: Catalog) -> tuple[PriceMove, ...]:
    """Prices of a kept list that differ from the shipped ones of the same rows."""
    own = prices_of(offers_of(kept))
    keys = {key for key, _ in own}
    before = [(key, prices) for key, prices in shipped_prices(shipped, kept.provider) if key in keys]
    return tuple(move for move in moves(before, own) if move.change is not None)
