"""One of several context-parallel ranks: its part of each sequence attends to all of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuwise.strategy import Strategy
from gpuwise.strategy.parallelism import check_heads
from gpuwise.trace.parallel.communication import Collective, group_along
from gpuwise.trace.tables import CATEGORIES, COLUMNS, KINDS, PHASES, Storages
from gpuwise.trace.trace import Trace

_ATTENTION, _BUFFER = KINDS.index("attention"), CATEGORIES.index("communication_buffer")
_BACKWARD = PHASES.index("backward")


def context_parallel(trace: Trace, strategy: Strategy) -> tuple[Trace, tuple[Collective, ...]]:
    """The step of one rank along cp, and the collectives of that axis.

    Arguments:
        trace: the step on a sequence as long as one rank's part.

    Attention's queries are the rank's part. With "gather" and "ring" its keys are the whole sequence, with "all-to-all" it has
    all queries and keys of some heads. Under a causal mask every rank is assumed to do the mean of all ranks.

    Raises InputError where "all-to-all" does not divide the heads.
    """
    degree, ops = strategy.mesh.cp, trace.operations
    rows = np.flatnonzero(ops.kind == _ATTENTION)
    values = ops.values.copy()
    keys_bytes = _keys_bytes(trace, rows)  # of one rank's keys and values, by operation
    m, n, flops, read, written, batch = (COLUMNS.index(c) for c in ("m", "n", "flops", "bytes_read", "bytes_written", "batch"))
    values[rows, flops] *= degree
    values[rows, n] *= degree
    if strategy.parallelism.context == "all-to-all":
        check_heads(degree, [int(each) // trace.header.sizes["micro_batch"] for each in values[rows, batch]])
        values[rows, m] *= degree
        values[rows, batch] = -(-values[rows, batch] // degree)
    else:
        more = (degree - 1) * keys_bytes
        values[rows, read] += more
        values[rows, written] += np.where(_is_backward(trace, rows), more, 0)
    step = replace(trace, operations=replace(ops, values=values))
    whole = dict(zip(rows.tolist(), (degree * keys_bytes).tolist(), strict=True))
    if strategy.parallelism.context == "gather":
        step = _with_gathered(step, whole)
    return step, _traffic(trace, strategy, whole)


def _is_backward(trace: Trace, rows: np.ndarray) -> np.ndarray:
    return np.array(["_backward" in trace.operations.name[row] for row in rows.tolist()], dtype=bool)


def _keys_bytes(trace: Trace, rows: np.ndarray) -> np.ndarray:
    """Bytes of keys and values that attention of forward reads; of backward, those of the forward with the same sizes."""
    operations = trace.operations
    sizes = operations.values[rows][:, [COLUMNS.index(name) for name in ("batch", "m", "n", "k")]]
    read, written = (operations.column(name)[rows] for name in ("bytes_read", "bytes_written"))
    forward = ~_is_backward(trace, rows)
    own = np.zeros(len(rows), dtype=np.int64)
    for index in np.flatnonzero(forward).tolist():
        element_bytes = 4 if trace.operations.dtype[rows[index]] == "float32" else 2
        queries_bytes = int(np.prod(sizes[index][[0, 1, 3]])) * element_bytes
        own[index] = max(0, min(int(read[index]) - queries_bytes, int(written[index]) * 2))
    for index in np.flatnonzero(~forward).tolist():
        same = [other for other in np.flatnonzero(forward).tolist() if np.array_equal(sizes[other], sizes[index])]
        own[index] = own[same[0]] if same else 0
    return own


def _with_gathered(trace: Trace, whole: dict[int, int]) -> Trace:
    """The step with the gathered keys and values, which backward needs again: they live as long as attention's output."""
    sequence, storages = trace.sequence, trace.storages
    added = []
    for position in np.flatnonzero(np.isin(sequence.operation, list(whole)) & (sequence.phase != _BACKWARD)).tolist():
        output = np.flatnonzero(storages.born == position)
        if len(output):
            added.append((whole[int(sequence.operation[position])], position, int(storages.died[output].max())))
    if not added:
        return trace
    size_bytes, born, died = np.array(added).T
    return replace(
        trace,
        storages=Storages(
            np.concatenate([storages.size_bytes, size_bytes]),
            np.concatenate([storages.category, np.full(len(added), _BUFFER)]).astype(np.int8),
            np.concatenate([storages.module, sequence.module[born]]).astype(storages.module.dtype),
            np.concatenate([storages.born, born]).astype(storages.born.dtype),
            np.concatenate([storages.died, died]).astype(storages.died.dtype),
            np.concatenate([storages.stream, np.zeros(len(added))]).astype(storages.stream.dtype),
        ),
    )


def _traffic(trace: Trace, strategy: Strategy, whole: dict[int, int]) -> tuple[Collective, ...]:
    """What attention exchanges, by kind of context parallelism."""
    sequence, group = trace.sequence, group_along(strategy.mesh, "cp")
    first = np.flatnonzero((sequence.micro_step == 0) & np.isin(sequence.operation, list(whole)))
    keys = dict.fromkeys(("forward", "backward"), 0)
    calls = dict.fromkeys(keys, 0)
    parts_bytes = 0
    for position in first.tolist():
        row = int(sequence.operation[position])
        way = "backward" if sequence.phase[position] == _BACKWARD else "forward"
        keys[way] += whole[row]
        calls[way] += 1
        parts_bytes += int(trace.operations.column("bytes_read")[row] + trace.operations.column("bytes_written")[row])
    micro_batches, ranks = strategy.accumulation, group.ranks
    if strategy.parallelism.context == "all-to-all":  # queries, keys, values and the output; their gradients in backward
        total = sum(calls.values())
        return (Collective("all_to_all", group, parts_bytes * micro_batches, 4 * total * micro_batches),)
    if strategy.parallelism.context == "ring":  # keys and values go round once, in backward with their gradients
        moved = (keys["forward"] + 2 * keys["backward"]) * (ranks - 1) // ranks
        steps = (calls["forward"] + 2 * calls["backward"]) * (ranks - 1)
        return (Collective("send", group, moved * micro_batches, steps * micro_batches),)
    return (
        Collective("all_gather", group, keys["forward"] * micro_batches, 2 * calls["forward"] * micro_batches),
        Collective("reduce_scatter", group, keys["backward"] * micro_batches, 2 * calls["backward"] * micro_batches),
    )
