"""GPT-3 175B on 512 GPUs: the space that Calculon enumerates, as arrays over prices of gpuwise's blocks.

Calculon (Isaev et al. 2023, calculon-ai/calculon) tries every tensor × pipeline × data parallel × interleaving, micro-batch,
recompute (full, attention, none), communication of tensor parallelism (all-reduce, scattered sends, sequence parallel),
gathering again, sharded state, offload of weights, activations and state, overlap of tensor and of data parallelism, and the
network of each axis. gpuwise runs fewer of them; what is composed here of those is bytes over a link, so that both searches
look at the same points.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.support.calculon_blocks import Fabric, TensorRank, seconds_of, tensor_rank
from gpuwise.plan.compose.table import BlockTable
from gpuwise.plan.space.layouts import divisors
from gpuwise.trace.header import RankGroup

DEVICES, BATCH, HIDDEN, HEADS, LAYERS = 512, 1536, 12288, 96, 96
HOST_BYTES, HOST_BYTES_PER_S = 512e9, 100e9  # of each device, as in the public comparison of 13,165,632 points
TP_OVERLAPS = np.array([0.0, 0.5, 0.8])  # share of tensor-parallel communication beside products: none, ring, pipelined
DP_OVERLAP = 0.8  # share of backward beside which gradients are reduced
GRADIENT_BYTES, STATE_BYTES = 4, 12  # a parameter, in mixed precision
AXES = 8
NAMES = (
    *("tp", "pp", "dp", "interleave", "micro_batch", "recompute", "communication", "gather_again", "shard", "weights_off"),
    *("activations_off", "state_off", "tp_overlap", "tp_network", "pp_network", "dp_overlap", "dp_network"),
)


def meshes() -> Iterator[tuple[int, int, int, int]]:
    """Tensor, pipeline and data parallel ranks, and stages of a rank."""
    for tp in (degree for degree in divisors(DEVICES).tolist() if HIDDEN % degree == 0 and HEADS % degree == 0):
        for pp in (degree for degree in divisors(DEVICES // tp).tolist() if degree <= LAYERS and LAYERS % degree == 0):
            for stages in divisors(LAYERS // pp).tolist() if pp > 1 else [1]:
                yield tp, pp, DEVICES // tp // pp, stages


def axis(values: object, position: int) -> np.ndarray:
    """Values along one of AXES axes."""
    return np.asarray(values, dtype=np.float64).reshape([-1 if index == position else 1 for index in range(AXES)])


@dataclass
class SearchCount:
    """What a search has seen: points, those that fit and whose networks reach, and the best as (seconds, point)."""

    points: int = 0
    fitting: int = 0
    best: tuple[tuple[float, tuple[int, ...]], ...] = ()


def search(
    table: BlockTable, fabric: Fabric, *, memory_bytes: float, keep: int = 5, sample: int = 0
) -> tuple[SearchCount, list[tuple[float, tuple[int, ...]]]]:
    """All points. sample: how many of each mesh's points to return as well, the same in every run."""
    ranks: dict[int, TensorRank] = {}
    count, samples = SearchCount(), list[tuple[float, tuple[int, ...]]]()
    random = np.random.default_rng(0)
    for mesh in meshes():
        tp = mesh[0]
        if tp not in ranks:
            ranks[tp] = tensor_rank(table, fabric, tp)
        space = MeshSpace(table, fabric, ranks[tp], mesh)
        seconds = space.seconds(memory_bytes)
        count.points += space.points
        if seconds is None:
            continue
        count.fitting += int(np.isfinite(seconds).sum())
        flat = seconds.ravel()
        chosen = np.argpartition(flat, min(keep, len(flat) - 1))[:keep]
        best = [
            (float(flat[cell]), space.point(int(cell), seconds.shape)) for cell in chosen.tolist() if np.isfinite(flat[cell])
        ]
        count.best = tuple(heapq.nsmallest(keep, [*count.best, *best]))
        for cell in random.choice(len(flat), size=min(sample, len(flat)), replace=False).tolist():
            if np.isfinite(flat[cell]):
                samples.append((float(flat[cell]), space.point(cell, seconds.shape)))
    return count, samples


