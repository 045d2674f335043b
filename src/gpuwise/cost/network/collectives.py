"""Time of communicating gradients and parameters, and how much of it the backward pass does not hide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gpuwise.cost.parameters import Parameters
from gpuwise.errors import UnsupportedError
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.types import Link
from gpuwise.notes import Note
from gpuwise.notes.step import assumed_link_efficiency, measured_bus_bandwidth


class Traffic(Protocol):
    """The interface of gpuwise.trace.parallel.communication.Communication: bytes of full tensors in a step, and calls."""

    @property
    def all_reduce_bytes(self) -> int: ...
    @property
    def all_gather_bytes(self) -> int: ...
    @property
    def reduce_scatter_bytes(self) -> int: ...
    @property
    def calls(self) -> int: ...


@dataclass(frozen=True)
class CommunicationTime:
    """The communication time of one step.

    Attributes:
        total_s: seconds without overlap.
        exposed_s: seconds that communication adds to the step.
        bandwidth_bytes_per_s: bus bandwidth of one device in one direction; None without communication.
        note: source of the bandwidth; None (default) without communication.
        unverified: name of the figure if the catalog has no verified source for it; else "" (default).
    """

    total_s: float
    exposed_s: float
    bandwidth_bytes_per_s: float | None
    note: Note | None = None
    unverified: str = ""


NOTHING = CommunicationTime(0.0, 0.0, None)


def communication_time(
    traffic: Traffic,
    cluster: Cluster,
    *,
    backward_s: float,
    forward_s: float,
    micro_batches: int,
    parameters: Parameters,
) -> CommunicationTime:
    """Ring collectives over all devices of a cluster.

    A ring all-reduce moves 2 (n-1)/n of the payload over each device's link, an all-gather or reduce-scatter half of
    that. Across machines all rings together put the payload once through each machine's network, so a machine's whole
    line rate, of all its devices together, is the bound, unless the link inside is slower.

    Arguments:
        backward_s, forward_s: of the whole step. The gradients' all-reduce runs beside the backward pass of the last of
            the micro_batches; gathers and scatters of shards run beside every forward and backward pass.
    Raises UnsupportedError where the bandwidth of a needed link is unknown.
    """
    payload = traffic.all_reduce_bytes + traffic.all_gather_bytes + traffic.reduce_scatter_bytes
    if cluster.devices == 1 or payload == 0:
        return NOTHING
    bandwidth, latency, note, unverified = _bandwidth(cluster, parameters)
    ring = (cluster.devices - 1) / cluster.devices
    sharded = traffic.all_gather_bytes + traffic.reduce_scatter_bytes
    call_s = latency * max(1, traffic.calls)
    total = ring * (2 * traffic.all_reduce_bytes + sharded) / bandwidth + call_s
    window = backward_s + forward_s if sharded else backward_s / micro_batches
    hidden = min(total - call_s / max(1, traffic.calls), parameters.overlap_share * window)  # the last call has no cover
    exposed = total - hidden * (1 - parameters.overlap_slowdown)
    return CommunicationTime(total, exposed, bandwidth, note, unverified)


def _bandwidth(cluster: Cluster, parameters: Parameters) -> tuple[float, float, Note, str]:
    """Bytes a second, seconds a call, the note and the name of an unverified figure, of the slower link."""
    rates: list[tuple[float, float, Note, str]] = []
    if cluster.devices_per_machine > 1:
        rates.append(_rate(cluster.inside, "inside the machine", parameters.link_efficiency, parameters.call_latency_s))
    if cluster.machines > 1:
        efficiency, latency = parameters.network_efficiency, parameters.network_call_latency_s
        rate, latency, note, unverified = _rate(cluster.between, "between machines", efficiency, latency)
        rates.append((rate * cluster.lines_per_machine, latency, note, unverified))
    bandwidth, _, note, unverified = min(rates, key=lambda rate: rate[0])
    return bandwidth, max(latency for _, latency, _, _ in rates), note, unverified


def _rate(link: Link | None, where: str, efficiency: float, latency: float) -> tuple[float, float, Note, str]:
    if link is None or not (link.allreduce_busbw_bytes_per_s or link.per_direction_bytes_per_s):
        raise UnsupportedError(
            f"the bandwidth of the link {where} is unknown: an exchange over it cannot be priced.",
            ["ask for one device", "name a chip whose link the catalog has: `gpuwise chips`"],
        )
    latency = max(latency, link.latency_s or 0.0)
    figure = "allreduce_busbw_bytes_per_s" if link.allreduce_busbw_bytes_per_s else "per_direction_bytes_per_s"
    unverified = "" if link.source_of(figure).verified else f"{figure} of {link.name}"
    if link.allreduce_busbw_bytes_per_s:
        note = measured_bus_bandwidth(link=link.name)
        return link.allreduce_busbw_bytes_per_s, latency, note, unverified
    assert link.per_direction_bytes_per_s
    note = assumed_link_efficiency(link=link.name, efficiency=efficiency)
    return link.per_direction_bytes_per_s * efficiency, latency, note, unverified
