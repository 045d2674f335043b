"""TimeAndMoney: time and money of a plan, or of an option that may become one; and their description in a line."""

from __future__ import annotations

from typing import Protocol

from gpuwise.cost.forecast import Interval
from gpuwise.hardware.types import Offer
from gpuwise.units import format_duration, format_usd


class TimeAndMoney(Protocol):
    """What a plan, and an option before it is one, says of time and money. Attributes as of Plan."""

    @property
    def offer(self) -> Offer: ...
    @property
    def device(self) -> str: ...
    @property
    def count(self) -> float: ...
    @property
    def hours(self) -> float: ...
    @property
    def usd(self) -> Interval: ...
    @property
    def chance(self) -> float: ...
    @property
    def train_obstacle(self) -> str: ...
    @property
    def price_of_median(self) -> float | None: ...
    @property
    def price_outlier(self) -> bool: ...


def describe(plan: TimeAndMoney) -> str:
    """'8 × h100-80gb-sxm at lambda (gpu_8x_h100, on-demand): 12 h, $310'; an outlier of a price is explained."""
    offer = plan.offer
    price = f" at {plan.price_of_median:.0%} of the chip's median price" if plan.price_outlier else ""
    return (
        f"{plan.count:g} × {plan.device} at {offer.provider} ({instance_words(offer, plan.count)}, {offer.terms}): "
        f"{format_duration(plan.hours * 3600)}, {format_usd(plan.usd.value)}{price.replace('%', ' %')}"
    )


def instance_words(offer: Offer, count: float) -> str:
    """'gpu_8x_h100', or '4 × gpu_8x_h100' where several of an offer make up the devices."""
    rented = round(count / offer.devices)
    return f"{rented} × {offer.instance}" if rented > 1 else offer.instance
