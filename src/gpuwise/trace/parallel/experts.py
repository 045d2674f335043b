"""One of several expert-parallel ranks: it holds some experts of each block, and computes them for the tokens of all ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuwise.errors import InputError, UnsupportedError
from gpuwise.strategy import Strategy
from gpuwise.trace.parallel.communication import Collective, group_along
from gpuwise.trace.parallel.experts_packed import packed_rank
from gpuwise.trace.parallel.segments import FORWARD, select
from gpuwise.trace.parallel.variant import EXPERT
from gpuwise.trace.tables import BEFORE, CATEGORIES, COLUMNS, KINDS, PHASES
from gpuwise.trace.trace import Trace

_GEMM, _RECOMPUTE = KINDS.index("gemm"), PHASES.index("recompute")
_STATE = CATEGORIES.index("optimizer_state")
_OF_ACTIVATIONS = [CATEGORIES.index(name) for name in ("activation", "temporary")]


def experts_of(trace: Trace) -> int:
    """Experts of each mixture of a model; 0 where it has none."""
    if trace.header.experts:
        return trace.header.experts
    return 1 + max((int(match[2]) for path in trace.modules if (match := EXPERT.match(path))), default=-1)


def expert_parallel(trace: Trace, strategy: Strategy) -> tuple[Trace, tuple[Collective, ...]]:
    """The step of one rank along ep, and the collectives of that axis.

    Every expert gets as many tokens as the others. A rank keeps the first of the experts, each with the tokens of all ranks.

    Raises UnsupportedError for a step without experts, InputError where ep does not divide them.
    """
    degree = strategy.mesh.ep
    count = experts_of(trace)
    if count < 2:
        raise UnsupportedError(
            f"{trace.header.job} has no experts: none of its modules is one of several `experts`.", ["leave out ep of --mesh"]
        )
    if count % degree:
        most = next(n for n in range(min(degree, count), 0, -1) if count % n == 0)
        raise InputError(f"expert parallelism over {degree} devices does not divide {count} experts.", [f"--mesh ep={most}"])
    if trace.header.expert_modules:
        return packed_rank(trace, strategy)
    expert = np.array([int(match[2]) if (match := EXPERT.match(path)) else -1 for path in trace.modules])
    moved = _moved(trace, strategy, expert)
    elsewhere = expert >= count // degree
    sequence, storages = trace.sequence, trace.storages
    stays = ~elsewhere[sequence.module]
    born_there = (storages.born >= 0) & ~stays[np.maximum(storages.born, 0)]
    # The state of an optimizer stays whole, as the update of all ranks does, and is divided with that.
    lasting = (storages.born == BEFORE) & (storages.category != _STATE) & elsewhere[storages.module]
    ours = (expert >= 0) & ~elsewhere
    more = ours[storages.module] & np.isin(storages.category, _OF_ACTIVATIONS)
    sizes = np.where(more & (storages.born >= 0), storages.size_bytes * degree, storages.size_bytes)
    grown = _with_more_tokens(replace(trace, storages=replace(storages, size_bytes=sizes)), ours, degree)
    return select(grown, stays, ~born_there & ~lasting), moved


def _with_more_tokens(trace: Trace, ours: np.ndarray, degree: int) -> Trace:
    """Operations of this rank's experts on `degree` times as many tokens: rows of products, all bytes but those of weights."""
    operations, sequence = trace.operations, trace.sequence
    key = sequence.operation.astype(np.int64) * 2 + ours[sequence.module]
    keys, row = np.unique(key, return_inverse=True)
    rows, more = keys // 2, keys % 2 == 1
    values = operations.values[rows].astype(np.float64)
    names = ("flops", "bytes_read", "bytes_written", "m", "n", "k")
    flops, read, written, m, n, k = (COLUMNS.index(name) for name in names)
    product, tokens = operations.kind[rows] == _GEMM, _tokens(trace, ours)
    forward = np.unique(row[np.isin(sequence.phase, [FORWARD, _RECOMPUTE])])
    # Gradients of weights sum over tokens. Elsewhere a width that happens to be the number of tokens is one.
    tokens_in_k = product & (values[:, k] == tokens) & (values[:, m] != tokens) & ~np.isin(np.arange(len(rows)), forward)
    left, right = values[:, m] * values[:, k], values[:, n] * values[:, k]
    grown = np.where(tokens_in_k, degree * (left + right), degree * left + right) / np.maximum(left + right, 1)
    values[:, flops] *= np.where(more, degree, 1)
    values[:, read] *= np.where(more, np.where(product, grown, degree), 1)
    values[:, written] *= np.where(more & ~tokens_in_k, degree, 1)
    values[:, m] *= np.where(more & product & ~tokens_in_k, degree, 1)
    values[:, k] *= np.where(more & tokens_in_k, degree, 1)
    return replace(
        trace,
        operations=replace(operations.take(rows), values=values.astype(np.int64)),
        sequence=replace(sequence, operation=row.ravel().astype(np.int32)),
    )


def _tokens(trace: Trace, ours: np.ndarray) -> int:
    """Tokens of one expert: rows of its first product."""
    sequence, kind = trace.sequence, trace.operations.kind[trace.sequence.operation]
    positions = np.flatnonzero((kind == _GEMM) & ours[sequence.module] & (sequence.phase == FORWARD))
    return int(trace.operations.column("m")[sequence.operation[positions[0]]]) if len(positions) else 0


def _moved(trace: Trace, strategy: Strategy, expert: np.ndarray) -> tuple[Collective, ...]:
    """Tokens go to their experts and back, in forward and in backward: two all-to-alls each."""
    sequence, operations = trace.sequence, trace.operations
    kind = operations.kind[sequence.operation]
    block: dict[str, int] = {}
    of_expert = (kind == _GEMM) & (sequence.micro_step == 0) & (expert[sequence.module] == 0)
    repeated = 1 + bool((sequence.phase[of_expert] == PHASES.index("recompute")).any())
    for position in np.flatnonzero(of_expert & (sequence.phase == FORWARD)).tolist():
        match = EXPERT.match(trace.modules[int(sequence.module[position])])
        assert match is not None
        block.setdefault(match[1], position)
    element_bytes = {"float32": 4}
    total = 0
    for position in block.values():
        row = int(sequence.operation[position])
        tokens, width = int(operations.column("m")[row]), int(operations.column("k")[row])
        total += tokens * (int(expert.max()) + 1) * width * element_bytes.get(operations.dtype[row], 2)
    passes = 2 * (repeated + 1)
    group, micro_batches = group_along(strategy.mesh, "ep"), strategy.accumulation
    return (Collective("all_to_all", group, passes * total * micro_batches, passes * len(block) * micro_batches),)