class MeshSpace:
    """The points of one mesh: memory on eight axes, then time of what fits on five more."""

    def __init__(self, table: BlockTable, fabric: Fabric, rank: TensorRank, mesh: tuple[int, int, int, int]):
        self._table, self._fabric, self._rank, self._mesh = table, fabric, rank, mesh
        _, _, dp, _ = mesh
        batch = BATCH // dp
        self._rows = np.flatnonzero(batch % table.micro_batches == 0)
        self._micro_batches = table.micro_batches[self._rows]
        self._count = axis(batch // self._micro_batches, 0)
        self._fitting: tuple[np.ndarray, ...] = ()
        self.points = 0

    def seconds(self, memory_bytes: float) -> np.ndarray | None:
        """Seconds of steps, None where none fits.

        The axes are the points that fit, then overlap and network of tp, network of pp, and overlap and network of dp.
        """
        tp, pp, dp, stages = self._mesh
        rank, layers = self._rank, LAYERS // pp
        full, sequence = axis([1, 0, 0], 1), axis([0, 0, 1], 2)
        again, shard = axis([0, 1], 3), axis([0, 1], 4)
        weights_off, activations_off, state_off = (axis([0, 1], position) for position in (5, 6, 7))
        legal = (again <= sequence * (1 - full)) & (shard <= float(dp > 1)) & (activations_off <= 1 - full)
        parameter_bytes = layers * rank.block_bytes + rank.edge_bytes
        state = STATE_BYTES / 2 * parameter_bytes / np.where(shard > 0, dp, 1)
        weights = np.where(weights_off > 0, 3 * rank.block_bytes, parameter_bytes)
        kept = self._by_variant(rank.saved_bytes) * layers
        flying = np.minimum(self._count, pp) * (1 if stages == 1 else 1 + (pp - 1) / (pp * stages))
        device = weights + GRADIENT_BYTES / 2 * parameter_bytes + np.where(state_off > 0, 0, state)
        device = device + np.where(activations_off > 0, 2 * kept / layers, kept * flying) + self._by_variant(rank.inside_bytes)
        host = np.where(weights_off > 0, parameter_bytes, 0) + np.where(state_off > 0, state, 0)
        host = host + np.where(activations_off > 0, kept * flying, 0)
        fits = legal & (device <= memory_bytes) & (host <= HOST_BYTES)
        of_time = (
            (3 if tp > 1 else 1) * (2 if dp > 1 else 1) * (2 if tp > 1 else 1) * (2 if pp > 1 else 1) * (2 if dp > 1 else 1)
        )
        self.points = int(np.broadcast_to(legal, fits.shape).sum()) * of_time
        self._fitting = np.nonzero(fits)
        if not len(self._fitting[0]):
            return None
        parts = (shard, weights_off, activations_off, state_off, again, kept, state)
        return self._times(
            *(np.broadcast_to(part, fits.shape)[self._fitting] for part in parts), parameter_bytes=parameter_bytes
        )

    def _by_variant(self, values: np.ndarray) -> np.ndarray:
        """Values by micro-batch, recompute and communication, whose first two kinds have no sequence parallelism."""
        chosen = values[self._rows][:, :, [0, 0, 1]]
        return chosen.reshape(*chosen.shape[:3], *[1] * (AXES - 3))

    def _times(
        self,
        shard: np.ndarray,
        weights_off: np.ndarray,
        activations_off: np.ndarray,
        state_off: np.ndarray,
        again: np.ndarray,
        kept: np.ndarray,
        state: np.ndarray,
        *,
        parameter_bytes: float,
    ) -> np.ndarray:
        tp, pp, dp, stages = self._mesh
        rank, layers = self._rank, LAYERS // pp
        row, communication = self._rows[self._fitting[0]], self._fitting[2]
        at = row, self._fitting[1], (communication == 2).astype(np.int64)
        backward_s = rank.backward_s[at] + rank.again_s[at]
        compute = layers * (rank.forward_s[at] + backward_s) + rank.edge_s[at] / pp
        exchange = layers * rank.exchange_s[at] * (1 + again / 6)[:, None]  # one of six exchanges of a block again
        overlaps = TP_OVERLAPS if tp > 1 else TP_OVERLAPS[:1]
        micro_s = compute[:, None, None] + exchange[:, None, :] * (1 - overlaps[:, None])
        to_host = np.where(weights_off > 0, 2 * layers * rank.block_bytes, 0) + np.where(activations_off > 0, 2 * kept, 0)
        micro_s = np.maximum(micro_s, (to_host / HOST_BYTES_PER_S)[:, None, None])
        hop = np.zeros((len(row), 1))
        if pp > 1:
            sent = rank.sent_bytes[at] / np.where(communication > 0, tp, 1)
            groups = RankGroup("pp", pp, 1), RankGroup("pp", pp, self._fabric.wide)
            hop = (
                2 * stages * np.stack([seconds_of(self._table, self._fabric, "send", group, sent) for group in groups], axis=-1)
            )
        count = (BATCH // dp // self._table.micro_batches[row]) + (pp - 1) / stages
        passes = count[:, None, None, None] * (micro_s[..., None] + hop[:, None, None, :])
        late = np.zeros((len(row), 1, 1))
        if dp > 1:
            size = np.asarray(GRADIENT_BYTES / 2 * parameter_bytes)
            reduce = np.stack(
                [seconds_of(self._table, self._fabric, "all_reduce", group, size) for group in self._fabric.groups(dp)]
            )
            hidden = np.maximum(reduce - DP_OVERLAP * layers * backward_s[:, None], reduce / layers)
            late = np.stack([np.broadcast_to(reduce, hidden.shape), hidden], axis=1)
        update = rank.update_s_per_byte * parameter_bytes / np.where(shard > 0, dp, 1)
        update = update + np.where(state_off > 0, 2 * state / HOST_BYTES_PER_S, 0)
        step = passes[..., None, None] + (late + update[:, None, None])[:, None, None, None]
        reach = np.ones(step.shape[1:], dtype=bool)
        reach &= self._reaches(tp, tp)[None, :, None, None, None]
        reach &= self._reaches(pp, tp * pp)[None, None, :, None, None]
        reach &= self._reaches(dp, tp * pp * dp)[None, None, None, None, :]
        return np.where(reach, step, np.inf)

    def _reaches(self, degree: int, devices: int) -> np.ndarray:
        return self._fabric.spans(devices) if degree > 1 else np.array([True])

    def point(self, cell: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A point by NAMES."""
        number, *others = np.unravel_index(cell, shape)
        chosen = [int(index[number]) for index in self._fitting]
        return (*self._mesh, int(self._micro_batches[chosen[0]]), *chosen[1:], *map(int, others))
