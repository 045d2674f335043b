"""EngineStep: seconds of an iteration of an engine on a chip, from a model's recorded generation."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpuwise.cost.calibration import Calibration
from gpuwise.cost.calibration import calibration as known_calibration
from gpuwise.cost.kernels.attention_decode import is_decode
from gpuwise.cost.kernels.classes import groups
from gpuwise.cost.kernels.shapes import ELEMENT_BYTES, Shapes
from gpuwise.cost.kernels.times import class_times
from gpuwise.cost.network.collectives import collective_time
from gpuwise.cost.parameters import Parameters
from gpuwise.cost.parameters import parameters as shipped_parameters
from gpuwise.cost.rates import QUANTIZED
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.types import Chip
from gpuwise.serving.formats import StoredWeights, stored
from gpuwise.serving.generation import AttentionLayers, Generation
from gpuwise.trace.parallel.recorded import split_communication
from gpuwise.trace.trace import Trace

MATRIX_VECTOR_TOKENS = 8  # up to so many tokens the products of llama.cpp are memory-bound kernels (MMVQ_MAX_BATCH_SIZE)
_INT8_TENSOR_CAPABILITY = (7, 5)
MOST_READ = 1 << 16  # whole numbers between points whose value a table keeps
STEPS = 4  # points of a table between a number and its double: times of products rise in steps of tiles


@dataclass(frozen=True)
class EngineCosts:
    """What an engine does beside its kernels.

    Attributes:
        iteration_s: seconds of the host in each iteration in which the device waits: scheduling, sampling, detokenizing.
        sequence_s: seconds of the host that each sequence adds to that.
        kernel_s: seconds between kernels, where every operation is a kernel of its own; 0 for engines that fuse.
        int8_products, other_products: how long products of more than MATRIX_VECTOR_TOKENS tokens take over those of the kernel
            figures, in int8 and in other types. 1 by default.
    """

    iteration_s: float = 0.0
    sequence_s: float = 0.0
    kernel_s: float = 0.0
    int8_products: float = 1.0
    other_products: float = 1.0


class EngineStep:
    """Seconds of iterations (see gpuwise.serving.continuous.IterationTime).

    Arguments:
        generation: of the model, or of one of the devices that share its layers.
        cluster: the devices that run one instance of the model.
        costs: what the engine adds.
        weights: how they are kept; None (default) as they were recorded.
        most_tokens: most new tokens of an iteration.

    The kernels run one after the other: those of each token by their number, the head by the sequences that get a token,
    attention of decoding sequences as one kernel a layer over sequences of equal length, attention of each part of a prompt as
    a kernel of its own.
    """

    def __init__(
        self,
        generation: Generation,
        cluster: Cluster,
        *,
        costs: EngineCosts = EngineCosts(),
        weights: StoredWeights | None = None,
        most_tokens: int = 8192,
        parameters: Parameters | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        self.generation, self.cluster, self.costs = generation, cluster, costs
        self._weights = weights or stored(generation, None)
        self._parameters = parameters or shipped_parameters()
        self._calibration = calibration or known_calibration(cluster.chip)
        self._precision = generation.tokens.header.strategy.precision
        self._most = most_tokens
        self._tokens, self._head = _Table(self._tokens_s, most_tokens), _Table(self._head_s, most_tokens)
        self._decoding: dict[int, _Table] = {}
        self._reading: dict[int, _Table] = {}

    def with_costs(self, costs: EngineCosts) -> EngineStep:
        """The same kernels under another engine."""
        other = copy(self)
        other.costs = costs
        if replace(costs, iteration_s=0.0, sequence_s=0.0) != replace(self.costs, iteration_s=0.0, sequence_s=0.0):
            other._tokens, other._head = _Table(other._tokens_s, self._most), _Table(other._head_s, self._most)
        return other

    def __call__(self, chunks: Sequence[tuple[int, int]], sequences: int, past_tokens: int) -> float:
        """Seconds of an iteration. Arguments as for IterationTime."""
        tokens = sequences + sum(new for new, _ in chunks)
        users = sequences + len(chunks)
        seconds = self.costs.iteration_s + self.costs.sequence_s * users + self._tokens(tokens) + self._head(users)
        if sequences:
            seconds += self._decoding_s(sequences, past_tokens / sequences)
        for new, past in chunks:
            seconds += self._reading_s(new, past)
        return seconds

    def _tokens_s(self, tokens: int) -> float:
        return self._pass_s(self.generation.fused_tokens(tokens), self._weights.product_bytes, tokens)

    def _head_s(self, sequences: int) -> float:
        return self._pass_s(self.generation.fused_head(sequences), self._weights.head_bytes, sequences, is_head=True)

    def _pass_s(self, trace: Trace, weight_bytes: float, tokens: int, *, is_head: bool = False) -> float:
        """Seconds of the kernels and collectives of a fused trace, one after the other.

        Arguments:
            weight_bytes: of an element of the matrices in it.
            tokens: rows that are multiplied with them.
            is_head: whether it is that of the head, which computes in the recorded type.
        """
        kernels, communication = split_communication(trace)
        counts, seconds = kernels.counts(), self.costs.kernel_s * self.generation.kernels[is_head]
        for group in groups(kernels):
            shapes, dtype, slowdown = group.shapes, group.dtype, 1.0
            if group.kernel_class.startswith("gemm"):
                shapes = shapes.with_weights(weight_bytes)
                if not is_head and (arithmetic := self._arithmetic(tokens)):
                    shapes, dtype = shapes.computed_in(arithmetic), arithmetic
                if tokens > MATRIX_VECTOR_TOKENS:
                    slowdown = self.costs.int8_products if dtype == "int8" else self.costs.other_products
            times = class_times(
                group.kernel_class,
                dtype,
                shapes,
                self.cluster.chip,
                precision=self._precision,
                parameters=self._parameters,
                calibration=self._calibration,
            )
            seconds += slowdown * float(times.device_s @ counts[group.rows])
        for each in communication.collectives:
            if each.calls:
                call = collective_time(
                    each.operation,
                    payload_bytes=each.payload_bytes / each.calls,
                    group=each.group,
                    cluster=self.cluster,
                    parameters=self._parameters,
                )
                seconds += each.calls * call.seconds
        return seconds

    def _arithmetic(self, tokens: int) -> str:
        """The type that products of so many tokens compute in; "" for the recorded one, also where the device lacks units."""
        reading = self._weights.reading_arithmetic if tokens > MATRIX_VECTOR_TOKENS else ""
        narrow = reading or self._weights.arithmetic
        return narrow if narrow and multiplies(self.cluster.chip, narrow) else ""

    def _decoding_s(self, sequences: int, past: float) -> float:
        """Attention of sequences with one new token and `past` tokens each. Between two numbers of sequences of a table it is
        linear."""
        low, high, share = _between(sequences)
        low_s = self._decoding_table(low)(past)
        return low_s if low == high else (1 - share) * low_s + share * self._decoding_table(high)(past)

    def _decoding_table(self, sequences: int) -> _Table:
        if sequences not in self._decoding:
            self._decoding[sequences] = _Table(lambda past: self._attention_s(sequences, 1, past), 1 << 21)
        return self._decoding[sequences]

    def _reading_s(self, new: int, past: int) -> float:
        low, high, share = _between(new)
        low_s = self._reading_table(low)(past)
        return low_s if low == high else (1 - share) * low_s + share * self._reading_table(high)(past)

    def _reading_table(self, new: int) -> _Table:
        if new not in self._reading:
            self._reading[new] = _Table(lambda past: self._attention_s(1, new, past), 1 << 21)
        return self._reading[new]

    def _attention_s(self, sequences: int, new: int, past: int) -> float:
        """All attention layers over sequences of equal lengths."""
        seconds = 0.0
        for layers in self.generation.attention:
            shapes = attention_shapes(layers, sequences=sequences, new=new, past=past)
            decodes = bool(is_decode(shapes.m, shapes.n)[0])
            times = class_times(
                "attention_decode" if decodes else "attention",
                layers.dtype,
                shapes,
                self.cluster.chip,
                precision=self._precision,
                parameters=self._parameters,
                calibration=self._calibration,
            )
            seconds += layers.layers * float(times.device_s[0])
        return seconds


def attention_shapes(layers: AttentionLayers, *, sequences: int, new: int, past: int) -> Shapes:
    """One layer's attention of `new` tokens a sequence over `past` earlier ones and themselves, causal."""
    keys = past + new if layers.window is None else min(past + new, layers.window + new - 1)
    # Query i of the new ones sees past + i tokens, itself included, or the window.
    seen = past + np.arange(1, new + 1) if layers.window is None else np.minimum(past + np.arange(1, new + 1), layers.window)
    heads = sequences * layers.heads

    def one(value: float) -> NDArray[np.float64]:
        return np.array([float(value)])

    results = layers.query_bytes / 2
    return Shapes(
        flops=one(4.0 * heads * layers.head_size * float(seen.sum())),
        bytes_read=one(sequences * (layers.key_bytes * keys + results * new)),
        bytes_written=one(sequences * results * new),
        kernels=one(1),
        batch=one(heads),
        m=one(new),
        n=one(keys),
        k=one(layers.head_size),
        causal=one(float(new > 1)),
        element_bytes=one(ELEMENT_BYTES.get(layers.dtype, 2.0)),
    )


