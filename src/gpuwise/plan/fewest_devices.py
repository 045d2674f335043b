"""The fewest devices of the largest chips that hold a job that fits nowhere the user allows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from gpuwise.cost.rates import why_not
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.device import parse_device
from gpuwise.hardware.names import split_device
from gpuwise.hardware.types import Chip, Offer
from gpuwise.plan.buying.candidates import Candidate
from gpuwise.plan.buying.clusters import MOST_DEVICES
from gpuwise.plan.buying.runnable import train_obstacle
from gpuwise.plan.estimate import Estimate
from gpuwise.plan.holding import Holding
from gpuwise.plan.request import Request
from gpuwise.plan.searched import Searched
from gpuwise.strategy import Strategy

# Devices of the clusters that are searched, until one holds the job: larger clusters take longer to search.
_UP_TO = (16, 128, 1024, MOST_DEVICES)


def fewest_devices(
    request: Request,
    offers: Sequence[Offer],
    catalog: Catalog,
    *,
    search: Callable[[Request], Searched],
    widened: Callable[[Searched, Request], Searched],
) -> Holding | None:
    """The fewest devices that hold a job: of the chips that the user names, or else of those with most memory that are rented
    and that `gpuwise train` can run. Of equally many devices the cheapest an hour, as listed.

    Clusters have the numbers of machines that `plan` tries. None where no number of devices holds the job.

    Arguments:
        search, widened: those of gpuwise.plan.search, of the same job.
    """
    rented = {chip.id: chip for offer in offers if (chip := _rented(offer, request, catalog)) is not None}
    named = _named(request, catalog) & rented.keys()
    most_bytes = max((chip.usable_memory_bytes or 0 for chip in rented.values()), default=0)
    largest = {id_ for id_, chip in rented.items() if chip.usable_memory_bytes == most_bytes}
    for chips in (named, largest):
        holding = _fewest_of(chips, request, search, widened) if chips else None
        if holding is not None:
            return holding
    return None


def _rented(offer: Offer, request: Request, catalog: Catalog) -> Chip | None:
    """The chip of an offer that the user may rent and `gpuwise train` can run; None of others."""
    chip = catalog.chips.get(offer.chip_id)
    if chip is None or chip.kind == "cpu" or offer.terms not in ("on-demand", "spot") or offer.count < 1:
        return None
    stale, wrong_terms = offer.stale and not request.stale, request.spot not in (None, offer.terms == "spot")
    if stale or wrong_terms or train_obstacle(chip, Strategy()) or why_not(chip, mode="train"):
        return None
    return chip if request.offers.why_not(offer, chip) is None else None


def _named(request: Request, catalog: Catalog) -> set[str]:
    names = [split_device(text)[0] for text in request.on or ()]
    return {parse_device(name, catalog=catalog).chip.id for name in names if name.lower() not in ("here", "cpu")}


def _fewest_of(
    chips: Collection[str],
    request: Request,
    search: Callable[[Request], Searched],
    widened: Callable[[Searched, Request], Searched],
) -> Holding | None:
    wider = replace(
        request, on=tuple(sorted(chips)), own=(), own_clusters=(), here=None, machines_joined=True, more_devices=None
    )
    searched = search(replace(wider, max_devices=_UP_TO[0]))
    for most_devices in _UP_TO:
        searched = widened(searched, replace(wider, max_devices=most_devices))
        items = [item for item in searched.considered if isinstance(item, Candidate) and not item.offer.stale]
        for item in sorted(items, key=lambda item: (item.devices, item.terms.usd_per_hour)):
            if isinstance(searched.best[item.key], Estimate):
                searched = searched.verified([item.key])
                if isinstance(exact := searched.best[item.key], Estimate):
                    flags = f"--on {item.cluster.name}"
                    if request.more_devices is None and request.max_devices < item.cluster.devices:
                        flags += f" --max-devices {item.cluster.devices}"
                    return Holding(item, exact.strategy, flags)
    return None
