"""Notes on prices: why a listed price may not hold, and what is counted in its place."""

from __future__ import annotations

from gpuwise.notes.note import kind_of_note
from gpuwise.units import format_usd

_WHY = {
    "from": 'a "from" price that may change every 15 minutes',
    "marketplace": "the lowest ask on a marketplace, which moves daily",
    "spot": "a spot price, which follows demand",
    "published": "a price that is not of this quarter",
}


@kind_of_note()
def likely_price(
    *,
    price_kind: str,
    listed_usd: float,
    likely_usd: float,
    low_usd: float,
    high_usd: float,
    devices: float,
    as_of: str,
    outlier: bool,
) -> str:
    """Why a listed price may not hold, and what a device-hour will likely cost. Dollars are of the whole machine.

    outlier: whether the listed price is below a fifth of the chip's median on demand.
    """
    listed, likely, low, high = (format_usd(usd / devices) for usd in (listed_usd, likely_usd, low_usd, high_usd))
    low_price = "below a fifth of the chip's median on demand" if outlier else ""
    kind = "" if outlier and price_kind == "published" else f"{_WHY.get(price_kind, price_kind)}, of {as_of}"
    why = ", ".join(reason for reason in (kind, low_price) if reason)
    return f"{listed} a device-hour is {why}: counted at {likely} ({low} to {high}), what such machines usually cost"


@kind_of_note()
def if_the_price_holds(*, listed_usd: float, high_usd: float) -> str:
    """What the run costs at the listed price, and at the high end of the likely one."""
    listed, high = format_usd(listed_usd), format_usd(high_usd)
    return f"the run costs {listed} if the listed price holds, and up to {high} if it does not"


@kind_of_note()
def old_catalog(*, newest: str, days: float) -> str:
    """The newest price of the catalog is over a quarter old."""
    return f"the newest price that gpuwise knows is of {newest}, {days:.0f} days ago: a newer version may have newer ones"


@kind_of_note(flag="--discounts")
def discounted(*, share: float, provider: str) -> str:
    """A discount that the user has at a provider."""
    return f"{100 * share:g} % off the prices of {provider}, from the file of --discounts"


@kind_of_note(flag="--on")
def no_offer(*, devices: str) -> str:
    """Devices that serve, but that no offer rents out in this number."""
    return f"no offer of the catalog rents out {devices}, so there is no price: other devices or counts have one"
