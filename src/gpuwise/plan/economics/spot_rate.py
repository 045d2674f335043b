"""How often one spot machine of an offer is interrupted: as its provider publishes it, or else a guess."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gpuwise.hardware.providers import provider
from gpuwise.hardware.refreshed import SourcedInterruptions, sourced_interruptions
from gpuwise.hardware.types import Offer
from gpuwise.plan.economics.interruptions import DAY_S, InterruptionColumns
from gpuwise.plan.economics.spot import DEFAULT_INTERRUPTIONS_PER_DAY

DAYS_A_MONTH = 365 / 12
# Interruptions a day of one machine that lives at most 24 hours.
DAY_LIMITED_PER_DAY = DAY_S / float(InterruptionColumns(*np.array([[0.0], [1.0], [0.0], [0.0]])).mean_s[0])


@dataclass(frozen=True)
class SpotRate:
    """Interruptions a day of one spot machine.

    Attributes:
        per_day: the rate that counts: the published one where there is one.
        guess_per_day: what counts where nothing is published.
        published: the provider's class; None where none was fetched.
        day_limited: whether the machine lives at most 24 hours.
    """

    per_day: float
    guess_per_day: float
    published: SourcedInterruptions | None = None
    day_limited: bool = False


def spot_rate(offer: Offer) -> SpotRate:
    """The rate of an offer's machine."""
    where = provider(offer.provider)
    if where.day_limited:
        return SpotRate(DAY_LIMITED_PER_DAY, DAY_LIMITED_PER_DAY, day_limited=True)
    guess = where.interruptions_per_day or DEFAULT_INTERRUPTIONS_PER_DAY
    published = sourced_interruptions(offer)
    return SpotRate(guess if published is None else per_day(published.share_per_month), guess, published)


def per_day(share_per_month: float) -> float:
    """The rate at which this share of machines is interrupted within a month: 1 - exp(-λ days)."""
    return -math.log1p(-min(share_per_month, 0.99)) / DAYS_A_MONTH
