"""The seconds of each position of a recorded rank: its kernels, its collectives, and what the host needs to launch them."""

from __future__ import annotations

import numpy as np

from gpuwise.cost.host import launch_s
from gpuwise.cost.network.collectives import collective_time
from gpuwise.cost.parameters import Parameters
from gpuwise.cost.timeline.streams import Durations
from gpuwise.hardware.cluster import Cluster
from gpuwise.trace.parallel.recorded import collective_of
from gpuwise.trace.trace import Trace


def durations(trace: Trace, cluster: Cluster, *, kernel_s: np.ndarray, parameters: Parameters) -> Durations:
    """The durations of a recorded rank's positions.

    Receives take no time, nor do sends between stages of a pipeline, whose ranks gpuwise.cost.timeline.pipeline simulates.

    Arguments:
        kernel_s: seconds of one run of each distinct operation; those of collectives do not count. Shape (operations,).

    Raises UnsupportedError where the bandwidth of a needed link is unknown.
    """
    operations, seconds = trace.operations, kernel_s.copy()
    crosses = np.zeros(len(operations), dtype=bool)
    payload_bytes = operations.payload_bytes
    for row in np.flatnonzero(operations.is_collective).tolist():
        operation, group = collective_of(operations.name[row]), trace.header.groups[operations.group[row]]
        seconds[row] = 0.0
        if operation is not None and group.axis != "pp" and group.ranks > 1 and payload_bytes[row]:
            payload = float(payload_bytes[row])
            call = collective_time(operation, payload_bytes=payload, group=group, cluster=cluster, parameters=parameters)
            seconds[row], crosses[row] = call.seconds, call.crosses
    positions = trace.sequence.operation
    return Durations(
        np.where(trace.uploads, 0.0, seconds[positions]), launch_s(trace, cluster.chip, parameters), crosses[positions]
    )
