"""The choice of offers from the settings of `plan`."""

from __future__ import annotations

from gpuwise.errors import InputError
from gpuwise.hardware import parse_filter
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.filters import Filter, check_values
from gpuwise.plan.buying.offer_choice import OfferChoice, read_discounts
from gpuwise.plan_settings import PlanSettings


def offer_choice(requested: PlanSettings, catalog: Catalog) -> OfferChoice:
    """Which offers are considered, and at which discounts.

    Raises InputError or UnknownNameError for a filter that cannot be read and for an unknown region, with the nearest names;
    FileFormatError for a file of discounts with a mistake.
    """
    where, region, path = requested.get("where"), requested.get("region"), requested.get("discounts")
    providers = {row.provider for row in catalog.offer_rows}
    return OfferChoice(
        where=None if where is None else _where(where, catalog),
        region=None if region is None else _region(region, catalog),
        region_name=region or "",
        train_only=requested.get("xla") is False,
        discounts={} if path is None else read_discounts(path, providers),
    )


def _where(text: str, catalog: Catalog) -> Filter:
    chosen = _filter(text, catalog)
    if not any(chosen.matches(catalog.chips.get(offer.chip_id), offer) for offer in catalog.offers):
        raise InputError(f"no offer satisfies --where {text!r}.", ["list all: gpuwise offers"])
    return chosen


def _filter(text: str, catalog: Catalog) -> Filter:
    if not text.strip():
        raise InputError("the filter of --where is empty.", ['--where "vendor=nvidia memory>=24GB"'])
    chosen = parse_filter(text, offers=True)
    check_values(chosen, catalog.chips.values(), catalog.offer_rows, listing="gpuwise offers")
    return chosen


def _region(name: str, catalog: Catalog) -> Filter:
    if len(name.split()) != 1:
        raise InputError(f"--region names one region, got {name!r}.", ["--region us-east-1"])
    return _filter(f"region={name}", catalog)
