"""The host of Megatron-LM beside its device: where it waits for the device, and the calls that gpuwise does not count.

gpuwise lets the host run ahead through a whole step, so that the longer of the two counts. What a checkpointed block and a
micro-batch add is counted as in any step (gpuwise.cost.host). Under Megatron-LM the host starts behind the device again

- at each micro-batch, whose sizes it copies from the device (megatron/mpu/data.py, broadcast_data),
- and at each send between stages (torch.cuda.synchronize in megatron/p2p_communication.py), so before and after backward;
- with CUDA_LAUNCH_BLOCKING=1 at each kernel.

Each collective of tensor parallelism is a call from Python too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpuwise.cost.host import launch_s
from gpuwise.cost.parameters import Parameters, parameters
from gpuwise.cost.rank_time import RankTime, beside_launches
from gpuwise.hardware.cluster import Cluster
from gpuwise.trace.tables import PHASES
from gpuwise.trace.trace import Trace

_FORWARD, _BACK = ("forward",), ("recompute", "backward")


@dataclass(frozen=True)
class MegatronHost:
    """Seconds that the host spends on a call.

    Attributes:
        forward_s: of an operation in forward, and in forward computed again.
        backward_s: of an operation in backward.
        collective_s: of a collective of tensor parallelism.
    """

    forward_s: float
    backward_s: float
    collective_s: float

    def figures(self) -> Parameters:
        """The shipped figures with these; the update's is that of other trainers."""
        shipped = parameters()
        phases = {"forward": self.forward_s, "recompute": self.forward_s, "backward": self.backward_s}
        return replace(shipped, host_operation_s={**shipped.host_operation_s, **phases})


def no_host(figures: Parameters) -> Parameters:
    """The figures with a host that takes no time."""
    return replace(figures, host_operation_s=dict.fromkeys(PHASES, 0.0), host_kernel_s=0.0)


def beside_megatron_host(
    rank: RankTime, cluster: Cluster, *, host: MegatronHost, blocking: bool, neighbours: int = 0
) -> RankTime:
    """The rank's time with that host.

    Arguments:
        rank: timed with the figures of no_host.
        blocking: whether CUDA_LAUNCH_BLOCKING is set.
        neighbours: ranks of the pipeline that it sends to. Default 0.
    """
    trace, phase_s = rank.step.trace, dict(rank.phase_s)
    calls = sum(c.calls for c in rank.step.communication.collectives if c.group.axis == "tp" and not c.in_update)
    host_s = launch_s(trace, cluster.chip, host.figures()) + _spread(trace, calls * host.collective_s)
    device_s = rank.times.device_s[trace.sequence.operation]
    with_collectives_s = device_s + _spread(trace, rank.exchange.each_micro_batch_s)
    waited_s = 0.0
    for span in (*((_FORWARD, _BACK) if rank.send is not None else ((*_FORWARD, *_BACK),)), ("optimizer",)):
        busy_s = sum(phase_s[phase] for phase in span)
        alone_s, total_s = (
            _span_s(trace, span, device_s=seconds, host_s=host_s, blocking=blocking)
            for seconds in (device_s, with_collectives_s)
        )
        waited_s += total_s - alone_s
        phase_s |= {phase: phase_s[phase] * alone_s / busy_s for phase in span if busy_s}
    send = rank.send
    if blocking and send is not None:
        # Both ends of a send wait for it: in forward and in backward a micro-batch passes each neighbour once.
        passing_s = neighbours * rank.micro_batches * send.seconds
        phase_s = {**phase_s, **{phase: phase_s[phase] + passing_s for phase in ("forward", "backward")}}
        send = None
    exchange = beside_launches(rank.exchange, waiting_s=rank.exchange.each_micro_batch_s - waited_s)
    return replace(rank, phase_s=phase_s, exchange=exchange, send=send, host_s=float(host_s @ trace.repeats))


def _span_s(trace: Trace, span: tuple[str, ...], *, device_s: np.ndarray, host_s: np.ndarray, blocking: bool) -> float:
    """Seconds of these phases in a step, between whose starts and ends the host runs ahead of the device."""
    sequence, total_s = trace.sequence, 0.0
    inside = np.isin(sequence.phase, [PHASES.index(phase) for phase in span])
    if blocking:
        return float(np.sum(((device_s + host_s) * trace.repeats)[inside]))
    for micro_step in np.unique(sequence.micro_step[inside]).tolist():
        rows = np.flatnonzero(inside & (sequence.micro_step == micro_step))
        total_s += int(trace.repeats[rows].max()) * queued_s(device_s=device_s[rows], host_s=host_s[rows])
    return total_s


def queued_s(*, device_s: np.ndarray, host_s: np.ndarray) -> float:
    """Seconds until the device is done with operations that the host launches one after the other: each starts when it is
    launched and the one before is done."""
    after_s = np.cumsum(device_s[::-1])[::-1]
    return float(np.max(np.cumsum(host_s) + after_s, initial=0.0))


def _spread(trace: Trace, seconds: float) -> np.ndarray:
    """Seconds of all micro-batches of a step as seconds of each position."""
    inside = trace.sequence.phase != PHASES.index("optimizer")
    runs = float(np.sum(trace.repeats[inside]))
    each: np.ndarray = np.where(inside, seconds / runs if runs else 0.0, 0.0)
    return each
