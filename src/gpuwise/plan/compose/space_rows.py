"""The strategies of one number of devices as arrays: what ranks compute, and how data-parallel ranks share it.

A strategy is a work and a layout that goes with it. What a rank computes does not depend on how the others of its data-parallel
group share parameters: works are few, and layouts of one work many.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuwise.plan.compose.job_arrays import BlockPart, JobArrays
from gpuwise.plan.compose.ranks import pipeline_ranks
from gpuwise.plan.space.layouts import Layouts, accumulations, fills_pipeline

RANKS = (
    3  # of a pipeline that differ: the first, one in the middle, the last. Of two the last stands for both, of one that one.
)


@dataclass(frozen=True)
class Works:
    """What ranks compute, a row each. All have shape (works,) but for those that say otherwise.

    Attributes:
        entry: of JobArrays.
        column: its micro-batch.
        pipe: row of `Space.weights`.
        tp, pp, stages: degrees, and stages of a rank.
        accumulation: micro-batches of a step.
        in_flight: whose activations a rank has. Shape (RANKS, works).
        first, layouts: the first of its layouts, and their number.
    """

    entry: np.ndarray
    column: np.ndarray
    pipe: np.ndarray
    tp: np.ndarray
    pp: np.ndarray
    stages: np.ndarray
    accumulation: np.ndarray
    in_flight: np.ndarray
    first: np.ndarray
    layouts: np.ndarray

    def __len__(self) -> int:
        return len(self.entry)


class Space:
    """The strategies of a number of devices.

    Arguments:
        arrays: of the job.
        layouts: of the devices.
        global_batch: samples of a step.

    Attributes:
        layouts: in the order of what their ranks compute.
        order: the row of each in the layouts given.
        sharded: whether fully_shard runs its steps.
        weights: sections of the ranks that differ. Shape (pipelines, RANKS, sections).
    """

    def __init__(self, arrays: JobArrays, layouts: Layouts, *, global_batch: int):
        sharded = np.array(is_sharded(layouts), dtype=bool)
        parts = layouts.tp, layouts.pp, layouts.stages_per_rank, sharded.astype(np.int64), layouts.cp, layouts.ep
        key = np.stack(parts)
        frames, frame = np.unique(key, axis=1, return_inverse=True)
        self.order = np.argsort(frame.ravel(), kind="stable")
        self.sharded = sharded[self.order]
        self.layouts = Layouts(*(getattr(layouts, name)[self.order] for name in Layouts.__dataclass_fields__))
        counts = np.bincount(frame.ravel(), minlength=frames.shape[1])
        self._arrays, self._pipes = arrays, dict[tuple[int, int], int]()
        self.works = self._works(frames, counts, global_batch=global_batch, devices=_devices(layouts))
        self.weights = np.array([self._weights(*pipe) for pipe in self._pipes]).reshape(-1, RANKS, 5)

    def _works(self, frames: np.ndarray, counts: np.ndarray, *, global_batch: int, devices: int) -> Works:
        micro_batches = self._arrays.blocks.micro_batches.tolist()
        starts = np.cumsum([0, *counts[:-1]])
        of_part: dict[BlockPart, list[int]] = {}
        for index, entry in enumerate(self._arrays.entries):
            of_part.setdefault(entry.part, []).append(index)
        columns: list[np.ndarray] = []
        for number, (tp, pp, stages, sharded, cp, ep) in enumerate(frames.T.tolist()):
            accumulation = accumulations(global_batch, data_parallel=devices // (tp * pp * cp), micro_batches=micro_batches)
            legal = np.flatnonzero(fills_pipeline(accumulation, pp=pp, stages_per_rank=stages))
            entries = np.array(of_part.get(BlockPart(tp, cp, ep, bool(sharded)), ()), dtype=np.int64)
            rows, column = (one.ravel() for one in np.meshgrid(entries, legal, indexing="ij"))
            pipe = self._pipes.setdefault((pp, stages), len(self._pipes))
            same = np.array([pipe, tp, pp, stages, starts[number], counts[number]])
            of_frame = np.repeat(same[:, None], len(rows), axis=1)
            columns.append(np.concatenate([np.stack([rows, column, accumulation[column]]), of_frame]))
        table = np.concatenate(columns, axis=1) if columns else np.zeros((9, 0), dtype=np.int64)
        entries, sizes, counts_of_step, pipes, tensor, pipeline, per_rank, first, of_work = table
        flying = in_flight(pipeline, per_rank, counts_of_step)
        return Works(entries, sizes, pipes, tensor, pipeline, per_rank, counts_of_step, flying, first, of_work)

    def _weights(self, pp: int, stages: int) -> np.ndarray:
        schedule = "1f1b" if stages == 1 else "interleaved-1f1b"
        weights = pipeline_ranks(self._arrays.blocks.whole, pp=pp, schedule=schedule, stages_per_rank=stages).weights
        return weights[[0, min(1, len(weights) - 1), len(weights) - 1]]


@dataclass(frozen=True)
class StrategyRows:
    """Strategies on clusters. All have shape (rows,).

    Attributes:
        cluster: index of the cluster.
        work, layout: of the Space.
    """

    cluster: np.ndarray
    work: np.ndarray
    layout: np.ndarray

    def __len__(self) -> int:
        return len(self.cluster)

    def chosen(self, rows: np.ndarray) -> StrategyRows:
        return StrategyRows(self.cluster[rows], self.work[rows], self.layout[rows])


def in_flight(pp: np.ndarray, stages: np.ndarray, accumulation: np.ndarray) -> np.ndarray:
    """As gpuwise.trace.parallel.pipeline.in_flight has it, of the first rank, the one behind it and the last."""
    position = np.stack([np.zeros_like(pp), np.minimum(1, pp - 1), pp - 1])
    behind = pp - 1 - position
    plain = np.minimum(behind + 1, accumulation)
    each_round = accumulation // np.maximum(1, accumulation // pp)
    ahead = (stages - 1) * each_round + 2 * behind
    result: np.ndarray = np.where(stages > 1, np.minimum(ahead + 1, accumulation * stages) / stages, plain)
    return result


def is_sharded(layouts: Layouts) -> list[bool]:
    """Whether fully_shard runs the steps of layouts, as gpuwise.trace.parallel.variant.is_sharded has it of one."""
    sharded: np.ndarray = (layouts.shards > 1) | ((layouts.dp_replicate > 1) & (layouts.tp > 1))
    return sharded.tolist()


def block_parts(layouts: Layouts) -> set[BlockPart]:
    """The parts of blocks that ranks of layouts run."""
    return set(map(BlockPart, layouts.tp.tolist(), layouts.cp.tolist(), layouts.ep.tolist(), is_sharded(layouts)))


def _devices(layouts: Layouts) -> int:
    return int(layouts.tp[0] * layouts.pp[0] * layouts.dp_replicate[0] * layouts.shards[0]) if len(layouts) else 1


def expanded(first: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Runs of indices one after the other: which run each is of, and the index."""
    runs = np.repeat(np.arange(len(counts)), counts)
    starts = np.cumsum(counts) - counts
    return runs, first[runs] + np.arange(len(runs)) - starts[runs]
