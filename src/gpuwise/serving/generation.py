"""Generation: what a causal model does to read new tokens, given those in its cache. Recorded; nothing here needs PyTorch.

An iteration of an engine reads parts of prompts and one token of each decoding sequence in one pass. Products with weights and
norms depend on the number of tokens alone; attention depends on the tokens in the cache of each sequence; the head runs once a
sequence. A recording tells the three apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from gpuwise.cost.kernels.shapes import ELEMENT_BYTES
from gpuwise.serving.weights import Weights
from gpuwise.trace.family import TraceFamily
from gpuwise.trace.tables import COLUMNS, KINDS, Operations, OperationSequence
from gpuwise.trace.trace import Trace

_ALONE = ("gemm", "conv", "attention", "rnn", "embedding", "scatter", "sort", "collective")  # kinds that nothing is fused with
_CONTRACTIONS = tuple(KINDS.index(kind) for kind in _ALONE)
_FUSED = "fused"
_READ, _WRITTEN = COLUMNS.index("bytes_read"), COLUMNS.index("bytes_written")


@dataclass(frozen=True)
class AttentionLayers:
    """Attention of equal layers.

    Attributes:
        layers: how many there are.
        heads: query heads.
        head_size: elements of a head's query.
        query_bytes: bytes of the queries of one token, and of its results.
        key_bytes: bytes of keys and values that attention reads a token in the cache.
        window: most tokens that a query sees, itself included; None for all.
        dtype: type that it computes in.
    """

    layers: int
    heads: int
    head_size: int
    query_bytes: int
    key_bytes: int
    window: int | None
    dtype: str


@dataclass(frozen=True)
class Generation:
    """A causal model that reads new tokens.

    Attributes:
        tokens: what is done for each new token, and once a pass, in the order it runs, attention left out: a family over
            "new_tokens", of one sequence.
        head: what is done once a sequence: a family over "micro_batch", the sequences.
        attention: the attention layers, equal ones together.
        weights: parameters and buffers.
        cache_bytes_per_token: bytes that one token adds to the cache of its sequence, while no layer's window is full.
        cache_bytes_per_sequence: bytes of a sequence's state that do not grow with its tokens.
        activation_bytes_per_token: bytes that each new token of a pass takes beside weights and cache, at the peak.
        longest: most tokens of a sequence; None where there is no limit.
    """

    tokens: TraceFamily
    head: TraceFamily
    attention: tuple[AttentionLayers, ...]
    weights: tuple[Weights, ...]
    cache_bytes_per_token: int
    cache_bytes_per_sequence: int
    activation_bytes_per_token: int
    longest: int | None = None
    _fused: dict[tuple[str, int], Trace] = field(default_factory=dict, init=False, repr=False, compare=False)

    def fused_tokens(self, tokens: int) -> Trace:
        """What is done for so many new tokens, fused; kept, since every device runs the same."""
        return self._kept("tokens", tokens, lambda: self.tokens.at(micro_batch=1, new_tokens=tokens))

    def fused_head(self, sequences: int) -> Trace:
        """What is done for so many sequences, fused; kept, too."""
        return self._kept("head", sequences, lambda: self.head.at(micro_batch=sequences, new_tokens=1))

    def _kept(self, part: str, number: int, trace: Callable[[], Trace]) -> Trace:
        if (part, number) not in self._fused:
            self._fused[part, number] = fused(trace())
        return self._fused[part, number]

    @cached_property
    def kernels(self) -> tuple[int, int]:
        """Operations of one token and of the head, each a kernel where nothing is fused; attention is left out."""
        token, head = (part.at(micro_batch=1, new_tokens=1) for part in (self.tokens, self.head))
        return len(token.sequence.operation), len(head.sequence.operation)

    @property
    def weight_bytes(self) -> int:
        """Bytes of parameters and buffers on this device, as recorded."""
        return sum(each.bytes for each in self.weights)

    @property
    def vocabulary(self) -> int:
        """Columns of the head's product on this device; 0 where the model has none."""
        trace = self.head.at(micro_batch=1, new_tokens=1)
        return int(trace.operations.column("n")[trace.sequence.operation].max(initial=0))

    def cached_in(self, element_bytes: float) -> Generation:
        """The same model with keys and values of so many bytes an element; a state that does not grow keeps its type."""
        share = element_bytes / ELEMENT_BYTES.get(self.attention[0].dtype, 2.0) if self.attention else 1.0
        if share == 1:
            return self
        layers = tuple(replace(layer, key_bytes=round(share * layer.key_bytes)) for layer in self.attention)
        return replace(self, attention=layers, cache_bytes_per_token=round(share * self.cache_bytes_per_token))

    def cache_bytes(self, tokens: int) -> int:
        """Bytes of the cache of a sequence of `tokens` tokens. A layer with a window keeps what the next token still sees."""
        windowed = [layer for layer in self.attention if layer.window is not None]
        growing = self.cache_bytes_per_token - sum(layer.layers * layer.key_bytes for layer in windowed)
        kept = sum(layer.layers * layer.key_bytes * min(tokens, (layer.window or 1) - 1) for layer in windowed)
        return self.cache_bytes_per_sequence + growing * tokens + kept


