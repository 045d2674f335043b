"""EngineKernels: seconds of the kernels of an iteration on a device, as an engine runs them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from gpuwise.cost.calibration import Calibration
from gpuwise.cost.kernels.attention_decode import is_decode
from gpuwise.cost.kernels.classes import Group, groups
from gpuwise.cost.kernels.shapes import ELEMENT_BYTES, Shapes
from gpuwise.cost.kernels.times import ClassTimes, class_times, hardware_of
from gpuwise.cost.network.collectives import collective_time
from gpuwise.cost.parameters import Parameters
from gpuwise.cost.rates import family, multiplies
from gpuwise.hardware.cluster import Cluster
from gpuwise.serving.attention_layers import AttentionLayers
from gpuwise.serving.chosen_keys import SMALL_KERNELS, ChosenKeys, choosing_shapes, scoring_shapes, seen_tokens, small_shapes
from gpuwise.serving.engine_costs import EngineCosts
from gpuwise.serving.expert_kernels import grouped_call_s, grouped_share
from gpuwise.serving.formats import StoredWeights
from gpuwise.serving.low_latency import low_latency_s
from gpuwise.serving.shared_experts import shared_and_routed
from gpuwise.serving.sharing import GROUPED, Exchange
from gpuwise.trace.parallel.recorded import split_communication
from gpuwise.trace.trace import Trace

MATRIX_VECTOR_TOKENS = 8  # up to so many tokens the products of llama.cpp are memory-bound kernels (MMVQ_MAX_BATCH_SIZE)


class EngineKernels:
    """Seconds of passes and of attention on the devices of an instance.

    Arguments:
        cluster: the devices.
        costs: of the engine; only what it says of kernels counts here.
        weights: how they are kept.
        precision: of the recording.
    """

    def __init__(
        self,
        cluster: Cluster,
        costs: EngineCosts,
        weights: StoredWeights,
        *,
        precision: str,
        parameters: Parameters,
        calibration: Calibration,
    ) -> None:
        self._cluster, self._weights = cluster, weights
        self._costs = costs.on("CPU" if family(cluster.chip) == "cpu" else cluster.chip.vendor)
        self._precision, self._parameters, self._calibration = precision, parameters, calibration
        self._of_few_rows = calibration.of_few_rows()
        self._on_cpu = family(cluster.chip) == "cpu"

    def pass_s(self, trace: Trace, weight_bytes: float, tokens: int, *, operations: int, is_head: bool = False) -> float:
        """Seconds of the kernels and collectives of a fused trace, one after the other.

        Arguments:
            weight_bytes: of an element of the matrices in it; 0 as recorded.
            tokens: rows that are multiplied with them.
            operations: of the pass before anything was fused.
            is_head: whether it is that of the head, which computes in the recorded type.
        """
        kernels, communication = split_communication(trace)
        counts, all_s = kernels.counts(), np.zeros(len(kernels.operations))
        for group in groups(kernels):
            each_s = self._each_s(group, weight_bytes, tokens, is_head=is_head)
            grouped = np.array([GROUPED in kernels.operations.name[row] for row in group.rows.tolist()])
            if grouped.any() and not self._reads_once(tokens):
                call_s = grouped_call_s(self._cluster.chip, self._weights, weight_bytes, self._arithmetic(tokens))
                each_s = np.where(grouped, call_s + grouped_share(tokens) * each_s, each_s)
            all_s[group.rows] = each_s * counts[group.rows]
        seconds = self._costs.kernel_s * operations + float(all_s.sum())
        if tokens <= self._costs.two_streams_tokens:
            shared, routed = (float(all_s[rows].sum()) for rows in shared_and_routed(kernels))
            seconds -= min(shared, routed)
        recorded = (each for each in communication.collectives if each.calls)
        return seconds + self.exchanges_s(
            Exchange(each.operation, each.payload_bytes // each.calls, each.group, each.calls) for each in recorded
        )

    def _each_s(self, group: Group, weight_bytes: float, tokens: int, *, is_head: bool) -> NDArray[np.float64]:
        """Seconds of one run of each operation of one class. Arguments as for pass_s."""
        shapes, dtype, few = group.shapes, group.dtype, tokens <= MATRIX_VECTOR_TOKENS
        if not group.kernel_class.startswith("gemm"):
            return self._times(group.kernel_class, dtype, shapes).device_s
        shapes = shapes.with_weights(weight_bytes) if weight_bytes else shapes
        if self._reads_once(tokens):
            return self._read_s(shapes)
        if self._unpacks and not few and not is_head:
            return self._unpacked_s(group.kernel_class, dtype, shapes)
        if not is_head and (arithmetic := self._arithmetic(tokens)):
            shapes, dtype = shapes.computed_in(arithmetic), arithmetic
        if self._on_cpu:
            return self._times(group.kernel_class, dtype, shapes).device_s
        if few:
            return self._times(group.kernel_class, dtype, shapes, self._of_few_rows).device_s
        return self._costs.other_products * self._times(group.kernel_class, dtype, shapes).device_s

    def _times(self, kernel_class: str, dtype: str, shapes: Shapes, calibration: Calibration | None = None) -> ClassTimes:
        """Times of operations of one class. dtype: computed in, "" where only bytes matter.

        Passes that wait for memory, as decoding does, leave tensor cores idle for most of the time, so that the board's power
        does not limit their clock.
        """
        return class_times(
            kernel_class,
            dtype,
            shapes,
            self._cluster.chip,
            precision=self._precision,
            parameters=self._parameters,
            calibration=calibration or self._calibration,
            busy=None,
        )

    def _reads_once(self, tokens: int) -> bool:
        """Whether products of so many tokens read weights at a CPU's bandwidth, experts one after the other."""
        return bool(self._on_cpu and self._costs.cpu_share and tokens <= MATRIX_VECTOR_TOKENS)

    @property
    def _unpacks(self) -> bool:
        """Whether products of many tokens unpack blocks of weights to int8, at a speed of the engine's own."""
        return bool(self._weights.reading_arithmetic == "int8" and self._costs.products_per_clock and not self._on_cpu)

    def _unpacked_s(self, kernel_class: str, dtype: str, shapes: Shapes) -> NDArray[np.float64]:
        """Seconds of products that unpack their weights. Scales of blocks are multiplied and added by vector units between
        the integer products, so that a multiprocessor takes as many clocks on every generation; or as long as the bytes
        take."""
        hardware = hardware_of(self._cluster.chip, self._parameters)
        of_chip = self._costs.products_per_clock * hardware.units * hardware.clock_hz
        times = self._times(kernel_class, dtype, shapes)
        return times.floor_s + np.maximum(shapes.flops / 2 / of_chip, times.memory_s)

    def update_s(self, size_bytes: float) -> float:
        """Seconds of a kernel that reads so many bytes and writes them anew."""
        if not size_bytes:
            return 0.0
        none, size = np.zeros(1), np.array([float(size_bytes)])
        shapes = Shapes(none, size, size, np.ones(1), none, none, none, none, none, none)
        times = self._times("elementwise_fused", "", shapes)
        return float(times.device_s[0])

    def exchanges_s(self, exchanges: Iterable[Exchange]) -> float:
        """Seconds of collectives that nothing hides."""
        return sum(each.calls * self._collective_s(each) for each in exchanges)

    def _collective_s(self, exchange: Exchange) -> float:
        library_s = collective_time(
            exchange.operation,
            payload_bytes=exchange.payload_bytes,
            group=exchange.group,
            cluster=self._cluster,
            parameters=self._parameters,
        ).seconds
        if not self._costs.own_sums:
            return library_s
        own_s = low_latency_s(exchange.operation, exchange.payload_bytes, exchange.group, self._cluster)
        return library_s if own_s is None else min(library_s, own_s)

    def _arithmetic(self, tokens: int) -> str:
        """The type that products of so many tokens compute in; "" for the recorded one, also where the device lacks units."""
        reading = self._weights.reading_arithmetic if tokens > MATRIX_VECTOR_TOKENS else ""
        narrow = reading or self._weights.arithmetic
        return narrow if narrow and multiplies(self._cluster.chip, narrow) else ""

    def _read_s(self, shapes: Shapes) -> NDArray[np.float64]:
        """Seconds of products on a CPU whose weights are read once, and unpacked and multiplied by the cores that read them."""
        chip, costs = self._cluster.chip, self._costs
        seconds = shapes.moved_bytes / (costs.cpu_share * (chip.memory_bandwidth_bytes_per_s or 1.0))
        peak = chip.peak_flops_per_s.get("fp32", 0.0)
        return seconds + (shapes.flops / (costs.cpu_products * peak) if costs.cpu_products and peak else 0.0)

    def attention_s(self, layers: Sequence[AttentionLayers], *, sequences: int, new: int, past: int) -> float:
        """All attention layers over sequences of equal lengths."""
        seconds = 0.0
        for each in layers:
            if each.chosen is not None:
                seconds += each.layers * self._choosing_s(each.chosen, sequences=sequences, new=new, past=past)
            shapes = attention_shapes(each, sequences=sequences, new=new, past=past)
            decodes = bool(is_decode(shapes.m, shapes.n)[0])
            times = self._times("attention_decode" if decodes else "attention", each.dtype, shapes)
            seconds += each.layers * (float(times.device_s[0]) + self._costs.attention_s)
        return seconds

    def _choosing_s(self, chosen: ChosenKeys, *, sequences: int, new: int, past: int) -> float:
        """Seconds in which a layer's indexer chooses the keys of `new` tokens a sequence; 0 where an earlier layer's did."""
        if (indexer := chosen.indexer) is None:
            return 0.0
        narrow = "float8_e4m3fn" if multiplies(self._cluster.chip, "float8_e4m3fn") else "bfloat16"
        load = {"sequences": sequences, "new": new}
        scoring = scoring_shapes(indexer, **load, past=past, element_bytes=ELEMENT_BYTES[narrow])
        scoring_s, choosing_s, small_s = (
            float(self._times(kernel_class, dtype, shapes).device_s[0])
            for kernel_class, dtype, shapes in (
                ("gemm_batched", narrow, scoring),
                ("elementwise_fused", "", choosing_shapes(chosen, **load, past=past)),
                ("elementwise_fused", "", small_shapes(indexer, **load)),
            )
        )
        return scoring_s + choosing_s + SMALL_KERNELS * small_s


def attention_shapes(layers: AttentionLayers, *, sequences: int, new: int, past: int) -> Shapes:
    """One layer's attention of `new` tokens a sequence over `past` earlier ones and themselves, causal.

    Where keys are chosen from more, each of the new tokens is as a sequence of its own, with the mean number of keys.
    """
    if layers.chosen is not None and past + new > layers.chosen.most:
        keys = round(float(seen_tokens(new, past, layers.chosen.most).mean()))
        sequences, new, past = sequences * new, 1, keys - 1
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
