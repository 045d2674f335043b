"""Clusters of rented machines: how many of an offer run a job together, and why an offer is not rented by the hundred."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.links import link_between
from gpuwise.hardware.providers import provider
from gpuwise.hardware.types import Chip, Offer
from gpuwise.notes import Note, rejections
from gpuwise.notes import run as run_notes
from gpuwise.plan.buying.candidates import Candidate
from gpuwise.plan.buying.named import NamedDevices
from gpuwise.plan.economics.rented import of_several
from gpuwise.plan.request import Request

MOST_DEVICES = 16_384  # the largest published runs: Llama 3 405B, arXiv 2407.21783
# Tried unless the user names a number: powers of two, and half way between them.
_NUMBERS = sorted({number for power in range(15) for number in (2**power, 3 * 2**power)} - {1})


def with_clusters(
    considered: Sequence[Candidate | tuple[Offer, Note]], request: Request, offers: Sequence[Offer], catalog: Catalog
) -> list[Candidate | tuple[Offer, Note]]:
    """The candidates and the clusters of those that are rented. A machine of which the user names several is left out alone."""
    named = NamedDevices.of(request, catalog)
    joiner = Joiner(offers, catalog, most_devices=request.max_devices)
    result: list[Candidate | tuple[Offer, Note]] = []
    for item in considered:
        if not isinstance(item, Candidate) or item.offer.terms == "owned":
            result.append(item)
            continue
        numbers = named.numbers(item.offer)
        if numbers is None or 1 in numbers:
            result.append(item)
        if request.machines_joined or (numbers is not None and numbers - {1}):
            result += joiner.clusters(item, numbers)
    return result


class Joiner:
    """Joins rented machines of one kind by the network that their offer has.

    Arguments:
        offers: all offers; of a provider's machines with a chip, those with most devices are joined, as smaller ones have
            the same price and less bandwidth a device.
        most_devices: of a cluster.
    """

    def __init__(self, offers: Sequence[Offer], catalog: Catalog, *, most_devices: int):
        self._catalog, self._most_devices = catalog, most_devices
        self._largest: dict[tuple[str, str], float] = {}
        for offer in offers:
            if link_between(offer, catalog=catalog) is not None:
                key = offer.provider, offer.chip_id
                self._largest[key] = max(self._largest.get(key, 0.0), self._joined_as(offer))

    def clusters(self, item: Candidate, machines: frozenset[int] | None = None) -> Iterator[Candidate | tuple[Offer, Note]]:
        """The clusters of a rented machine; (offer, reason) if it is not joined.

        Arguments:
            machines: numbers that the user names, which any machine may have; None takes the usual numbers.
        """
        offer = item.offer
        most_devices = self._most_devices if machines is None else MOST_DEVICES
        most = int(most_devices * item.chip.devices_per_package / offer.devices) if offer.devices >= 1 else 1
        numbers = [number for number in (_NUMBERS if machines is None else sorted(machines)) if 1 < number <= most]
        if not numbers:
            return
        reason = self._why_alone(offer, item.chip, named=machines is not None)
        if reason is not None:
            yield offer, reason
            return
        link = link_between(offer, catalog=self._catalog)
        for number in numbers:
            yield replace(
                item,
                cluster=replace(item.cluster, machines=number, between=link),
                terms=of_several(item.terms, number),
                assumptions=(*item.assumptions, *_assumptions(offer, number)),
                rented=number,
            )

    def _joined_as(self, offer: Offer) -> float:
        """Devices of the machine, up to what a cluster may have."""
        return offer.devices if offer.devices <= self._most_devices / 2 else 0.0

    def _why_alone(self, offer: Offer, chip: Chip, *, named: bool) -> Note | None:
        where = provider(offer.provider)
        if offer.terms == "free" or where.alone:
            return rejections.not_rented_together(why=where.alone or "a free session is one machine")
        if offer.devices < 1 or chip.kind == "cpu":
            return rejections.parts_not_joined()
        if link_between(offer, catalog=self._catalog) is None:
            return rejections.network_unknown()
        if not named and offer.devices < self._largest.get((offer.provider, offer.chip_id), 0.0):
            return rejections.larger_machine_joined()
        return None


def _assumptions(offer: Offer, machines: int) -> list[Note]:
    where = provider(offer.provider)
    count = max(1, int(offer.devices))
    return [
        run_notes.started_on_each_machine(machines=machines, ranks=count),
        run_notes.rented_together(
            machines=machines,
            devices=machines * offer.devices,
            instance=offer.instance,
            provider=offer.provider,
            spot=offer.terms == "spot",
            quota_raise=where.quota_raise,
        ),
    ]
