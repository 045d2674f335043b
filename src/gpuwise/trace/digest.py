"""digest: a hash of the operations and sizes of a step, equal in every process."""

from __future__ import annotations

import json
from hashlib import sha256

import numpy as np

from gpuwise.strategy import Strategy
from gpuwise.trace.trace import Trace

FORM = 2  # counted up when other things enter the digest
# Fields of a strategy that change how a step runs and that its operations and storages do not show.
_OF_STRATEGY = ("precision", "accumulation", "compile", "channels_last", "offload", "mode")


def digest(trace: Trace, strategy: Strategy) -> str:
    """32 hexadecimal digits, equal for two traces whose steps launch the same operations in the same order on the same sizes
    and hold the same memory.

    Names of jobs and modules, assumptions, and the order of the tables' rows do not count.

    Arguments:
        trace: of the step.
        strategy: of the step, on one device.
    """
    state = sha256(
        json.dumps(
            [
                FORM,
                trace.header.target,
                sorted(trace.header.sizes.items()),
                [getattr(strategy, name) for name in _OF_STRATEGY],
            ]
        ).encode()
    )
    ops, sequence, storages = trace.operations, trace.sequence, trace.storages
    values = np.ascontiguousarray(ops.values, dtype="<i8")
    groups = ["", *(f"{group.axis} {group.ranks} {group.stride} " for group in trace.header.groups)]
    layouts = ["", "contiguous ", "channels-last "]
    rows = [
        f"{name} {dtype} {kind} {groups[group + 1]}{layouts[layout + 1]}".encode() + row.tobytes()
        for name, dtype, kind, group, layout, row in zip(
            ops.name, ops.dtype, ops.kind.tolist(), ops.group.tolist(), ops.channels_last.tolist(), values, strict=True
        )
    ]
    used = sorted({rows[index] for index in np.unique(sequence.operation).tolist()})
    number = {row: index for index, row in enumerate(used)}
    numbers = np.array([number.get(row, -1) for row in rows], dtype="<i8")
    for row in used:
        state.update(row)
    for column in (numbers[sequence.operation], sequence.phase, sequence.micro_step):
        state.update(column.astype("<i8").tobytes())
    if sequence.stream.any():
        for column in (sequence.stream, trace.waits.position, trace.waits.stream, trace.waits.on):
            state.update(column.astype("<i8").tobytes())
    columns = [column.astype("<i8") for column in (storages.size_bytes, storages.category, storages.born, storages.died)]
    if storages.stream.any():
        columns.append(storages.stream.astype("<i8"))
    order = np.lexsort(columns)
    for column in columns:
        state.update(column[order].tobytes())
    return state.hexdigest()[:32]
