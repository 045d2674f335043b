"""What `--on` names, with what a forecast needs to know of it beyond the chip: its links and its price."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwise.errors import InputError, UnsupportedError
from gpuwise.hardware import Catalog, Chip, DeviceSpec, Link, Offer, check_inside, link_between, link_inside, parse_device
from gpuwise.strategy import Mesh


@dataclass(frozen=True)
class Device:
    """One kind of device, how many and how connected.

    spec: as parsed. count: devices in one machine. capacity_bytes: what programs can use of one device's memory, None
    where unknown. offer: the cheapest on-demand offer of exactly these devices, None without one or for this machine.
    """

    spec: DeviceSpec
    count: int
    link: Link | None
    link_between: Link | None
    capacity_bytes: int | None
    offer: Offer | None
    assumptions: tuple[str, ...]

    @property
    def chip(self) -> Chip:
        return self.spec.chip

    @property
    def machines(self) -> int:
        return self.spec.machines

    @property
    def usd_per_hour(self) -> float | None:
        """Of all machines together; None where nobody offers one."""
        return None if self.offer is None else self.offer.usd_per_hour * self.machines

    @property
    def devices(self) -> int:
        return self.count * self.machines

    @property
    def substrate(self) -> str:
        """Whose kernels are traced for it."""
        return "cpu" if self.chip.kind == "cpu" else "accelerator"


def device_of(text: str, catalog: Catalog, *, mesh: Mesh | None = None) -> Device:
    """'h100-sxm', 'rtx-4090:2', 'h100-80gb-sxm:8x4', 'cpu', 'here'; a mesh says how many where the text does not.

    Raises UnknownNameError, InputError where text and mesh disagree, or UnsupportedError.
    """
    spec = parse_device(text, catalog=catalog)
    count = spec.count_per_machine if ":" in text or mesh is None else mesh.devices
    check_inside(spec.chip, count, machines=spec.machines, catalog=catalog)
    if mesh is not None and mesh.devices != count * spec.machines:
        raise InputError(f"the mesh is of {mesh.devices} devices, but {text!r} names {count * spec.machines}.",
                         [f"--on {text.partition(':')[0]}:{mesh.devices}"])  # fmt: skip
    assumed = list(spec.assumed)
    offer, between = None, None
    if spec.machines > 1:
        between = _network(spec, text, catalog)
        assumed.append(f"assumed machines connected by {between.name}, as its largest offer has")
    if spec.machine is None:
        offer = cheapest_offer(catalog, spec.chip, count, networked=spec.machines > 1)
    if offer is not None:
        times = f"{spec.machines} × " if spec.machines > 1 else ""
        where = f"{times}{offer.provider} {offer.instance} ({offer.region})"
        others = f"`gpuwise offers {spec.chip.id}` lists others"
        assumed.append(f"price of {where} as of {offer.as_of}, the cheapest on demand; {others}")
    link = link_inside(offer or spec.chip, count, catalog=catalog)
    return Device(spec, count, link, between, spec.memory_bytes, offer, tuple(assumed))


def cheapest_offer(catalog: Catalog, chip: Chip, count: int, *, networked: bool = False) -> Offer | None:
    """The cheapest on-demand offer of exactly `count` of a chip; a stale price only where there is no other.

    networked: among machines whose network to others of their kind is known.
    """
    if chip.kind == "cpu":  # an instance rents some of its cores, not the chip
        return None
    found = [o for o in catalog.offers if o.chip_id == chip.id and o.devices == count and o.terms == "on-demand"]
    if networked:
        found = [offer for offer in found if link_between(offer, catalog=catalog) is not None]
    return min(found, key=lambda offer: (offer.stale, offer.usd_per_hour), default=None)


def _network(spec: DeviceSpec, text: str, catalog: Catalog) -> Link:
    """The network of the offer with the most of this chip in one machine."""
    found = [(o.devices, link) for o in catalog.offers if o.chip_id == spec.chip.id
             and (link := link_between(o, catalog=catalog)) is not None]  # fmt: skip
    if not found:
        raise UnsupportedError(f"the catalog does not say how machines of {spec.chip.id} are connected, for {text!r}.",
                               [f"ask for one machine: {spec.chip.id}:{spec.count_per_machine}"])  # fmt: skip
    return max(found, key=lambda pair: pair[0])[1]
