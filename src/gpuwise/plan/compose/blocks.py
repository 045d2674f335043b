"""JobBlocks: what a model's blocks run, hold and exchange, composed once for each degree of tp and variant, for every chip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from gpuwise.cost.parameters import Parameters
from gpuwise.cost.parameters import parameters as shipped_parameters
from gpuwise.errors import UnsupportedError
from gpuwise.plan.compose.holdings import Holdings, Update, holdings, update_of
from gpuwise.plan.compose.lives import Lives, lives
from gpuwise.plan.compose.parts import Composed, Parts, along, composed, parts_of
from gpuwise.plan.compose.shallow import ShallowStep, shallow_step
from gpuwise.plan.compose.variant import BlockVariant
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.strategy import Strategy
from gpuwise.trace.parallel.buckets import bucket_count
from gpuwise.trace.parallel.segments import FORWARD, segments_of
from gpuwise.trace.parallel.shard import element_bytes
from gpuwise.trace.parallel.tensor_layers import divides_layers
from gpuwise.trace.parallel.variant import recorded_as
from gpuwise.trace.trace import Trace

_ODD = 11  # times some power of two is the width of no usual layer


@dataclass(frozen=True)
class VariantRows:
    """The blocks of one variant on one of the ranks of tp, cp and ep, at several micro-batches.

    Attributes:
        low, high: their rows at two micro-batches.
        parts: kernels and launches.
        payload_bytes: along tp in a micro-batch. Shape (micro-batches, EXCHANGES, OPERATIONS).
        calls: likewise. Shape (EXCHANGES, OPERATIONS).
        block_bytes: of each block along cp or ep in a micro-batch. Shape (micro-batches, BLOCK_OPERATIONS).
        block_calls: likewise. Shape (BLOCK_OPERATIONS,).
        send_bytes: what a block passes on. Shape (micro-batches,).
    """

    low: Composed
    high: Composed
    parts: Parts
    payload_bytes: np.ndarray
    calls: np.ndarray
    block_bytes: np.ndarray
    block_calls: np.ndarray
    send_bytes: np.ndarray


class JobBlocks:
    """Blocks of one job.

    Arguments:
        traces: the job's traces.
        techniques: precision, optimizer and what else all strategies share; its mesh and batch do not count.
        micro_batches: ascending.
        parameters: figures of the cost model; None takes the shipped ones.
        by_heads: as for gpuwise.trace.parallel.tensor.tensor_parallel. False.
        like: blocks of the same job in amp-bf16. What differs by the precision of products alone is taken from them in
            amp-fp16. None composes all.

    Attributes:
        problems: why variants that were tried are left out of a search, each reason once.

    Blocks are composed at their first use. Raises UnsupportedError for techniques that are not composed.
    """

    def __init__(
        self,
        traces: StepTraces,
        techniques: Strategy,
        *,
        micro_batches: Sequence[int],
        parameters: Parameters | None = None,
        by_heads: bool = False,
        like: JobBlocks | None = None,
    ):
        if techniques.compile or techniques.offload != "none" or techniques.mode != "train":
            raise UnsupportedError(
                "compiled steps, offload and inference are not composed for many strategies.",
                ["use `gpuwise forecast` for one mesh"],
            )
        self.traces, self.techniques = traces, techniques
        self.micro_batches = np.array(micro_batches, dtype=np.int64)
        self.parameters = parameters or shipped_parameters()
        self.problems: dict[str, None] = {}
        self._by_heads = by_heads
        alike = like is not None and techniques == like.techniques.but(precision="amp-fp16")
        self._like = like if alike and like is not None and np.array_equal(self.micro_batches, like.micro_batches) else None
        self._shallow_steps: dict[tuple[str, str, int, int], ShallowStep] = {}
        self._rows: dict[tuple[int, bool, BlockVariant], VariantRows] = {}
        self._lives: dict[tuple[int, bool, bool, BlockVariant], Lives] = {}
        self._holdings: dict[tuple[int, bool, int], tuple[Holdings, Update]] = {}
        self._likes: dict[tuple[str, bool], JobBlocks | None] = {}

    @cached_property
    def whole(self) -> Trace:
        """The step of the whole model on one device."""
        like = self._like_of(BlockVariant(), sharded=False)
        if like is not None:
            return like.whole
        return self._trace(BlockVariant(), int(self.micro_batches[0]), sharded=False)

    @cached_property
    def buckets(self) -> int:
        """Number of buckets in which DistributedDataParallel reduces the whole model's gradients."""
        return bucket_count(self.whole)

    def divides_sequences(self, cp: int) -> bool:
        """Whether the job's sequences divide among cp ranks, and it is recorded for the length of such a part."""
        seq_len = self.whole.header.sizes.get("seq_len")
        if seq_len is None or seq_len % cp:
            return False
        return self.traces.family(recorded_as(self.techniques)).covers(self._sizes(cp))

    def strategy(self, variant: BlockVariant, *, tp: int, sharded: bool) -> Strategy:
        """The strategy whose blocks an entry has. sharded: whether fully_shard runs the step."""
        return variant.of(self.techniques, tp=tp, shards=max(2, variant.ep) if sharded else 1)

    def rows(self, variant: BlockVariant, *, tp: int, sharded: bool) -> VariantRows:
        """The blocks of a variant. Raises InputError where tp does not divide heads or features, and the errors of tracing."""
        key = (tp, sharded, variant)
        if key not in self._rows:
            self._rows[key] = self._composed(variant, tp=tp, sharded=sharded)
        return self._rows[key]

    def lives(self, variant: BlockVariant, *, tp: int, sharded: bool, freed: bool) -> Lives:
        """What lives in a variant's blocks. freed: as for gpuwise.plan.compose.lives.lives. Errors as for `rows`."""
        key = (tp, sharded, freed, variant)
        like = self._like_of(variant, sharded=sharded)
        if like is not None:
            return like.lives(variant, tp=tp, sharded=sharded, freed=freed)
        if key not in self._lives:
            blocks = self.rows(variant, tp=tp, sharded=sharded)
            self._lives[key] = lives(blocks.low, blocks.high, self.micro_batches.tolist(), freed=freed)
        return self._lives[key]

    def tensor_degrees(self, most: int) -> list[int]:
        """Degrees from 2 on that divide heads and features, of which some may not be composed. Raises the errors of tracing."""
        shallow = self._shallow(BlockVariant(), int(self.micro_batches[0]), sharded=False)
        return [degree for degree in range(2, most + 1) if divides_layers(shallow.trace, degree, by_heads=self._by_heads)]

    def holdings(self, *, tp: int, sharded: bool, ep: int = 1) -> tuple[Holdings, Update]:
        """What a rank holds, and its update. Errors as for `rows`."""
        key = (tp, sharded, ep)
        if key not in self._holdings:
            plain = BlockVariant(ep=ep)
            shallow = self._shallow(plain, int(self.micro_batches[0]), sharded=sharded)
            strategy = self.strategy(plain, tp=tp, sharded=sharded)
            size_bytes, widened = self.element_bytes(sharded=sharded)
            update = update_of(shallow, strategy, element_bytes=size_bytes, widened=widened)
            like = self._like_of(plain, sharded=sharded)
            of_rank = holdings(shallow, strategy) if like is None else like.holdings(tp=tp, sharded=sharded, ep=ep)[0]
            self._holdings[key] = of_rank, update
        return self._holdings[key]

    def element_bytes(self, *, sharded: bool) -> tuple[int, float]:
        """Bytes of a parameter's element as recorded, and those of the one that is updated over them."""
        if sharded:
            return element_bytes(self.strategy(BlockVariant(), tp=1, sharded=True))
        return (2 if self.techniques.precision == "bf16" else 4), 1.0

    def _trace(self, variant: BlockVariant, micro_batch: int, *, sharded: bool) -> Trace:
        strategy = self.strategy(replace(variant, ep=1), tp=1, sharded=sharded)
        family = self.traces.family(recorded_as(strategy))
        return family.at(accumulation=2, micro_batch=micro_batch, **self._sizes(variant.cp))

    def _sizes(self, cp: int) -> dict[str, int]:
        """Sizes of the part of a sample that one of cp ranks has."""
        sizes = dict(self.traces.sizes)
        return sizes if cp == 1 else {**sizes, "seq_len": self.whole.header.sizes["seq_len"] // cp}

    def _shallow(self, variant: BlockVariant, micro_batch: int, *, sharded: bool) -> ShallowStep:
        """A few blocks on one device, which do not differ by what tensor-parallel ranks share."""
        like = self._like_of(variant, sharded=sharded)
        if like is not None:
            return like._shallow(variant, micro_batch, sharded=sharded)
        recorded = recorded_as(self.strategy(variant, tp=1, sharded=sharded)).variant
        key = (recorded.precision, recorded.recompute, variant.cp, micro_batch)
        if key not in self._shallow_steps:
            self._shallow_steps[key] = shallow_step(self._trace(variant, micro_batch, sharded=sharded))
        return self._shallow_steps[key]

    def _like_of(self, variant: BlockVariant, *, sharded: bool) -> JobBlocks | None:
        """The blocks in amp-bf16 whose recording is this variant's but for the type of its numbers; None where it is not."""
        if self._like is None:
            return None
        key = (variant.recompute, sharded)
        if key not in self._likes:
            family, other = (
                one.traces.family(recorded_as(one.strategy(variant, tp=1, sharded=sharded))) for one in (self, self._like)
            )
            same = family.operations.values is other.operations.values and family.storages is other.storages
            self._likes[key] = self._like if same and family.sequence is other.sequence else None
        return self._likes[key]

    def _composed(self, variant: BlockVariant, *, tp: int, sharded: bool) -> VariantRows:
        like = self._like_of(variant, sharded=sharded)
        if like is not None:
            rows = like.rows(variant, tp=tp, sharded=sharded)
            return replace(rows, parts=rows.parts.in_fp16())
        strategy = self.strategy(variant, tp=tp, sharded=sharded)
        sizes = self.micro_batches.tolist()
        # The largest may be too large to count. Of experts, tokens of no micro-batch must be as many as a layer is wide.
        second = sizes[len(sizes) // 2] if variant.ep == 1 else _ODD * sizes[0]
        low, high = (
            composed(self._shallow(variant, size, sharded=sharded), strategy, by_heads=self._by_heads)
            for size in (sizes[0], second)
        )
        as_run = replace(low.trace, header=replace(low.trace.header, strategy=strategy))
        if sharded and strategy.precision == "amp-fp16":
            as_run = replace(as_run, operations=as_run.operations.in_fp16())
        parts = parts_of(replace(low, trace=as_run), high, sizes)
        payload_bytes = along(low, high, sizes, lambda one: one.payload_bytes)
        send_bytes = along(low, high, sizes, _passed_on)
        block_bytes = along(low, high, sizes, lambda one: one.block_bytes)
        return VariantRows(low, high, parts, payload_bytes, low.calls, block_bytes, low.block_calls, send_bytes)


def _passed_on(one: Composed) -> np.ndarray:
    """Bytes that a block passes on, as gpuwise.trace.parallel.stage has them: of the block on one device."""
    trace = one.shallow.trace
    sequence = trace.sequence
    forward = np.flatnonzero((sequence.phase == FORWARD) & (sequence.micro_step == 0) & (segments_of(trace) == 0))
    return np.asarray(trace.operations.column("bytes_written")[sequence.operation[forward[-1]]])
