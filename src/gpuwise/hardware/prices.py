"""The usual price of a chip-hour, and prices that are outliers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import median

from gpuwise.hardware.types import Offer

# Below a fifth of the chip's median on demand a price is an outlier. Of today's spot prices, 40 % of that median in the middle,
# one in ten is: "from" prices, undated snapshots and marketplace asks.
OUTLIER_SHARE = 0.2
LEAST_PRICES = 3  # that make a median
_RENTED = ("on-demand", "spot", "reserved-1y", "reserved-3y")


def median_prices(offers: Iterable[Offer]) -> dict[str, float]:
    """By chip, the median price of a device-hour on demand, in dollars: today's prices of whole devices. Chips with fewer
    than LEAST_PRICES have none, and CPUs, whose instances rent a part of one."""
    prices: dict[str, list[float]] = defaultdict(list)
    for offer in offers:
        if offer.terms == "on-demand" and offer.count >= 1 and not offer.stale:
            prices[offer.chip_id].append(offer.usd_per_device_hour)
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
