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
from gpuwise.serving.attention_layers import AttentionLayers
from gpuwise.serving.joining import join, joined, reads_same_rows
from gpuwise.serving.sharing import ALONE, GROUPED, Degrees, Exchange, exchanges, gathered_logits, has_experts, share_of
from gpuwise.serving.weights import EMBEDDING, HEAD, OTHER, PRODUCT, Weights
from gpuwise.trace.family import TraceFamily
from gpuwise.trace.tables import COLUMNS, KINDS, Operations, OperationSequence
from gpuwise.trace.trace import Trace

_ALONE = ("gemm", "conv", "attention", "rnn", "embedding", "scatter", "sort", "collective")  # kinds that nothing is fused with
_CONTRACTIONS = tuple(KINDS.index(kind) for kind in _ALONE)
_ROUTING = tuple(KINDS.index(kind) for kind in ("embedding", "scatter", "sort"))  # of tokens to experts: fused, too
ROUTING_KERNELS = 2  # the choice of experts, and the order of their rows (vLLM: topk_softmax, moe_align_block_size)
_FUSED = "fused"
_READ, _WRITTEN = COLUMNS.index("bytes_read"), COLUMNS.index("bytes_written")


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
        degrees: how devices share the model as it was recorded, whole; by default there is one. Weights, attention and cache
            are those of one device.
    """

    tokens: TraceFamily
    head: TraceFamily
    attention: tuple[AttentionLayers, ...]
    weights: tuple[Weights, ...]
    cache_bytes_per_token: int
    cache_bytes_per_sequence: int
    activation_bytes_per_token: int
    longest: int | None = None
    degrees: Degrees = ALONE
    _fused: dict[tuple[str, int], Trace] = field(default_factory=dict, init=False, repr=False, compare=False)

    def fused_tokens(self, tokens: int) -> Trace:
        """What one device does for so many new tokens, fused; kept, since every kind of device runs the same."""

        def shared() -> Trace:
            trace = fused(self.tokens.at(micro_batch=1, new_tokens=tokens))
            if self.degrees != ALONE or has_experts(trace.operations):
                trace = share_of(trace, self.degrees, tokens=tokens, width=self.width)
            return joined(trace, width=self.width)

        return self._kept("tokens", tokens, shared)

    def fused_head(self, sequences: int) -> Trace:
        """What one device does for so many sequences, fused; kept, too."""

        def shared() -> Trace:
            trace = fused(self.head.at(micro_batch=sequences, new_tokens=1))
            return trace if self.degrees == ALONE else share_of(trace, self.degrees, tokens=sequences, width=self.width)

        return self._kept("head", sequences, shared)

    def exchanges(self, tokens: int) -> tuple[Exchange, ...]:
        """Collectives of a pass over so many new tokens, where devices share a model that was recorded whole."""
        if self.degrees == ALONE:
            return ()
        names, rows = self.tokens.operations.name, self.tokens.sequence.operation.tolist()
        layers = sum(GROUPED in names[row] for row in rows) // 2
        return exchanges(self.degrees, tokens=tokens, width=self.width, blocks=self.blocks, of_experts=layers)

    def head_exchanges(self, sequences: int) -> tuple[Exchange, ...]:
        """Collectives of the head of so many sequences, likewise."""
        return gathered_logits(self.degrees, sequences=sequences, vocabulary=self.vocabulary)

    @cached_property
    def width(self) -> int:
        """Elements of a token between the blocks: columns of the embedding."""
        return max((each.shape[-1] for each in self.weights if each.role == EMBEDDING), default=0)

    @cached_property
    def blocks(self) -> int:
        """Blocks of the model: each has a norm, which is a parameter of one name."""
        return max((each.count for each in self.weights if each.name.count("*") == 1 and each.role == OTHER), default=1)

    @property
    def linear_layers(self) -> int:
        """Layers whose state does not grow: linear attention and recurrent ones."""
        return self.blocks - sum(layer.layers for layer in self.attention) if self.cache_bytes_per_sequence else 0

    def _kept(self, part: str, number: int, trace: Callable[[], Trace]) -> Trace:
        if (part, number) not in self._fused:
            self._fused[part, number] = trace()
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
        """Columns of the head's product as recorded; 0 where the model has none."""
        trace = self.head.at(micro_batch=1, new_tokens=1)
        return int(trace.operations.column("n")[trace.sequence.operation].max(initial=0))

    def shared(self, degrees: Degrees) -> Generation:
        """One of the devices that share a model which was recorded whole."""
        layers = tuple(layer.shared(degrees.tp) for layer in self.attention)
        whole = max(sum(layer.layers * layer.key_bytes for layer in self.attention), 1)
        share = sum(layer.layers * layer.key_bytes for layer in layers) / whole
        of_expert = degrees.expert_tp * degrees.expert_parallel

        def of_device(each: Weights) -> Weights:
            if each.of_experts:
                return each.shared_by(of_expert)
            return each.shared_by(degrees.tp) if each.role in (EMBEDDING, HEAD, PRODUCT) else each

        return replace(
            self,
            attention=layers,
            weights=tuple(map(of_device, self.weights)),
            cache_bytes_per_token=round(share * self.cache_bytes_per_token),
            cache_bytes_per_sequence=self.cache_bytes_per_sequence // degrees.tp,
            activation_bytes_per_token=self.activation_bytes_per_token // degrees.tp,
            degrees=degrees,
        )

    def cached_in(self, element_bytes: float) -> Generation:
        """The same model with keys and values of so many bytes an element; a state that does not grow keeps its type."""
        share = element_bytes / ELEMENT_BYTES.get(self.attention[0].dtype, 2.0) if self.attention else 1.0
        if share == 1:
            return self
        layers = tuple(replace(layer, key_bytes=round(share * layer.key_bytes)) for layer in self.attention)
        return replace(self, attention=layers, cache_bytes_per_token=round(share * self.cache_bytes_per_token))

    def in_fp16(self) -> Generation:
        """A model that was recorded in bf16 in fp16: the same operations on as many bytes."""

        def of(part: TraceFamily) -> TraceFamily:
            header = replace(part.header, strategy=part.header.strategy.but(precision="fp16"))
            dtypes = tuple(dtype.replace("bfloat16", "float16") for dtype in part.operations.dtype)
            return replace(part, header=header, operations=replace(part.operations, dtype=dtypes))

        layers = tuple(replace(layer, dtype=layer.dtype.replace("bfloat16", "float16")) for layer in self.attention)
        return replace(self, tokens=of(self.tokens), head=of(self.head), attention=layers)

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
    its first operation reads and writes what its last one writes. Around experts, that goes for the sorts and gathers that
    route tokens, too.
    """
    source, rows, modules = trace.operations, list[int](), list[int]()
    alone = set(_CONTRACTIONS) - set(_ROUTING) if has_experts(trace.operations) else set(_CONTRACTIONS)
    kinds = source.kind.tolist()
    values: list[np.ndarray] = []
    run: list[int] = []
    begun_in = 0  # module of the run's first operation
    of_module = trace.sequence.module.tolist()
    for position, operation in enumerate([*trace.sequence.operation.tolist(), None]):
        if operation is not None and kinds[operation] not in alone:
            begun_in = begun_in if run else of_module[position]
            run.append(operation)
            continue
        if run:
            rows.append(run[0])
            modules.append(begun_in)
            kernels = ROUTING_KERNELS if any(kinds[each] in _ROUTING for each in run) else 1
            values.append(_one_kernel(source.values[run[0]], source.values[run[-1]], kernels))
        if operation is None:
            break
        if not run and rows and reads_same_rows(source, rows[-1], operation):
            values[-1] = values[-1].copy()
            join(values[-1], source.values[operation])
        else:
            rows.append(operation)
            modules.append(of_module[position])
            values.append(source.values[operation])
        run = []
    kind = source.kind[rows].copy()
    is_run = ~np.isin(kind, list(alone))
    kind[is_run] = KINDS.index("elementwise")
    names = tuple(_FUSED if fuses else source.name[row] for row, fuses in zip(rows, is_run.tolist(), strict=True))
    dtypes = tuple(source.dtype[row] for row in rows)
    table = np.array(values).reshape(len(rows), source.values.shape[1])  # of no operation, too
    operations = Operations(names, kind, dtypes, table, source.group[rows], source.channels_last[rows])
    count = len(rows)
    zeros = np.zeros(count, dtype=np.int8)
    sequence = OperationSequence(np.arange(count, dtype=np.int32), np.array(modules, dtype=np.int32), zeros, zeros)
    return Trace(trace.header, operations, sequence, trace.storages, trace.modules)


def _one_kernel(first: np.ndarray, last: np.ndarray, kernels: int) -> np.ndarray:
    """A kernel, or several, that reads what the first operation of a run reads, and writes what the last one writes."""
    kernel = np.zeros_like(first)
    kernel[_READ], kernel[_WRITTEN], kernel[COLUMNS.index("kernels")] = first[_READ], last[_WRITTEN], kernels
    return kernel
