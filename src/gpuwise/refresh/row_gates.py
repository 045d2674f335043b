"""The gates that each row of a list passes or stays outside of, with the reason."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gpuwise.hardware.pricelist import OfferRow
from gpuwise.hardware.types import Chip, Offer
from gpuwise.refresh.chip_names import KnownInstance, RowRefused, chip_and_count, known_instances
from gpuwise.refresh.listed import ListedRow

MOST_SPOT_SHARE = 1.05  # of the price on demand; lists round
MOST_OF_DEAREST = (
    10.0  # times the dearest price of a device-hour that the catalog has: Google's file has $700 where it has none
)
MOST_DEVICES = 1024.0
LEAST_USD, MOST_USD = 1e-4, 1e6  # of the catalog's own columns


@dataclass(frozen=True)
class ListedOffer:
    """A row that passed: prices in dollars an hour of the whole row; None where the list has no such price.

    Attributes:
        provider, instance, region: in the list's words.
        chip_id: of the catalog.
        count: devices of the row.
    """

    provider: str
    instance: str
    region: str
    chip_id: str
    count: float
    on_demand_usd: float | None
    spot_usd: float | None
    vcpus: int | None = None
    host_memory_gib: float | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        return self.provider, self.instance, self.region

    def prices(self) -> dict[str, float]:
        """By kind of terms."""
        prices = {"on-demand": self.on_demand_usd, "spot": self.spot_usd}
        return {terms: usd for terms, usd in prices.items() if usd is not None}


@dataclass(frozen=True)
class Quarantined:
    """Rows of a list that are not taken.

    Attributes:
        row: instance in the list's words.
        why: the reason.
        rows: number of rows (regions, zones) with this instance and reason.
    """

    row: str
    why: str
    rows: int = 1


@dataclass(frozen=True)
class Yardstick:
    """What rows are judged by: the catalog as shipped.

    Attributes:
        chips: by id.
        instances: what the catalog knows instances to have.
        dearest, cheapest: price of a device-hour by chip and terms, in dollars; cheapest of today's prices alone.
    """

    chips: Mapping[str, Chip]
    instances: Mapping[tuple[str, str], KnownInstance]
    dearest: Mapping[tuple[str, str], float]
    cheapest: Mapping[tuple[str, str], float]

    @classmethod
    def of(cls, chips: Mapping[str, Chip], rows: Iterable[OfferRow], offers: Iterable[Offer]) -> Yardstick:
        """From a catalog's chips, rows and offers."""
        dearest: dict[tuple[str, str], float] = {}
        cheapest: dict[tuple[str, str], float] = {}
        for offer in offers:
            if offer.terms in ("on-demand", "spot") and offer.count >= 1:
                key, each = (offer.chip_id, offer.terms), offer.usd_per_device_hour
                dearest[key] = max(each, dearest.get(key, 0.0))
                if not offer.stale:
                    cheapest[key] = min(each, cheapest.get(key, math.inf))
        return cls(chips, known_instances(rows), dearest, cheapest)


def gated(rows: Iterable[ListedRow], by: Yardstick) -> tuple[list[ListedOffer], list[Quarantined]]:
    """The rows that pass, one a key, and those that do not, counted by instance and reason."""
    offers: dict[tuple[str, str, str], ListedOffer] = {}
    refused: Counter[tuple[str, str]] = Counter()
    for row in rows:
        try:
            offer, reasons = _passed(row, by)
            earlier = offers.get(offer.key)
            if earlier is not None and (earlier.chip_id, earlier.count) != (offer.chip_id, offer.count):
                raise RowRefused(f"one name for two machines: {earlier.count:g} x {earlier.chip_id} stands in the list, too")
            offers[offer.key] = offer if earlier is None else _merged(earlier, offer)
        except RowRefused as refusal:
            reasons = [str(refusal)]
        for why in reasons:
            refused[(row.instance or "(no instance)", why)] += 1
    spotless, dropped = _spot_checked(offers.values())
    refused.update(dropped)
    return spotless, [Quarantined(row, why, count) for (row, why), count in sorted(refused.items())]


def _passed(row: ListedRow, by: Yardstick) -> tuple[ListedOffer, list[str]]:
    """The offer of a row, and why one of its prices is left out. Raises RowRefused where nothing of it is taken."""
    if not row.instance:
        raise RowRefused("it has no name")
    if row.partial:
        raise RowRefused(row.partial)
    if row.currency != "USD":
        raise RowRefused(f"its currency is {row.currency or 'not stated'}, not USD")
    chip_id, count = chip_and_count(row, chips=by.chips, instances=by.instances)
    if not 0 < count <= MOST_DEVICES or (count >= 1 and count != int(count)):
        raise RowRefused(f"{count:g} is no number of devices")
    prices: dict[str, float] = {}
    reasons = []
    for terms, usd in row.usd.items():
        most = (
            MOST_OF_DEAREST * by.dearest.get((chip_id, terms), by.dearest.get((chip_id, "on-demand"), math.inf)) * max(count, 1)
        )
        if usd <= 0 and terms == "on-demand":
            raise RowRefused(f"on-demand price {usd:.2f}: unknown, not free")
        if usd <= 0:
            reasons.append(f"{terms} price {usd:.2f}: unknown, not free")
        elif not LEAST_USD <= usd <= min(most, MOST_USD):
            reasons.append(f"{terms} price {usd:g}: a placeholder, of the size of no price of {chip_id}")
        else:
            prices[terms] = usd
    if not prices:
        raise RowRefused(reasons[0] if reasons else "it has no price")
    host = row.host_memory_gib
    return (
        ListedOffer(
            row.provider,
            f"{count:g}x-{chip_id}" if row.by_chip else row.instance,
            row.region,
            chip_id,
            count,
            prices.get("on-demand"),
            prices.get("spot"),
            vcpus=round(row.vcpus) if row.vcpus is not None and 1 <= row.vcpus <= 1e6 else None,
            host_memory_gib=host if host is not None and 0.1 <= host <= 1e7 else None,
        ),
        reasons,
    )


def _merged(first: ListedOffer, other: ListedOffer) -> ListedOffer:
    """Two rows of one key: zones of a region, asks of a marketplace, prices of either kind. The lower price counts."""
    cheaper = first
    if other.on_demand_usd is not None and (first.on_demand_usd is None or other.on_demand_usd < first.on_demand_usd):
        cheaper = other
    on_demand = [usd for usd in (first.on_demand_usd, other.on_demand_usd) if usd is not None]
    spot = [usd for usd in (first.spot_usd, other.spot_usd) if usd is not None]
    return replace(cheaper, on_demand_usd=min(on_demand, default=None), spot_usd=min(spot, default=None))


def _spot_checked(offers: Iterable[ListedOffer]) -> tuple[list[ListedOffer], Counter[tuple[str, str]]]:
    """Offers without spot prices above those on demand, after rows of both kinds have met."""
    kept: list[ListedOffer] = []
    dropped: Counter[tuple[str, str]] = Counter()
    for offer in offers:
        on_demand, spot = offer.on_demand_usd, offer.spot_usd
        if on_demand is not None and spot is not None and spot > MOST_SPOT_SHARE * on_demand:
            dropped[(offer.instance, f"spot price {spot:g} above {on_demand:g} on demand")] += 1
            offer = replace(offer, spot_usd=None)
        kept.append(offer)
    return kept, dropped
