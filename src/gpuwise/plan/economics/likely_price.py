"""The price that a run will likely pay: a listed price that may not hold is a distribution, not a number.

Model: the logarithm of a price returns to what such machines usually cost, exponentially with the time constant of its kind
of price (an Ornstein-Uhlenbeck process). A run of T seconds that starts `age` after the listing pays on average the listed
price to the power w times the usual price to the power 1 - w, with

    w = exp(-age / τ) · (τ / T) (1 - exp(-T / τ)).

Its logarithm has the standard deviation σ sqrt(1 - w²), with σ the spread of one chip's price over providers. The likely
price is this distribution's median, never below the listed price; its high end is never above the provider's own price on
demand, which the user can take instead. A listed price below OUTLIER_SHARE of the chip's median counts as that share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuwise.cost.forecast import Interval
from gpuwise.hardware.prices import GRACE_DAYS, OUTLIER_SHARE, PRICE_KINDS, UNKNOWN_RISE, UsualPrices, price_kind
from gpuwise.hardware.types import Offer
from gpuwise.notes import Note
from gpuwise.notes.price import likely_price as likely_price_note
from gpuwise.plan.economics.terms import Z_90

DAY_S = 86400.0
TELLING = 1.05  # a likely price this far above the listed one is explained


@dataclass(frozen=True)
class LikelyPrice:
    """What an hour of a machine costs, as listed and as it will likely be paid on average over a run.

    Attributes:
        listed_usd: dollars an hour as listed.
        usd_per_hour: the likely dollars an hour, with their 90 % interval.
        kind: one of gpuwise.hardware.prices.PRICE_KINDS; None for a price that is not a market's.
        note: why the listed price may not hold; None where it holds.
    """

    listed_usd: float
    usd_per_hour: Interval
    kind: str | None = None
    note: Note | None = None


@dataclass(frozen=True)
class PriceLaw:
    """How an offer's price goes on from its listing: the columns that the likely price of any length of run follows from.

    Attributes:
        listed_usd: dollars an hour of the machine as listed.
        start_usd: the listed price, or OUTLIER_SHARE of the chip's median if that is higher.
        usual_usd: what such machines usually cost; at least start_usd.
        hold_s: time constant τ; infinite for a price that holds.
        left: exp(-age / τ), the share of the listed price that is left today.
        most_usd: the provider's own price on demand; infinite where unknown.
        spread: σ.
    """

    listed_usd: float
    start_usd: float
    usual_usd: float
    hold_s: float = math.inf
    left: float = 1.0
    most_usd: float = math.inf
    spread: float = 0.0

    @classmethod
    def of(cls, offer: Offer, market: UsualPrices) -> PriceLaw:
        """The law of an offer's price."""
        kind, listed = price_kind(offer), offer.usd_per_hour
        if kind is None or listed <= 0:
            return cls(listed, listed, listed)
        usual_each, median_each = market.usual(offer), market.on_demand.get(offer.chip_id)
        start = listed
        if median_each is not None and offer.count:
            start = max(listed, OUTLIER_SHARE * median_each * offer.devices)
        rise = UNKNOWN_RISE if kind in ("marketplace", "from") else 1.0
        usual = rise * start if usual_each is None else max(usual_each * offer.devices, start)
        hold_days, age_days = PRICE_KINDS[kind], market.age_days(offer.as_of)
        if kind == "published":
            age_days = max(0.0, age_days - GRACE_DAYS)
        own = market.own_on_demand.get((offer.provider, offer.chip_id), math.inf) * offer.devices
        most = own if offer.terms == "spot" else math.inf
        return cls(listed, start, usual, hold_days * DAY_S, math.exp(-age_days / hold_days), max(most, listed), market.spread)

    def likely(self, run_s: float) -> Interval:
        """Dollars an hour, on average over a run of run_s seconds."""
        value, low, high = likely_usd(
            run_s,
            start_usd=self.start_usd,
            usual_usd=self.usual_usd,
            hold_s=self.hold_s,
            left=self.left,
            spread=self.spread,
        )
        most = max(self.most_usd, self.listed_usd)
        return Interval(min(float(value), most), min(float(low), self.listed_usd), min(float(high), most))


def likely_usd(
    run_s: ArrayLike,
    *,
    start_usd: ArrayLike,
    usual_usd: ArrayLike,
    hold_s: ArrayLike,
    left: ArrayLike,
    spread: ArrayLike,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Likely price, low and high end of its 90 % interval, for arrays of the fields of PriceLaw. Source: the module's."""
    lengths = np.maximum(np.asarray(run_s, dtype=float) / np.asarray(hold_s, dtype=float), 1e-12)
    with np.errstate(invalid="ignore"):
        weight = np.asarray(left) * np.where(np.isfinite(lengths), -np.expm1(-lengths) / lengths, 0.0)
    start, usual = np.maximum(start_usd, 1e-12), np.maximum(usual_usd, 1e-12)
    value = np.where(np.asarray(start_usd) > 0, start**weight * usual ** (1 - weight), 0.0)
    sigma = np.asarray(spread) * np.sqrt(np.maximum(0.0, 1 - weight**2))
    return value, value * np.exp(-Z_90 * sigma), value * np.exp(Z_90 * sigma)


def likely_price(offer: Offer, market: UsualPrices, *, run_s: float) -> LikelyPrice:
    """What an offer's hour will likely cost over a run of run_s seconds, with the reason where that is not the listed price."""
    law, kind = PriceLaw.of(offer, market), price_kind(offer)
    likely = law.likely(run_s)
    note = None
    if kind is not None and likely.value > TELLING * law.listed_usd:
        note = likely_price_note(
            price_kind=kind,
            listed_usd=law.listed_usd,
            likely_usd=likely.value,
            low_usd=likely.low,
            high_usd=likely.high,
            devices=offer.devices,
            as_of=offer.as_of,
            outlier=law.start_usd > law.listed_usd,
        )
    return LikelyPrice(law.listed_usd, likely, kind, note)
