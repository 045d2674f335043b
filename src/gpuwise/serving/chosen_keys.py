"""Attention to keys that an indexer chooses: DeepSeek sparse attention (arXiv:2512.02556), as in DeepSeek-V3.2 and GLM-5.

A few narrow heads score every earlier token for each query, and attention reads the best ones alone. Engines keep the
indexer's keys in 8 bits with a scale of 32 for each token, score in one kernel (DeepGEMM's fp8_mqa_logits) and choose in
another. Each query then has keys of its own, so queries of a prompt do not share tiles: attention runs as if each were a
decoding sequence (trtllm-gen's sparse MLA, FlashMLA's sparse_fwd). Prompts no longer than what is chosen keep the dense kernel
(SGLang's SGLANG_NSA_DENSE_ATTN_KV_LEN_THRESHOLD).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuwise.cost.kernels.shapes import ELEMENT_BYTES, Shapes
from gpuwise.trace.tables import COLUMNS, KINDS
from gpuwise.trace.trace import Trace

INDEX_KEY_SCALE_BYTES, SCORE_BYTES, INDEX_BYTES = 4, 4, 4  # of a token's scale, of a score and of a chosen token's number
# Kernels of an indexer that a recording does not show, or as parts of others (SGLang's nsa_indexer.py, _get_q_k_bf16 and what
# follows): its own two products of the hidden states, positions written into queries and keys, both transformed, both rounded,
# keys stored, and the weights of heads scaled.
SMALL_KERNELS = 10
_AT = {name: COLUMNS.index(name) for name in COLUMNS}
_TOPK_BYTES = 8  # of the numbers that PyTorch's topk gives beside the values


@dataclass(frozen=True)
class Indexer:
    """What scores the earlier tokens.

    Attributes:
        heads: of its queries, which share one key.
        size: elements of a head, and of the key of each token.
    """

    heads: int
    size: int


@dataclass(frozen=True)
class ChosenKeys:
    """The keys that queries of a layer attend to.

    Attributes:
        most: keys of a query.
        indexer: of this layer; None where it takes what an earlier layer chose.
    """

    most: int
    indexer: Indexer | None

    def key_bytes(self, dtype: str) -> int:
        """Bytes that the indexer adds to the cache a token, as recorded in that type."""
        return int(self.indexer.size * ELEMENT_BYTES.get(dtype, 2.0)) if self.indexer else 0


def chosen_keys(far: Trace) -> list[ChosenKeys | None]:
    """What each attention of a recording reads, in the order they run; None for those that read all keys.

    far: one new token of each sequence, with more tokens in the cache than are chosen.
    """
    operations, order = far.operations, far.sequence.operation
    sequences, keys = far.header.sizes["micro_batch"], far.header.sizes["past_tokens"] + 1
    layers: list[ChosenKeys | None] = []
    most, indexer, chooses = 0, None, False
    scores: Indexer | None = None
    for row in order.tolist():
        numbers, kind = operations.values[row], KINDS[operations.kind[row]]
        read, written = (int(numbers[_AT[name]]) for name in ("bytes_read", "bytes_written"))
        element_bytes = int(ELEMENT_BYTES.get(operations.dtype[row], 4.0))
        if kind == "gemm" and int(numbers[_AT["n"]]) == keys and int(numbers[_AT["m"]]) > 1:
            scores = Indexer(int(numbers[_AT["m"]]), int(numbers[_AT["k"]]))
        elif "topk" in operations.name[row] and read == sequences * keys * element_bytes:
            most, indexer, chooses = written // (sequences * (element_bytes + _TOPK_BYTES)), scores, True
        elif kind == "scatter" and most and written == sequences * keys * element_bytes:
            chooses = True  # the mask of what an earlier layer chose
        elif kind == "attention":
            layers.append(ChosenKeys(most, indexer) if chooses and most < keys else None)
            indexer, chooses = None, False
    return layers


def seen_tokens(new: int, past: int, most: int) -> np.ndarray:
    """Keys that each of `new` queries attends to, of which at most so many are chosen. Shape (new,)."""
    return np.minimum(past + np.arange(1, new + 1), most)


def scoring_shapes(indexer: Indexer, *, sequences: int, new: int, past: int, element_bytes: float) -> Shapes:
    """The product of an indexer's queries with the keys of all earlier tokens, whose scores are summed over heads at once."""
    scored = float((past + np.arange(1, new + 1)).sum())
    rows, keys = new * indexer.heads, past + new
    return _shapes(
        flops=2.0 * sequences * indexer.heads * indexer.size * scored,
        bytes_read=sequences * (element_bytes * indexer.size * (rows + keys) + INDEX_KEY_SCALE_BYTES * keys),
        bytes_written=SCORE_BYTES * sequences * scored,
        batch=sequences,
        m=rows,
        n=keys,
        k=indexer.size,
        element_bytes=element_bytes,
    )


def choosing_shapes(chosen: ChosenKeys, *, sequences: int, new: int, past: int) -> Shapes:
    """The choice: scores are read, and the numbers of the best tokens written."""
    scored = float((past + np.arange(1, new + 1)).sum())
    written = float(seen_tokens(new, past, chosen.most).sum())
    return _shapes(bytes_read=SCORE_BYTES * sequences * scored, bytes_written=INDEX_BYTES * sequences * written)


def small_shapes(indexer: Indexer, *, sequences: int, new: int) -> Shapes:
    """One of the SMALL_KERNELS, over the indexer's queries in 16 bits."""
    size = 2.0 * sequences * new * indexer.heads * indexer.size
    return _shapes(bytes_read=size, bytes_written=size)


def _shapes(**values: float) -> Shapes:
    """Shapes of one operation; what is not named is 0, or 1 for kernels and batch."""
    usual = dict.fromkeys(("flops", "m", "n", "k", "causal"), 0.0) | {"kernels": 1.0, "batch": 1.0, "element_bytes": 2.0}
    return Shapes(**{name: np.array([float(value)]) for name, value in (usual | values).items()})
