"""The user's own machines: their electricity, and the time until a purchase has paid off."""

from __future__ import annotations

from gpuwise.plan.economics.terms import HOUR_S, YEAR_S

USD_PER_KWH = 0.17  # US residential average 2024 is 0.165 (EIA Electric Power Monthly)
UTILISATION = 0.8  # share of the board power drawn while training; a guess
DEFAULT_TDP_W = 300.0  # if the catalog has no board power; a guess
DEFAULT_CPU_TDP_W = 65.0  # the same for CPUs: a desktop's; a guess
HOST_W = 100.0  # the rest of an owned machine under load; a guess


def electricity_usd_per_hour(tdp_w: float, *, count: float, usd_per_kwh: float) -> float:
    """The price of an owned machine's electricity: the chips' board power × utilisation, and the host."""
    return (tdp_w * count * UTILISATION + HOST_W) / 1000 * usd_per_kwh


def break_even_months(purchase_usd: float, *, own_usd: float, own_hours: float, rental_usd: float) -> float | None:
    """Months of uninterrupted work after which a bought machine has cost less than renting.

    Arguments:
        own_usd: electricity of one run on the bought machine.
        own_hours: calendar time of that run.
        rental_usd: cost of the same run on a rented machine.

    None if its electricity alone costs as much as renting. Resale is not counted.
    """
    saved_usd = rental_usd - own_usd
    return None if saved_usd <= 0 else purchase_usd / saved_usd * own_hours * HOUR_S / (YEAR_S / 12)
