"""The gates that a list passes as a whole, against the last good one and the catalog as shipped."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from gpuwise.refresh.row_gates import ListedOffer, Yardstick

LEAST_ROWS_SHARE = 0.70  # of the last good list
MOST_MEDIAN_CHANGE = 0.30
LEAST_OF_FLOOR = 0.25  # of the lowest price of a device-hour of that chip in the shipped catalog
MARKET_CHIPS_SHARE = 0.70  # of a marketplace's chips that must still be there: hosts come and go
MOST_NAMED = 3


def failed_gates(
    new: Sequence[ListedOffer], last: Sequence[ListedOffer], by: Yardstick, *, marketplace: bool = False
) -> list[str]:
    """Why a list is not taken, a sentence part each; empty where it is.

    Arguments:
        last: the last good list of the same source; empty for the first.
        by: the shipped catalog.
        marketplace: whether hosts sell there, whose chips come and go.
    """
    if not new:
        return ["no row of it passes"]
    return [why for why in (_rows(new, last), _chips(new, last, marketplace), _median(new, last), _floor(new, by)) if why]


def _rows(new: Sequence[ListedOffer], last: Sequence[ListedOffer]) -> str:
    if len(new) >= LEAST_ROWS_SHARE * len(last):
        return ""
    return f"it has {len(new):,} rows where the last one had {len(last):,}, fewer than {LEAST_ROWS_SHARE:.0%}"


def _chips(new: Sequence[ListedOffer], last: Sequence[ListedOffer], marketplace: bool) -> str:
    before, now = ({offer.chip_id for offer in offers} for offers in (last, new))
    lost = sorted(before - now)
    if not lost or (marketplace and len(before & now) >= MARKET_CHIPS_SHARE * len(before)):
        return ""
    more = f" and {len(lost) - MOST_NAMED} more" if len(lost) > MOST_NAMED else ""
    return f"it has no {', '.join(lost[:MOST_NAMED])}{more}, which the last one had"


def _median(new: Sequence[ListedOffer], last: Sequence[ListedOffer]) -> str:
    before = {(offer.key, terms): usd for offer in last for terms, usd in offer.prices().items()}
    ratios = [
        usd / before[(offer.key, terms)]
        for offer in new
        for terms, usd in offer.prices().items()
        if (offer.key, terms) in before
    ]
    if not ratios:
        return ""
    change = median(ratios) - 1
    if abs(change) <= MOST_MEDIAN_CHANGE:
        return ""
    return f"its prices moved by {change:+.0%} in the middle, more than {MOST_MEDIAN_CHANGE:.0%}"


def _floor(new: Sequence[ListedOffer], by: Yardstick) -> str:
    below = []
    for offer in new:
        for terms, usd in offer.prices().items():
            floor = by.cheapest.get((offer.chip_id, terms), by.cheapest.get((offer.chip_id, "on-demand")))
            if floor is not None and offer.count >= 1 and usd / offer.count < LEAST_OF_FLOOR * floor:
                below.append(
                    f"{offer.instance} at ${usd:g} {terms} (a device at ${usd / offer.count:.3g}, the floor is ${floor:.3g})"
                )
    if not below:
        return ""
    more = f" and {len(below) - MOST_NAMED} more" if len(below) > MOST_NAMED else ""
    return f"under a quarter of the shipped catalog's lowest price: {'; '.join(below[:MOST_NAMED])}{more}"
