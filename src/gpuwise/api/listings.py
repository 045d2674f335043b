"""The filtered contents of the catalog: chips, offers, and rows of price lists that give no offer, with the reason."""

from __future__ import annotations

from gpuwise.errors import unknown_name
from gpuwise.hardware import Chip, Offer, load_catalog, parse_filter
from gpuwise.hardware.filters import check_values
from gpuwise.results.listings import UnpricedOffer


def chips(filter: str = "") -> tuple[Chip, ...]:
    """Chips that pass a filter: "memory>=24GB kind=gpu-consumer". The id of a chip is that chip alone.

    Raises InputError or UnknownNameError.
    """
    catalog = load_catalog()
    if (exact := catalog.chips.get(filter.strip().lower())) is not None:
        return (exact,)
    chosen = parse_filter(filter)
    check_values(chosen, catalog.chips.values(), listing="gpuwise chips")
    matching = tuple(chip for chip in catalog.chips.values() if chosen.matches(chip))
    if not matching and chosen.bare:
        raise unknown_name("chip", " ".join(chosen.bare), list(catalog.chips), listing="gpuwise chips")
    return matching


def offers(filter: str = "", *, spot: bool = False) -> tuple[Offer, ...]:
    """Offers that pass a filter, cheapest a device first: "h100-sxm provider=aws".

    Raises InputError or UnknownNameError.
    """
    catalog = load_catalog()
    chosen = parse_filter(filter, offers=True)
    check_values(chosen, catalog.chips.values(), catalog.offer_rows, listing="gpuwise offers")
    passing = [offer for offer in catalog.offers if chosen.matches(catalog.chips.get(offer.chip_id), offer)]
    if not passing and chosen.bare and not unpriced_offers(filter):
        raise unknown_name("chip or provider", " ".join(chosen.bare), list(catalog.chips), listing="gpuwise offers")
    kept = [offer for offer in passing if offer.terms == "spot" or not spot]
    return tuple(sorted(kept, key=lambda o: (o.usd_per_device_hour, o.provider, o.instance, o.region)))


def unpriced_offers(filter: str = "") -> tuple[UnpricedOffer, ...]:
    """The rows without an offer that pass a filter, by provider. Raises InputError for an invalid filter."""
    catalog, chosen = load_catalog(), parse_filter(filter, offers=True)
    rows = [row for row in catalog.incomplete_offers if chosen.matches(catalog.chips.get(row.chip_id or ""), row)]
    offers_ = [
        UnpricedOffer(
            row.provider, row.instance, row.region, row.chip_id, row.values.get("count"), row.why_no_offer or "", row.source
        )
        for row in rows
    ]
    return tuple(sorted(offers_, key=lambda row: (row.provider, row.instance, row.region)))


def ignored_price_lists() -> tuple[str, ...]:
    """Why fetched price lists do not count: they are damaged, or of another version. Usually empty."""
    return load_catalog().ignored_lists
