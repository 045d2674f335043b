"""The usual price of a chip-hour, prices that are outliers, and how long each kind of price holds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from statistics import fmean, median

from gpuwise.hardware.providers import provider
from gpuwise.hardware.rows import latest_day
from gpuwise.hardware.types import Offer

# Below a fifth of the chip's median on demand a price is an outlier. Of today's spot prices, 40 % of that median in the middle,
# one in ten is: "from" prices, undated snapshots and marketplace asks.
OUTLIER_SHARE = 0.2
LEAST_PRICES = 3  # that make a median
_RENTED = ("on-demand", "spot", "reserved-1y", "reserved-3y")

# Kinds of prices and the days after which little of a listed price is left (the time constant of an exponential). Guesses:
# no provider states one, except the 15 minutes of Nebius. Google's documentation of Spot VMs said at most
# once in 30 days, hosts on Vast.ai reprice daily, and price lists change about once a year (AWS's cut of
# P5 prices in June 2025, Nebius' rise of October 2026).
PRICE_KINDS = {"published": 365.0, "spot": 30.0, "marketplace": 1.0, "from": 15 / 60 / 24}
PUBLISHED_SPREAD = 0.3  # standard deviation of the logarithm of a list's price after years: of the size of those changes
GRACE_DAYS = 92.0  # a published price up to a quarter old is today's
# What machines of a marketplace usually cost, as a share of the chip's median on demand: 0.68 to 0.72 by the index of
# ccir.io of 2026-05-13 for the lowest of its three tiers of providers (H100 $2.72, H200 $3.44, B200 $4.89 an hour).
MARKETPLACE_SHARE = 0.7
UNKNOWN_RISE = 1.4  # usual over lowest ask where a chip has no median: the middle of 1.04 to 1.54 of the same index


def median_prices(offers: Iterable[Offer]) -> dict[str, float]:
    """By chip, the median price of a device-hour on demand, in dollars: today's prices of whole devices. Chips with fewer
    than LEAST_PRICES have none, and CPUs, whose instances rent a part of one.

    A fetched list has an instance in each of many regions, which count as one price: their median.
    """
    prices: dict[str, list[float]] = defaultdict(list)
    fetched: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for offer in offers:
        if offer.terms == "on-demand" and offer.count >= 1 and not offer.stale:
            if offer.source_of("usd_per_hour").digest is None:
                prices[offer.chip_id].append(offer.usd_per_device_hour)
            else:
                fetched[offer.chip_id, offer.provider, offer.instance].append(offer.usd_per_device_hour)
    for (chip_id, _, _), regions in fetched.items():
        prices[chip_id].append(median(regions))
    return {chip_id: median(values) for chip_id, values in prices.items() if len(values) >= LEAST_PRICES}


def share_of_median(offer: Offer, medians: Mapping[str, float]) -> float | None:
    """An offer's price over its chip's median; None where it is not rented or the chip has no median."""
    usual = medians.get(offer.chip_id)
    if usual is None or offer.terms not in _RENTED or not offer.count:
        return None
    return offer.usd_per_device_hour / usual


def is_outlier(share: float | None) -> bool:
    """Whether a share of the median is out of line; an unknown one is not."""
    return share is not None and share < OUTLIER_SHARE


def price_kind(offer: Offer) -> str | None:
    """One of PRICE_KINDS; None for what is not rented, and for reservations, whose price is agreed."""
    if offer.terms not in ("on-demand", "spot"):
        return None
    default = "spot" if offer.terms == "spot" else "published"
    return provider(offer.provider).price_kinds.get(offer.terms, default)


@dataclass(frozen=True, eq=False)
class UsualPrices:
    """What a device-hour usually costs, from all offers of the catalog.

    Attributes:
        on_demand: median by chip, in dollars.
        spot: spot prices of a device-hour by chip and provider, without "from" prices and marketplaces.
        spot_share: median of spot prices as shares of their chips' medians on demand.
        spread: standard deviation of the logarithm of one chip's price over providers.
        own_on_demand: lowest price of a device-hour on demand by provider and chip.
        today: the day from which ages count.
    """

    on_demand: Mapping[str, float]
    spot: Mapping[str, Mapping[str, float]]
    spot_share: float
    spread: float
    own_on_demand: Mapping[tuple[str, str], float]
    today: date = field(default=date.min)

    @classmethod
    def of(cls, offers: Sequence[Offer], *, today: date) -> UsualPrices:
        """The usual prices of a catalog's offers."""
        medians = median_prices(offers)
        by_chip: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        listed: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        shares = []
        for offer in offers:
            if offer.count < 1 or offer.stale or offer.terms not in ("on-demand", "spot"):
                continue
            each, kind = offer.usd_per_device_hour, price_kind(offer)
            if offer.terms == "on-demand":
                listed[offer.chip_id][offer.provider].append(each)
            elif kind == "spot":
                by_chip[offer.chip_id][offer.provider].append(each)
                if offer.chip_id in medians:
                    shares.append(each / medians[offer.chip_id])
        spot = {chip: {name: median(prices) for name, prices in rows.items()} for chip, rows in by_chip.items()}
        own = {(name, chip): min(prices) for chip, rows in listed.items() for name, prices in rows.items()}
        groups = [[math.log(median(prices)) for prices in rows.values()] for rows in listed.values()]
        return cls(medians, spot, median(shares or [1.0]), _pooled_deviation(groups), own, today)

    def usual(self, offer: Offer) -> float | None:
        """What such a device-hour usually costs, in dollars, judged by others than this offer's provider; None if unknown.

        On demand, the chip's median. For a marketplace, MARKETPLACE_SHARE of it. For spot, the geometric mean of the chip's
        spot prices at other providers and of spot_share of its median on demand, which counts as one more provider.
        """
        if not offer.count:
            return None
        median_usd, kind = self.on_demand.get(offer.chip_id), price_kind(offer)
        if kind == "marketplace":
            return None if median_usd is None else MARKETPLACE_SHARE * median_usd
        if offer.terms == "on-demand":
            return median_usd
        rows = self.spot.get(offer.chip_id, {})
        prices = [each for name, each in rows.items() if name != offer.provider]
        if median_usd is not None:
            prices.append(self.spot_share * median_usd)
        return math.exp(fmean(math.log(each) for each in prices)) if prices else None

    def age_days(self, as_of: str) -> float:
        """Days since the date of a price; of a range, since its middle."""
        first, last = _earliest_day(as_of), latest_day(as_of)
        if first is None or last is None:
            return 0.0
        last = min(last, self.today)
        return max(0.0, (self.today - last).days + max(0, (last - first).days) / 2)


def _pooled_deviation(groups: Iterable[Sequence[float]]) -> float:
    """The standard deviation within groups, pooled over them; 0 where no group has two values."""
    squares, freedom = 0.0, 0
    for values in groups:
        middle = fmean(values)
        squares += sum((value - middle) ** 2 for value in values)
        freedom += len(values) - 1
    return math.sqrt(squares / freedom) if freedom else 0.0


def _earliest_day(as_of: str) -> date | None:
    """The first day that a date or range can mean."""
    year, month, day = ([int(part) for part in as_of.split("..")[0].split("-") if part] + [0, 0, 0])[:3]
    return date(year, month or 1, day or 1) if year else None
