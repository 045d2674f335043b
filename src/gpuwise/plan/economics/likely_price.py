"""The price that a run will likely pay: a listed price that may not hold is a distribution, not a number.

Model: the logarithm of a price returns to what such machines usually cost, exponentially with the time constant of its kind
of price (an Ornstein-Uhlenbeck process). A run of T seconds that starts `age` after the listing pays on average the listed
price to the power w times the usual price to the power 1 - w, with

    w = exp(-age / τ) · (τ / T) (1 - exp(-T / τ)).

Its logarithm has the standard deviation σ sqrt(1 - w²), with σ the spread of one chip's price over providers. The likely
price is this distribution's median, never below the listed price; its high end is never above the provider's own price on
demand, which the user can take instead. A price list changes in either direction: what it says stays the likely price, and
its interval widens from the end of a quarter on. A listed price below OUTLIER_SHARE of the chip's median counts as that share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpuwise.cost.forecast import Interval
from gpuwise.hardware.prices import (
    GRACE_DAYS,
    OUTLIER_SHARE,
    PRICE_KINDS,
    PUBLISHED_SPREAD,
    UNKNOWN_RISE,
    UsualPrices,
    price_kind,
)
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
        offer: whose price it is; None for a price that holds.
        outlier: whether the listed price is below OUTLIER_SHARE of the chip's median.
    """

    listed_usd: float
    usd_per_hour: Interval
    offer: Offer | None = None
    outlier: bool = False

    @property
    def note(self) -> Note | None:
        """Why the listed price may not hold; None where it holds."""
        kind, likely = None if self.offer is None else price_kind(self.offer), self.usd_per_hour
        if self.offer is None or kind is None or likely.value <= TELLING * self.listed_usd:
            return None
        return likely_price_note(
            price_kind=kind,
            listed_usd=self.listed_usd,
            likely_usd=likely.value,
            low_usd=likely.low,
            high_usd=likely.high,
            devices=self.offer.devices,
            as_of=self.offer.as_of,
            outlier=self.outlier,
        )


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
        if kind == "published":
            usual = start  # a list changes in either direction
        hold_days, age_days = PRICE_KINDS[kind], market.age_days(offer.as_of)
        if kind == "published":
            age_days = max(0.0, age_days - GRACE_DAYS)
        own = market.own_on_demand.get((offer.provider, offer.chip_id), math.inf) * offer.devices
        spread = PUBLISHED_SPREAD if kind == "published" else market.spread
        most = own if offer.terms == "spot" else math.inf
        return cls(listed, start, usual, hold_days * DAY_S, math.exp(-age_days / hold_days), max(most, listed), spread)


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
    """What an hour of an offer will likely cost over a run of run_s seconds."""
    return likely_prices([offer], market, run_s=[run_s])[0]


def likely_prices(offers: Sequence[Offer], market: UsualPrices, *, run_s: Sequence[float]) -> list[LikelyPrice]:
    """What an hour of each offer will likely cost over a run of its length."""
    laws = [_law(offer, market) for offer in offers]
    values, lows, highs = likely_usd(
        np.array(run_s, dtype=float),
        start_usd=np.array([law.start_usd for law in laws]),
        usual_usd=np.array([law.usual_usd for law in laws]),
        hold_s=np.array([law.hold_s for law in laws]),
        left=np.array([law.left for law in laws]),
        spread=np.array([law.spread for law in laws]),
    )
    prices = []
    for offer, law, value, low, high in zip(offers, laws, values.tolist(), lows.tolist(), highs.tolist(), strict=True):
        likely = Interval(min(value, law.most_usd), min(low, law.listed_usd), min(high, law.most_usd))
        prices.append(LikelyPrice(law.listed_usd, likely, offer, law.start_usd > law.listed_usd))
    return prices


@lru_cache(maxsize=8192)
def _law(offer: Offer, market: UsualPrices) -> PriceLaw:
    return PriceLaw.of(offer, market)