def multiplies(chip: Chip, dtype: str) -> bool:
    """Whether the chip has units for matrices of this narrow type; NVIDIA's before Turing multiply int8 as vectors alone."""
    name = QUANTIZED[dtype]
    old = chip.compute_capability is not None and chip.compute_capability < _INT8_TENSOR_CAPABILITY
    return bool(chip.peak_flops_per_s.get(name)) and not (name == "int8" and old)


class _Table:
    """A function of a whole number, computed at few numbers and linear in between."""

    def __init__(self, function: Callable[[int], float], most: int) -> None:
        self._function, self._most = function, most
        self._values: dict[int, float] = {}
        self._read: dict[int, float] = {}

    def __call__(self, number: float) -> float:
        if isinstance(number, int) and number in self._read:
            return self._read[number]
        low, high, share = _between(number)
        low_s = self._at(low)
        seconds = low_s if low == high else (1 - share) * low_s + share * self._at(high)
        if isinstance(number, int) and len(self._read) < MOST_READ:
            self._read[number] = seconds
        return seconds

    def _at(self, number: int) -> float:
        if number not in self._values:
            self._values[number] = self._function(number)
        return self._values[number]


def _points() -> list[int]:
    """0, 1, 2, ..., and from there on STEPS numbers to each double."""
    points = [0]
    value = 1.0
    while value < 1 << 22:
        if round(value) > points[-1]:
            points.append(round(value))
        value *= 2 ** (1 / STEPS)
    return points


_POINTS = _points()


def _between(number: float) -> tuple[int, int, float]:
    """The points of tables around a number, and how far it is from the first to the second."""
    i = bisect_right(_POINTS, number) - 1
    low = _POINTS[i]
    if low == number:
        return low, low, 0.0
    high = _POINTS[i + 1]
    return low, high, (number - low) / (high - low)
