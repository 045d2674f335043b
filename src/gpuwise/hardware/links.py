"""The link between the devices of a machine, and the link between machines."""

from __future__ import annotations

from dataclasses import replace

from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.types import Chip, Link, Machine, Offer, Source

_PCIE = {2: "pcie3x16", 3: "pcie3x16", 4: "pcie4x16", 5: "pcie5x16", 6: "pcie6x16"}
# A slot of n lanes of generation g carries lanes × rate one way (PCIe line rate: 8 GT/s for 3.0, doubled each time).
_PCIE_LANE_BYTES_PER_S = {2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
_BRIDGED_PAIR = 2
# Cards other than GeForce that exchange through host memory, at 11 of 31 GB/s (zksainx/pipeweave). NVIDIA's driver gives
# GeForce no access to the memory of its peers over PCIe.
_WITHOUT_PEERS = frozenset({"rtx-6000-ada"})
_RDMA_GBIT_PER_S = 800  # machines with so much network have RDMA under any name: TCP does not reach it
MEASURED_HERE = Source("gpuwise measure on this machine", "")
_LEAST_ERROR = 0.1  # assumed of collectives in a step, beside those that were timed alone
_MOST_ON_PCIE = 16  # GPUs of the largest PCIe machine that is sold (AWS p2.16xlarge; servers with two switch boards)
_MOST_SOCKETS = 8  # CPUs a board joins without a switch of its own (Intel's Xeon Scalable family)


def link_inside(what: Offer | Chip, count: float, *, catalog: Catalog) -> Link | None:
    """The link among `count` devices of one machine; None for a single device, a slice, or CPUs.

    An offer's own words go first (an offer on PCIe has no NVLink, even of a chip that could). Bridges join pairs and
    are sold apart: they count only where an offer names one. Consumer cards take PCIe.
    """
    if isinstance(what, Offer):
        return _link_of(catalog.chip(what.chip_id), count, (what.interconnect or "").lower(), catalog=catalog)
    return _as_achieved(_link_of(what, count, "", catalog=catalog), what, count)


def _link_of(chip: Chip, count: float, interconnect: str, *, catalog: Catalog) -> Link | None:
    """interconnect: in an offer's own words; "" without an offer."""
    if count <= 1 or chip.kind == "cpu":
        return None
    if "pcie" in interconnect:
        return pcie_link(chip, catalog=catalog)
    own = catalog.links.get(chip.link_id or "")
    names_fabric = bool(interconnect) and "fractional" not in interconnect
    if "bridge" in interconnect:
        pair = own if own is not None and own.kind == "scale-up" else _unnamed(chip, _BRIDGED_PAIR)
        return pair if count <= _BRIDGED_PAIR and pair else pcie_link(chip, catalog=catalog)
    if own is not None and own.kind == "scale-up" and chip.kind != "gpu-consumer":
        if names_fabric and own.domain_devices != _BRIDGED_PAIR:
            return own  # e.g. 16 GPUs behind one NVSwitch, more than the usual domain
        if count <= (own.domain_devices or count) and own.domain_devices != _BRIDGED_PAIR:
            return own
    if own is None and (names_fabric or not (chip.interconnect or "PCIe").startswith(("PCIe", "NVLink"))):
        return _unnamed(chip, None) or pcie_link(chip, catalog=catalog)
    return pcie_link(chip, catalog=catalog)


def _as_achieved(link: Link | None, chip: Chip, count: float) -> Link | None:
    """With what collectives between so many devices of this machine reached, where `gpuwise measure` timed them."""
    rates = chip.achieved
    if link is None or rates is None or rates.all_reduce_devices != count or not rates.all_reduce_busbw_bytes_per_s:
        return link
    error = max(rates.all_reduce_error, _LEAST_ERROR)
    return replace(
        link,
        name=f"{link.name} as measured here (± {100 * rates.all_reduce_error:.0f} %)",
        allreduce_busbw_bytes_per_s=rates.all_reduce_busbw_bytes_per_s,
        allreduce_condition=f"{rates.all_reduce_devices} devices, the largest all-reduce of gpuwise measure",
        latency_s=rates.all_reduce_latency_s,
        collective_busbw_bytes_per_s=rates.collective_busbw_bytes_per_s,
        exchange_spread=rates.collective_spread or (1 / (1 + error), 1 + error),
        sources={**link.sources, "allreduce_busbw_bytes_per_s": MEASURED_HERE},
    )


def host_link(chip: Chip, catalog: Catalog) -> Link | None:
    """The link from the host to the chip: its PCIe slot, or PCIe 4.0 x16 if the generation is unknown; None for a CPU."""
    if chip.kind == "cpu":
        return None
    link, rates = pcie_link(chip, catalog=catalog) or catalog.links["pcie4x16"], chip.achieved
    if rates is None or not rates.host_link_bytes_per_s:
        return link
    name = f"{link.name} as measured here (± {100 * rates.host_link_error:.0f} %)"
    return replace(link, name=name, achieved_bytes_per_s=rates.host_link_bytes_per_s)


def most_inside(chip: Chip, *, catalog: Catalog) -> int:
    """Devices of one machine at most: the domain of the chip's own link where that joins more than a pair (8 GPUs of an
    NVSwitch board, a whole TPU pod), else what PCIe machines hold; of CPUs, sockets."""
    if chip.kind == "cpu":
        return _MOST_SOCKETS
    own = catalog.links.get(chip.link_id or "")
    if own is not None and own.kind == "scale-up" and own.domain_devices not in (None, _BRIDGED_PAIR):
        return own.domain_devices or _MOST_ON_PCIE
    return _MOST_ON_PCIE


def _unnamed(chip: Chip, devices: int | None) -> Link | None:
    """A link known only through the chip's own row."""
    if chip.link_bandwidth_bytes_per_s is None:
        return None
    return Link(
        f"{chip.id}-link",
        chip.interconnect or "device link",
        "scale-up",
        domain_devices=devices,
        per_direction_bytes_per_s=chip.link_bandwidth_bytes_per_s,
        source=chip.source_of("link_bandwidth_bytes_per_s"),
    )


def pcie_link(chip: Chip, *, catalog: Catalog) -> Link | None:
    """The chip's PCIe slot by generation and lanes; None when the generation is unknown."""
    if chip.pcie_generation not in _PCIE:
        return None
    link = catalog.links[_PCIE[chip.pcie_generation]]
    if chip.kind == "gpu-consumer" or chip.id in _WITHOUT_PEERS:
        link = replace(link, technology="pcie-through-host")
    lanes = 8 if "x8" in (chip.interconnect or "") else 16
    if lanes == 16 and chip.pcie_generation != 2:
        return link
    generation = chip.pcie_generation
    return replace(
        link,
        id=f"pcie{generation}x{lanes}",
        name=f"PCIe {generation}.0 x{lanes}",
        links_per_device=lanes,
        per_link_bytes_per_s=_PCIE_LANE_BYTES_PER_S[generation],
        per_direction_bytes_per_s=_PCIE_LANE_BYTES_PER_S[generation] * lanes,
        allreduce_busbw_bytes_per_s=None,
        allreduce_condition=None,
    )


def link_between(offer: Offer, *, catalog: Catalog) -> Link | None:
    """The link from this machine to another of the same offer, per node; None when the network is unknown."""
    if offer.network_link_id is not None:
        return catalog.link(offer.network_link_id)
    if offer.network_bytes_per_s is None:
        return None
    gbit = offer.network_bytes_per_s * 8 / 1e9
    return Link(
        f"ethernet-{gbit:g}g",
        f"{gbit:g} Gbit/s network",
        "scale-out",
        technology=network_technology(offer.network_bytes_per_s),
        fabric="network",
        serves="machine",
        per_direction_bytes_per_s=offer.network_bytes_per_s,
        source=offer.source_of("network_bytes_per_s"),
    )


def network_technology(bytes_per_s: float) -> str:
    """The technology of a network of which only the bandwidth of a machine is known."""
    return "roce" if bytes_per_s * 8 / 1e9 >= _RDMA_GBIT_PER_S else "ethernet"


def machine_of(offer: Offer, *, catalog: Catalog) -> Machine:
    """The machine an offer sells. Of a CPU offer count is sockets: vCPUs (two a core, but on Arm one) by cores."""
    chip = catalog.chip(offer.chip_id)
    cores = None if offer.vcpus is None else (offer.vcpus if chip.vendor == "AWS" else max(1, offer.vcpus // 2))
    count = offer.count
    if count == 0:
        count = max(1, round(cores / chip.sm_count)) if cores and chip.sm_count else 1
    return Machine(
        chip,
        count,
        link_inside(offer, offer.count, catalog=catalog),
        link_between(offer, catalog=catalog),
        cores,
        offer.host_memory_bytes,
        f"{offer.provider} {offer.instance}",
    )
