"""The device that `--on` names, with its links and its price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from gpuwise.api.shared_cpu import part_of_threads, ranks_on_cpu, shared_cpu_note, threads_note
from gpuwise.errors import InputError, UnsupportedError
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.device import DeviceSpec, check_inside, parse_device
from gpuwise.hardware.links import link_between, link_inside
from gpuwise.hardware.network import EXAMPLES, Network, parse_network
from gpuwise.hardware.prices import is_outlier, median_prices, share_of_median
from gpuwise.hardware.types import Chip, Link, Offer
from gpuwise.notes import Note
from gpuwise.notes.parallel import assumed_network
from gpuwise.notes.step import price_of_offer
from gpuwise.strategy import Mesh
from gpuwise.units import counted


@dataclass(frozen=True)
class Device:
    """The device that `--on` names, with the offer behind its links and its price.

    Attributes:
        spec: the parsed text.
        count: number of devices in one machine.
        catalog: source of links and offers. Offers are read when first needed; memory forecasts need none.
        named_network: the network that the user names; None (default) takes that of an offer.
    """

    spec: DeviceSpec
    count: int
    catalog: Catalog = field(repr=False)
    named_network: Network | None = None

    @cached_property
    def offer(self) -> Offer | None:
        """The cheapest on-demand offer of exactly these devices; None without one, and for this machine. Of several machines
        one with a known network goes first."""
        if self.spec.machine is not None:
            return None
        offer = cheapest_offer(self.catalog, self.chip, self.count, networked=self.machines > 1)
        if offer is None and self.named_network is not None:
            return cheapest_offer(self.catalog, self.chip, self.count)
        return offer

    @cached_property
    def link(self) -> Link | None:
        """The link between the devices of one machine; None for a single device."""
        if self.count == 1 or self.chip.kind == "cpu":
            return self.spec.cluster.inside
        return link_inside(self.offer or self.chip, self.count, catalog=self.catalog)

    @cached_property
    def network(self) -> Network | None:
        """What joins the machines: the network that the user names, else that of the offer behind the price, else that of the
        largest offer of this chip; None for a single machine. Raises UnsupportedError if the catalog has none."""
        if self.machines == 1 or self.named_network is not None:
            return self.named_network
        return _network_of(self.offer or _largest_networked(self.spec, self.catalog), self.catalog)

    @property
    def assumptions(self) -> tuple[Note, ...]:
        assumed = [*self.spec.assumed, *(self.network.notes if self.network is not None else ())]
        if self.offer is not None:
            times = f"{self.machines} × " if self.machines > 1 else ""
            where = f"{times}{self.offer.provider} {self.offer.instance} ({self.offer.region})"
            share = share_of_median(self.offer, median_prices(self.catalog.offers))
            assumed.append(
                price_of_offer(
                    offer=where,
                    as_of=self.offer.as_of,
                    chip=self.chip.id,
                    share_of_median=share if is_outlier(share) else None,
                )
            )
        return tuple(assumed)

    @cached_property
    def cluster(self) -> Cluster:
        cluster = replace(self.spec.cluster, devices_per_machine=self.count, inside=self.link)
        if self.network is None:
            return cluster
        return replace(cluster, between=self.network.link, between_serves=self.network.serves)

    @property
    def chip(self) -> Chip:
        return self.spec.chip

    @property
    def machines(self) -> int:
        return self.spec.cluster.machines

    @property
    def offered_spec(self) -> DeviceSpec:
        """The spec with the links, the assumptions and the price of the offer."""
        return replace(self.spec, cluster=self.cluster, assumed=self.assumptions, usd_per_hour=self.usd_per_hour)

    @property
    def usd_per_hour(self) -> float | None:
        """The price of all machines together; None without an offer."""
        return None if self.offer is None else self.offer.usd_per_hour * self.machines

    @property
    def devices(self) -> int:
        return self.count * self.machines

    @property
    def target(self) -> str:
        return target_of(self.chip)


def target_of(chip: Chip) -> str:
    """The tracing target of a chip. GPUs before Ampere have their own, because they lack flash attention."""
    if chip.kind == "cpu":
        return "cpu"
    capability = chip.compute_capability
    return "pre-ampere" if capability is not None and capability < (8, 0) else "accelerator"


def device_of(text: str, catalog: Catalog, *, mesh: Mesh | None = None, network: str | None = None) -> Device:
    """The device of a text such as 'h100-sxm', 'rtx-4090:2', 'h100-80gb-sxm:8x4', 'cpu' or 'here'.

    Arguments:
        mesh: gives the count if the text has none.
        network: what joins the machines, as for gpuwise.hardware.network.parse_network; None takes an offer's.

    Raises UnknownNameError, UnsupportedError, or InputError if text and mesh disagree, or for a network of one machine.
    """
    return devices_of([text], catalog, mesh=mesh, network=network)[0]


def devices_of(texts: Sequence[str], catalog: Catalog, *, mesh: Mesh | None = None, network: str | None = None) -> list[Device]:
    """The devices of several texts. The network is of those with several machines. Arguments and errors as for device_of."""
    named_network = None if network is None else parse_network(network, catalog=catalog)
    specs = [_spec_of(text, catalog, mesh, among=texts) for text in texts]
    if named_network is not None and all(spec.cluster.machines == 1 for spec in specs):
        cluster = specs[0].cluster
        raise InputError(
            f"--network says what joins machines, and {texts[0]!r} is one machine.",
            ["leave out --network", f"--on {cluster.chip.id}:{cluster.devices_per_machine}x2 (two such machines)"],
        )
    devices = []
    for spec in specs:
        device = Device(spec, spec.cluster.devices_per_machine, catalog, named_network if spec.cluster.machines > 1 else None)
        if device.machines > 1:
            _ = device.network  # fails early for machines without a known link
        devices.append(device)
    return devices


def _spec_of(text: str, catalog: Catalog, mesh: Mesh | None, *, among: Sequence[str]) -> DeviceSpec:
    spec = parse_device(text, catalog=catalog)
    if mesh is not None and ":" not in text:
        spec = _of_mesh(spec, text, mesh.devices, catalog)
    elif spec.machine is not None and spec.chip.kind == "cpu":
        spec = ranks_on_this_cpu(spec, text, spec.cluster.devices_per_machine)
    if mesh is not None and mesh.devices != spec.cluster.devices:
        of_mesh = f"{text.partition(':')[0]}:{mesh.devices}"
        ways = [f"--on {','.join(of_mesh if each == text else each for each in among)}"]
        if mesh.ep > 1 and mesh.dp_shard * mesh.ep == spec.cluster.devices:  # experts are shared by devices of dp_shard
            ways.insert(0, f"--mesh {replace(mesh, dp_shard=spec.cluster.devices)}")
        raise InputError(
            f"the mesh {mesh} is of {counted(mesh.devices, 'device')}, but {text!r} names {spec.cluster.devices:,}.", ways
        )
    return spec


def _of_mesh(spec: DeviceSpec, text: str, devices: int, catalog: Catalog) -> DeviceSpec:
    """As many devices as a mesh has, of a text without a count. On the CPU of this machine they are ranks that share it."""
    if spec.machine is None:
        return parse_device(f"{text}:{devices}", catalog=catalog)
    if spec.chip.kind == "cpu":
        return ranks_on_this_cpu(spec, text, devices)
    check_inside(spec.chip, devices, catalog=catalog)
    return replace(spec, cluster=replace(spec.cluster, devices_per_machine=devices))


def ranks_on_this_cpu(spec: DeviceSpec, text: str, ranks: int) -> DeviceSpec:
    """So many ranks that share the CPU of this machine, which `text` names. Raises UnsupportedError for several such machines,
    which are priced with one rank each."""
    if ranks == 1:
        return spec
    if spec.cluster.machines > 1:
        raise UnsupportedError(
            f"{text!r}: ranks that share a CPU are priced on one machine.",
            [f"--on here:{ranks}", f"--on here:1x{spec.cluster.machines} (a rank on each machine)"],
        )
    memory_bytes = None if spec.machine is None or spec.cluster.memory_bytes is None else spec.machine.host_memory_bytes
    cluster = ranks_on_cpu(spec.chip, ranks, memory_bytes=memory_bytes)
    return replace(spec, cluster=cluster, assumed=(*spec.assumed, shared_cpu_note(spec.chip, ranks)))


def is_this_cpu(device: Device) -> bool:
    """Whether a device is the CPU of this machine."""
    return device.spec.machine is not None and device.target == "cpu"


def with_threads_of_environment(device: Device) -> Device:
    """The device on which a step runs: of the CPU of this machine the part that OMP_NUM_THREADS leaves it. Ranks divide all."""
    spec = device.spec
    if spec.machine is None or spec.chip.kind != "cpu" or device.count > 1 or (note := threads_note(spec.chip)) is None:
        return device
    cluster = replace(spec.cluster, chip=part_of_threads(spec.chip, None))
    return replace(device, spec=replace(spec, cluster=cluster, assumed=(*spec.assumed, note)))


def cheapest_offer(
    catalog: Catalog, chip: Chip, count: int, *, networked: bool = False, terms: str = "on-demand"
) -> Offer | None:
    """The cheapest offer of exactly `count` of a chip. A stale price is taken only if there is no other.

    Arguments:
        networked: only consider machines with a known network to others of their kind.
        terms: of the offer, on demand by default.
    """
    if chip.kind == "cpu":  # an instance rents some of its cores, not the chip
        return None
    offers = [o for o in catalog.offers if o.chip_id == chip.id and o.devices == count and o.terms == terms]
    if networked:
        offers = [offer for offer in offers if link_between(offer, catalog=catalog) is not None]
    return min(offers, key=lambda offer: (offer.stale, offer.usd_per_hour), default=None)


def _largest_networked(spec: DeviceSpec, catalog: Catalog) -> Offer:
    """The offer with most devices of this chip in one machine, of those whose network is known."""
    offers = [o for o in catalog.offers if o.chip_id == spec.chip.id and link_between(o, catalog=catalog) is not None]
    if not offers:
        chip = spec.cluster.chip.id
        raise UnsupportedError(
            f"the catalog does not say how machines of {chip} are connected.",
            [f"say it: {EXAMPLES}", f"ask for one machine: {chip}:{spec.cluster.devices_per_machine}"],
        )
    return max(offers, key=lambda offer: offer.devices)


def _network_of(offer: Offer, catalog: Catalog) -> Network:
    """The network of an offer with a known one."""
    link = link_between(offer, catalog=catalog)
    assert link is not None
    note = assumed_network(
        link=link.name,
        bytes_per_s=link.per_direction_bytes_per_s or 0.0,
        serves="machine",
        of=f"{offer.provider} {offer.instance}",
        source=link.source_of("per_direction_bytes_per_s").text,
    )
    return Network(link, "machine", (note,))
