"""The devices that the user names in `on`: chips, devices of a machine and numbers of machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuwise.errors import InputError
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.device import parse_device
from gpuwise.hardware.names import split_device
from gpuwise.hardware.types import Machine, Offer
from gpuwise.plan.request import Request


@dataclass(frozen=True)
class NamedDevices:
    """What the user names in `on`.

    Attributes:
        machines: numbers of machines by (chip id, devices of a machine); devices are None where any number will do, and then so
            will any number of machines. None where nothing is named, so that everything will do.
        here: this machine; None where it is not named.
    """

    machines: Mapping[tuple[str, float | None], frozenset[int]] | None
    here: Machine | None

    @classmethod
    def of(cls, request: Request, catalog: Catalog) -> NamedDevices:
        """The devices of a request. `cpu` means any CPU offer, and this machine if it has no GPU."""
        if request.on is None:
            return cls(None, request.here)
        machines: dict[tuple[str, float | None], frozenset[int]] = {}
        here = None
        for text in request.on:
            name, count, _ = split_device(text)
            if name.lower() == "here":
                here = request.here
            elif name.lower() == "cpu":
                machines |= {(chip.id, count): frozenset({1}) for chip in catalog.chips.values() if chip.kind == "cpu"}
                if request.here is not None and request.here.chip.kind == "cpu":
                    here = request.here
            else:
                cluster = parse_device(text, catalog=catalog).cluster
                key = cluster.chip.id, None if count is None else cluster.devices_per_machine
                machines[key] = machines.get(key, frozenset()) | {cluster.machines}
        return cls(machines, here)

    def includes(self, offer: Offer) -> bool:
        """Whether machines of the offer are named, in any number."""
        return self.machines is None or not self.machines.keys().isdisjoint(
            {(offer.chip_id, None), (offer.chip_id, offer.devices)}
        )

    def check_counts(self, offers: Sequence[Offer], catalog: Catalog) -> None:
        """Raises InputError for devices that are offered, but not so many in a machine."""
        for chip_id, count in self.machines or ():
            if count is None or catalog.chips[chip_id].kind == "cpu":
                continue
            counts = sorted({offer.devices for offer in offers if offer.chip_id == chip_id})
            if counts and count not in counts:
                listed = ", ".join(f"{number:g}" for number in counts)
                raise InputError(
                    f"no machine with {count:g} × {chip_id} is offered.",
                    [f"machines have {listed}", f"any of them: --on {chip_id}"],
                )

    def numbers(self, offer: Offer) -> frozenset[int] | None:
        """The numbers of machines that are named for an offer; None for any."""
        if self.machines is None or (offer.chip_id, None) in self.machines:
            return None
        return self.machines.get((offer.chip_id, offer.devices), frozenset())
