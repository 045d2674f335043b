"""Traces made by hand for the tests of `gpuwise.trace`: two layers, two micro-batches, one optimizer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuwise.notes.job import assumed_sequence_length
from gpuwise.strategy import Mesh, Strategy
from gpuwise.trace import (
    BEFORE,
    CATEGORIES,
    COLUMNS,
    KINDS,
    PHASES,
    Header,
    Operations,
    OperationSequence,
    RankGroup,
    Storages,
    Trace,
    Waits,
)

ROWS = [  # operation, module, phase, micro_step: a position each
    (0, 1, "forward", 0),
    (0, 2, "forward", 0),
    (1, 2, "backward", 0),
    (1, 1, "backward", 0),
    (0, 1, "forward", 1),
    (0, 2, "forward", 1),
    (1, 2, "backward", 1),
    (2, 2, "backward", 1),
    (1, 1, "backward", 1),
    (3, 0, "optimizer", 2),
]


def small_trace(*, micro_batch: int = 2, seq_len: int = 4) -> Trace:
    """Counts grow with the batch, those of an activation with the square of the sequence."""
    tokens = micro_batch * seq_len
    values = np.zeros((4, len(COLUMNS)), dtype=np.int64)
    values[:, COLUMNS.index("flops")] = [100 * tokens, 200 * tokens, 10, 50]
    values[:, COLUMNS.index("bytes_read")] = [8 * tokens, 16 * tokens, 800, 4000]
    values[1, COLUMNS.index("workspace_bytes")] = 700
    values[0, COLUMNS.index("causal")] = 1
    values[:, COLUMNS.index("kernels")] = 1
    operations = Operations(
        ("aten.mm.default", "aten.mm.default", "aten.add_.Tensor", "aten._fused_adamw_.default"),
        np.array([KINDS.index(k) for k in ("gemm", "gemm", "elementwise", "optimizer")], dtype=np.int8),
        ("float32",) * 4,
        values,
    )
    index, module, phase, micro_step = zip(*ROWS, strict=True)
    sequence = OperationSequence(
        np.array(index, dtype=np.int32),
        np.array(module, dtype=np.int32),
        np.array([PHASES.index(p) for p in phase], dtype=np.int8),
        np.array(micro_step, dtype=np.int8),
    )
    end = len(ROWS)
    kept = [(4000, "parameter", 1, BEFORE, end), (100, "parameter", 2, BEFORE, end), (8200, "optimizer_state", 0, BEFORE, end)]
    made = [
        (64 * seq_len**2 * micro_batch, "activation", 1, 0, 3),
        (600 * tokens, "activation", 2, 1, 2),
        (100, "gradient", 2, 2, 9),
        (4000, "gradient", 1, 3, 9),
        (600 * tokens, "activation", 1, 4, 8),
        (5000, "temporary", 2, 6, 7),
    ]
    size, category, owner, born, died = zip(*kept, *made, strict=True)
    storages = Storages(
        np.array(size, dtype=np.int64),
        np.array([CATEGORIES.index(c) for c in category], dtype=np.int8),
        *(np.array(c, dtype=np.int32) for c in (owner, born, died)),
    )
    header = Header(
        "small",
        "0123456789abcdef",
        {"micro_batch": micro_batch, "seq_len": seq_len},
        Strategy(micro_batch=micro_batch, optimizer="adamw"),
        1025,
        1025,
        "token",
        seq_len,
        torch_version="2.13.0",
        blocks=("layers.0", "layers.1"),
        assumption_notes=(assumed_sequence_length(length=16),),
    )
    return Trace(header, operations, sequence, storages, ("", "layers.0", "layers.1")).check()


def small_rank(*, micro_batch: int = 2, seq_len: int = 8) -> Trace:
    """`small_trace` as rank 3 of four, with a second stream that reduces what position 2 makes while position 3 runs."""
    trace = small_trace(micro_batch=micro_batch, seq_len=seq_len)
    kind = trace.operations.kind.copy()
    kind[2] = KINDS.index("collective")
    stream = np.zeros(len(trace.sequence), dtype=np.int8)
    stream[trace.sequence.operation == 2] = 1
    (collective,) = np.flatnonzero(stream)[:1].tolist()
    groups = (RankGroup("dp_shard", 2, 2), RankGroup("tp", 2, 1))
    return replace(
        trace,
        header=replace(trace.header, strategy=trace.header.strategy.but(mesh=Mesh(dp_shard=2, tp=2)), rank=3, groups=groups),
        operations=replace(trace.operations, kind=kind, group=np.array([-1, -1, 1, -1], dtype=np.int8)),
        sequence=replace(trace.sequence, stream=stream),
        storages=replace(trace.storages, stream=(trace.storages.size_bytes == 5000).astype(np.int8)),
        waits=Waits(
            np.array([collective, len(trace.sequence)], dtype=np.int32),
            np.array([1, 0], dtype=np.int8),
            np.array([collective - 1, collective], dtype=np.int32),
        ),
    ).check()
