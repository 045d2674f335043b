"""The time of one rank's step by phase: its kernels, its host, and the communication that it waits for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import fsum

import numpy as np

from gpuwise.cost.calibration import Calibration
from gpuwise.cost.calibration import calibration as known_calibration
from gpuwise.cost.host import host_s
from gpuwise.cost.kernels import KernelTimes, kernel_times
from gpuwise.cost.network.buffers import copies_s
from gpuwise.cost.network.collectives import CollectiveTime, CommunicationTime, collective_time, communication_time
from gpuwise.cost.parameters import Parameters
from gpuwise.cost.parameters import parameters as shipped_parameters
from gpuwise.cost.rates import check_can_run
from gpuwise.cost.timeline.durations import durations
from gpuwise.cost.timeline.micro_batches import MicroBatchWaits
from gpuwise.cost.timeline.streams import stream_time
from gpuwise.hardware.cluster import Cluster
from gpuwise.notes.parallel import simulated_streams
from gpuwise.strategy import Strategy
from gpuwise.trace.parallel.communication import Communication
from gpuwise.trace.parallel.ranks import RankStep
from gpuwise.trace.tables import PHASES
from gpuwise.trace.trace import Trace


@dataclass(frozen=True)
class RankTime:
    """The seconds of one rank in one step, without idle time and input.

    Attributes:
        step: what the rank runs.
        times: of its kernels.
        phase_s: by phase, what the rank needs without communication: the time of its kernels, longer by the same factor in
            each phase where the host needs longer to launch them.
        exchange: its communication, but for sends between stages of a pipeline.
        send: one send between stages; None where there is none.
        waits: what each micro-batch waits for, where the rank of a pipeline was recorded; None (default): all wait alike.
        host_s: what its host needs to launch the step; 0 by default.
    """

    step: RankStep
    times: KernelTimes
    phase_s: Mapping[str, float]
    exchange: CommunicationTime
    send: CollectiveTime | None
    waits: MicroBatchWaits | None = None
    host_s: float = 0.0

    @property
    def micro_batches(self) -> int:
        """Micro-batches of the step."""
        return self.step.trace.accumulation

    @property
    def alone_s(self) -> float:
        """Seconds without communication."""
        return fsum(self.phase_s.values())

    @property
    def busy_s(self) -> float:
        """Seconds with communication, but for sends between stages."""
        return self.alone_s + self.exchange.exposed_s

    @property
    def micro_batches_s(self) -> float:
        """Seconds of all micro-batches, with the communication that each waits for."""
        return self.alone_s - self.phase_s["optimizer"] + self.exchange.each_micro_batch_s

    def busy_for(self, share: float) -> RankTime:
        """The rank where each of its seconds takes such a share of one."""
        if share == 1:
            return self
        times, exchange = self.times, self.exchange
        return replace(
            self,
            times=replace(times, device_s=share * times.device_s, floor_s=share * times.floor_s),
            phase_s={phase: share * seconds for phase, seconds in self.phase_s.items()},
            host_s=share * self.host_s,
            exchange=replace(
                exchange,
                total_s=share * exchange.total_s,
                exposed_s=share * exchange.exposed_s,
                each_micro_batch_s=share * exchange.each_micro_batch_s,
                by_axis={axis: share * seconds for axis, seconds in exchange.by_axis.items()},
            ),
        )


def rank_times(
    steps: Iterable[RankStep],
    cluster: Cluster,
    *,
    strategy: Strategy,
    parameters: Parameters | None = None,
    calibration: Calibration | None = None,
) -> tuple[RankTime, ...]:
    """The times of the ranks that differ, in their order. Arguments and errors as for gpuwise.cost.price.price_ranks."""
    check_can_run(cluster.chip, mode=strategy.mode, precision=strategy.precision)
    parameters, calibration = parameters or shipped_parameters(), calibration or known_calibration(cluster.chip)
    return tuple(rank_time(step, cluster, parameters=parameters, calibration=calibration) for step in steps)


def slowest(ranks: Iterable[RankTime]) -> RankTime:
    """The rank that is busy longest."""
    return max(ranks, key=lambda rank: rank.busy_s)


def rank_time(step: RankStep, cluster: Cluster, *, parameters: Parameters, calibration: Calibration) -> RankTime:
    """The time of a rank.

    Where the step was recorded on its mesh, its streams are simulated, and communication adds to the step what it adds there.
    Composed steps take the overlap of each collective from a rule (see communication_time). A device that waits for its host
    copies into buffers and out of them in the meantime.
    """
    trace, communication = step.trace, step.communication
    times = kernel_times(trace, cluster.chip, parameters, calibration)
    device_s = {phase: float(np.sum(trace.counts(phase) * times.device_s)) for phase in PHASES}
    busy_s = sum(device_s.values())
    launching_s = host_s(trace, cluster.chip, parameters, communication)
    alone_s = max(busy_s, launching_s)
    stretch = alone_s / busy_s if busy_s else 1.0
    waiting_s = alone_s - busy_s
    phase_s = {phase: stretch * seconds for phase, seconds in device_s.items()}
    # What rounding leaves is the longest phase's, so that phases add up to the step.
    longest = max(phase_s, key=phase_s.__getitem__)
    phase_s[longest] = fsum([alone_s, *(-seconds for phase, seconds in phase_s.items() if phase != longest)])
    exchange = communication_time(
        Communication(tuple(c for c in communication.collectives if not c.between_stages)),
        cluster,
        backward_s=phase_s["backward"] + phase_s["recompute"],
        forward_s=phase_s["forward"],
        micro_batches=trace.accumulation,
        parameters=parameters,
    )
    if cluster.devices > 1 and cluster.chip.kind != "cpu":
        copies = copies_s(
            communication,
            cluster.chip,
            precision=trace.header.strategy.precision,
            parameters=parameters,
            calibration=calibration,
        )
        copied_s = min(waiting_s, sum(copies.values()))
        left = 1 - copied_s / sum(copies.values()) if copied_s else 1.0
        exchange = with_copies(exchange, {axis: left * seconds for axis, seconds in copies.items()})
        waiting_s -= copied_s
    waits = None
    if step.recorded is not None and cluster.devices > 1:
        exchange, waits = _on_streams(exchange, step.recorded, cluster, kernel_s=times.device_s, parameters=parameters)
    else:
        exchange = beside_launches(exchange, waiting_s=waiting_s)
    return RankTime(step, times, phase_s, exchange, _send(communication, cluster, parameters), waits, launching_s)


def _on_streams(
    exchange: CommunicationTime, recorded: Trace, cluster: Cluster, *, kernel_s: np.ndarray, parameters: Parameters
) -> tuple[CommunicationTime, MicroBatchWaits | None]:
    """What communication adds to a recorded step, by a simulation of its streams, and to each micro-batch of a pipeline."""
    if not exchange.total_s:
        return exchange, None
    slowdown, on_cpu = parameters.overlap_slowdown, cluster.chip.kind == "cpu"
    added = stream_time(
        recorded,
        durations(recorded, cluster, kernel_s=kernel_s, parameters=parameters),
        slowdown=slowdown,
        one_stream=on_cpu,
    )
    kept = tuple(note for note in exchange.notes if note.kind != "waits-for-collectives")
    on_streams = replace(
        exchange,
        total_s=added.total_s,
        exposed_s=added.exposed_s,
        each_micro_batch_s=0.0 if added.waits is None else added.waits.total_s,
        by_axis=added.by_axis,
        notes=(*kept, simulated_streams(slowdown=0.0 if on_cpu else slowdown)),
    )
    return on_streams, added.waits


def beside_launches(exchange: CommunicationTime, *, waiting_s: float) -> CommunicationTime:
    """What communication adds where the device waits so long for its host: collectives that micro-batches wait for are
    launched in turn with the kernels, and run in the meantime."""
    hidden_s = min(waiting_s, exchange.each_micro_batch_s)
    if hidden_s <= 0:
        return exchange
    share = 1 - hidden_s / exchange.exposed_s
    return replace(
        exchange,
        exposed_s=exchange.exposed_s - hidden_s,
        each_micro_batch_s=exchange.each_micro_batch_s - hidden_s,
        by_axis={axis: share * seconds for axis, seconds in exchange.by_axis.items()},
    )


def _send(communication: Communication, cluster: Cluster, parameters: Parameters) -> CollectiveTime | None:
    """One send to a neighbour; sending and receiving go on at the same time."""
    sends = [c for c in communication.collectives if c.between_stages and c.payload_bytes and c.calls]
    if not sends or cluster.devices == 1:
        return None
    largest = max(sends, key=lambda c: c.payload_bytes / c.calls)
    return collective_time(
        "send",
        payload_bytes=largest.payload_bytes / largest.calls,
        group=largest.group,
        cluster=cluster,
        parameters=parameters,
    )


def with_copies(exchange: CommunicationTime, copies: Mapping[str, float]) -> CommunicationTime:
    """A rank's communication with the seconds of copies into and out of its buffers, by axis."""
    by_axis = {axis: exchange.by_axis.get(axis, 0.0) + copies.get(axis, 0.0) for axis in {**exchange.by_axis, **copies}}
    return replace(exchange, exposed_s=exchange.exposed_s + sum(copies.values()), by_axis=by_axis)


def with_sends(exchange: CommunicationTime, send: CollectiveTime | None, *, exposed_s: float) -> CommunicationTime:
    """A rank's communication with its sends between stages, which add so many seconds to the step."""
    if send is None:
        return exchange
    spreads = [spread for spread in (exchange.spread, send.spread) if spread is not None]
    widest = (min(low for low, _ in spreads), max(high for _, high in spreads)) if spreads else None
    return replace(
        exchange,
        total_s=exchange.total_s + exposed_s,
        exposed_s=exchange.exposed_s + exposed_s,
        notes=tuple(dict.fromkeys((*exchange.notes, *send.notes))),
        unverified=tuple(dict.fromkeys((*exchange.unverified, *([send.unverified] if send.unverified else [])))),
        spread=widest,
        by_axis={**exchange.by_axis, "pp": exchange.by_axis.get("pp", 0.0) + exposed_s},
    )
