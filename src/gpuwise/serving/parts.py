"""The parts of a recorded pass: what runs for each token, what once a sequence, and attention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpuwise.cost.kernels.shapes import ELEMENT_BYTES
from gpuwise.errors import JobError
from gpuwise.serving.attention_layers import AttentionLayers
from gpuwise.serving.chosen_keys import chosen_keys
from gpuwise.serving.weights import HEAD, Weights
from gpuwise.trace.family import TraceFamily
from gpuwise.trace.tables import COLUMNS, KINDS, OperationSequence, Storages
from gpuwise.trace.trace import Trace


def split(family: TraceFamily) -> tuple[np.ndarray, np.ndarray]:
    """Which operations run for each token or once a pass, and which once a sequence, attention apart. Shape (operations,)."""
    operations = family.operations
    shape = tuple(axis.degree + 1 for axis in family.axes)
    terms = operations.values.reshape(*operations.values.shape[:2], *shape)
    with_tokens = np.any(terms[..., 1:] != 0, axis=(1, 2, 3))
    squares = np.any(terms[..., 2:] != 0, axis=(1, 2, 3))  # masks of a prompt, which engines do not make
    with_sequences = np.any(terms[:, :, 1:, :] != 0, axis=(1, 2, 3))
    attention = operations.kind == KINDS.index("attention")
    return ~attention & ~squares & (with_tokens | ~with_sequences), ~attention & ~with_tokens & with_sequences


def tokens_and_head(family: TraceFamily, weights: Sequence[Weights]) -> tuple[TraceFamily, TraceFamily]:
    """What runs for each token or once a pass, and what once a sequence, each a family of its own.

    A model that makes the logits of all tokens of a prompt has its head among the latter nevertheless: engines need those of
    the last token alone.
    """
    per_token, per_sequence = (chosen[family.sequence.operation] for chosen in split(family))
    products = family.operations.kind[family.sequence.operation] == KINDS.index("gemm")
    if not np.any(per_sequence & products):
        words = max((each.shape[0] for each in weights if each.role == HEAD or each.tied), default=0)
        last = int(np.flatnonzero(per_token & products).max(initial=-1))
        if last >= 0 and _constant(family, int(family.sequence.operation[last]), "n") == words:
            of_head = per_token & (np.arange(len(per_token)) >= last)
            per_token, per_sequence = per_token & ~of_head, per_sequence | of_head
    return part_at(family, per_token), part_at(family, per_sequence)


def _constant(family: TraceFamily, operation: int, column: str) -> int:
    """A number of an operation that no axis changes."""
    return int(family.operations.values[operation, COLUMNS.index(column)].flat[0])


def part_at(family: TraceFamily, at: np.ndarray) -> TraceFamily:
    """The family of some positions of the sequence alone. at: whether each belongs to it, shape (positions,)."""
    sequence = OperationSequence(*(column[at] for column in vars(family.sequence).values()))
    storages = Storages(*(column[:0] for column in vars(family.storages).values()))
    return replace(family, sequence=sequence, storages=storages)


def attention_layers(
    near: Trace, next_to: Trace, far: Trace | None, *, past: tuple[int, int, int], cache_bytes_per_token: int
) -> tuple[AttentionLayers, ...]:
    """The attention layers, from recordings of one new token with fewer, more and very many tokens in the cache.

    A layer reads what the cache holds for it. What the operator reads may be more (keys repeated for each query head) or
    wider (latent keys, which engines multiply without widening them): the layers share the cache in its proportions.
    """
    sequences = near.header.sizes["micro_batch"]
    rows = [_attention_positions(trace) for trace in (near, next_to, *([far] if far else []))]
    if len({len(positions) for positions in rows}) != 1:
        raise JobError("the model's attention takes other operations where more tokens are in the cache.")
    layers: list[AttentionLayers] = []
    chosen = chosen_keys(far) if far is not None else []
    for position, (a, b) in enumerate(zip(rows[0], rows[1], strict=True)):
        first, second = (_numbers(trace, row) for trace, row in ((near, a), (next_to, b)))
        read = (second["bytes_read"] - first["bytes_read"]) // (past[1] - past[0]) // sequences
        seen = _numbers(far, rows[2][position])["n"] if far is not None else past[2] + 1
        queries = first["bytes_read"] // sequences - read * first["n"] + first["bytes_written"] // sequences
        heads = first["batch"] // sequences
        dtype = near.operations.dtype[a] if _is_attention(near, a) else _engines_type(near, a)
        fused_bytes = 2 * heads * first["k"] * ELEMENT_BYTES.get(dtype, 2.0)
        layers.append(
            AttentionLayers(
                layers=1,
                heads=heads,
                head_size=first["k"],
                query_bytes=max(queries, 0) if _is_attention(near, a) else int(fused_bytes),
                key_bytes=read,
                window=seen if far is not None and seen < past[2] + 1 else None,
                dtype=dtype,
                chosen=chosen[position] if len(chosen) == len(rows[0]) else None,
            )
        )
    total = sum(layer.key_bytes for layer in layers)
    read = cache_bytes_per_token - sum(layer.chosen.key_bytes(layer.dtype) for layer in layers if layer.chosen)
    scaled = [replace(layer, key_bytes=round(layer.key_bytes * read / max(total, 1))) for layer in layers]
    return tuple(replace(layer, layers=count) for layer, count in Counter(scaled).items())


def _engines_type(trace: Trace, operation: int) -> str:
    """The type of products of queries and keys: PyTorch widens 16 bits to 32 where no fused kernel takes its arguments (a
    mask beside enable_gqa), which engines do not."""
    dtype = trace.operations.dtype[operation]
    return {"bf16": "bfloat16", "fp16": "float16"}.get(trace.header.strategy.precision, dtype) if dtype == "float32" else dtype


def _numbers(trace: Trace, operation: int) -> dict[str, int]:
    return dict(zip(COLUMNS, trace.operations.values[operation].tolist(), strict=True))


def _is_attention(trace: Trace, operation: int) -> bool:
    return bool(trace.operations.kind[operation] == KINDS.index("attention"))


def _attention_positions(trace: Trace) -> list[int]:
    """The operation of each attention, in the order they run: the fused operator, or its products of queries and keys."""
    operation = trace.sequence.operation
    fused_ones = operation[trace.operations.kind[operation] == KINDS.index("attention")].tolist()
    if fused_ones:
        return fused_ones
    products = (trace.operations.kind == KINDS.index("gemm")) & (trace.operations.column("batch") > 1)
    products &= trace.operations.column("m") == 1
    n, k = trace.operations.column("n"), trace.operations.column("k")
    rows, scores = operation[products[operation]].tolist(), list[int]()
    # One new token: queries and keys are a product with as many columns as keys, which the one with the values then sums over.
    while rows:
        first = rows.pop(0)
        if rows and n[first] == k[rows[0]] and n[first] <= _keys(trace):
            scores.append(first)
            del rows[0]
    return scores


def _keys(trace: Trace) -> int:
    return trace.header.sizes["past_tokens"] + 1