def fused(trace: Trace) -> Trace:
    """The trace where everything between two contractions is one kernel, and neighbouring products of one input one product.

    That is how engines run models: norms with the additions before them, activations with the products that gate them,
    rotary positions, queries, keys and values as one product (vLLM's csrc and its CompilationConfig). Such a kernel reads what
    its first operation reads and writes what its last one writes.
    """
    source, rows = trace.operations, list[int]()
    values: list[np.ndarray] = []
    run: list[int] = []
    for operation in [*trace.sequence.operation.tolist(), None]:
        if operation is not None and source.kind[operation] not in _CONTRACTIONS:
            run.append(operation)
            continue
        if run:
            rows.append(run[0])
            values.append(_one_kernel(source.values[run[0]], source.values[run[-1]]))
        if operation is None:
            break
        if not run and rows and _same_input(source, rows[-1], operation):
            values[-1] = _joined(values[-1], source.values[operation])
        else:
            rows.append(operation)
            values.append(source.values[operation])
        run = []
    kind = source.kind[rows].copy()
    is_run = ~np.isin(kind, _CONTRACTIONS)
    kind[is_run] = KINDS.index("elementwise")
    names = tuple(_FUSED if fuses else source.name[row] for row, fuses in zip(rows, is_run.tolist(), strict=True))
    dtypes = tuple(source.dtype[row] for row in rows)
    operations = Operations(names, kind, dtypes, np.array(values), source.group[rows], source.channels_last[rows])
    count = len(rows)
    zeros = np.zeros(count, dtype=np.int8)
    sequence = OperationSequence(np.arange(count, dtype=np.int32), np.zeros(count, dtype=np.int32), zeros, zeros)
    return Trace(trace.header, operations, sequence, trace.storages, trace.modules)


def _same_input(source: Operations, before: int, operation: int) -> bool:
    """Whether two products that follow each other read the same rows, as far as a trace shows it."""
    gemm = KINDS.index("gemm")
    if source.kind[before] != gemm or source.kind[operation] != gemm:
        return False
    a, b = (dict(zip(COLUMNS, source.values[row].tolist(), strict=True)) for row in (before, operation))
    return all(a[name] == b[name] for name in ("batch", "m", "k")) and a["batch"] <= 1


def _one_kernel(first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """A kernel that reads what the first operation of a run reads, and writes what the last one writes."""
    kernel = np.zeros_like(first)
    kernel[_READ], kernel[_WRITTEN], kernel[COLUMNS.index("kernels")] = first[_READ], last[_WRITTEN], 1
    return kernel


def _joined(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """One product with the columns of both: the rows that both read are read once."""
    m, n, k = (int(b[COLUMNS.index(name)]) for name in "mnk")
    both = a.copy()
    for name in ("flops", "bytes_read", "bytes_written", "n"):
        both[COLUMNS.index(name)] += b[COLUMNS.index(name)]
    both[_READ] -= m * k * (b[_WRITTEN] // (m * n))
    return both
