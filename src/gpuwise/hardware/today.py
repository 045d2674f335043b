"""The day from which ages of prices count."""

from __future__ import annotations

import os
from datetime import date

from gpuwise.errors import InputError

PINNED = "GPUWISE_TODAY"


def today() -> date:
    """$GPUWISE_TODAY, by which a plan is the same on any day, or else the day of this machine's clock.

    Raises InputError for a pinned day that is none.
    """
    pinned = os.environ.get(PINNED)
    if not pinned:
        return date.today()
    try:
        return date.fromisoformat(pinned)
    except ValueError:
        raise InputError(f"{PINNED} is no day: {pinned!r}.", [f"{PINNED}=2026-11-09", f"unset {PINNED}"]) from None
