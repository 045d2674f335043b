"""The communication of a rank whose program was recorded on a mesh: its collectives are rows of the trace."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuwise.trace.parallel.communication import Collective, Communication
from gpuwise.trace.parallel.segments import select
from gpuwise.trace.trace import Trace

# Beginnings of operators' names without underscores; what a rank receives is on its way while it sends.
_OPERATIONS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "all_gather",
    "send": "send",
}


def split_communication(trace: Trace) -> tuple[Trace, Communication]:
    """The trace without the rows of its collectives, and those.

    The exchange of data-parallel ranks runs beside the computation, that along other axes does not.
    """
    operations, sequence = trace.operations, trace.sequence
    rows = np.flatnonzero(operations.is_collective)
    if not len(rows):
        return trace, Communication()
    in_update = trace.counts("optimizer")
    collectives = []
    for row in rows.tolist():
        operation, group = collective_of(operations.name[row]), trace.header.groups[operations.group[row]]
        if operation is None:
            continue
        of_data = group.axis.startswith(("dp", "data"))
        for calls, update in ((int(in_update[row]), True), (int(trace.counts()[row] - in_update[row]), False)):
            overlaps = "step" if of_data and not update else "nothing"
            size_bytes = calls * int(operations.payload_bytes[row])
            collectives.append(Collective(operation, group, size_bytes, calls, overlaps=overlaps, in_update=update))
    inside = np.isin(sequence.operation, rows)
    rest = select(trace, ~inside, np.ones(len(trace.storages), dtype=bool))
    return replace(rest, waits=type(rest.waits)()), Communication().and_also(*collectives)


def collective_of(name: str) -> str | None:
    """The collective of an operator, such as c10d._allgather_base_.default, as COLLECTIVES has it; None of receives."""
    plain = name.split(".")[1].replace("_", "")
    return next((word for beginning, word in _OPERATIONS.items() if plain.startswith(beginning)), None)
