"""The ranks of a pipeline that differ: how many of each section of a step they have, and how many ranks are alike."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gpuwise.plan.compose.shallow import AFTER_BLOCKS, BEFORE_BLOCKS, FIRST_BLOCK, LAST_BLOCK, MIDDLE_BLOCK, SECTIONS
from gpuwise.strategy import Mesh, Parallelism, Strategy
from gpuwise.strategy.pipeline import stages_of_rank
from gpuwise.trace.parallel.pipeline import in_flight
from gpuwise.trace.parallel.ranks import unequal_ranks
from gpuwise.trace.parallel.segments import segments_of
from gpuwise.trace.parallel.stage import first_blocks
from gpuwise.trace.trace import Trace


@dataclass(frozen=True)
class PipelineRanks:
    """The ranks of a pipeline that differ.

    Attributes:
        strategy: whose mesh.pp and schedule they are of.
        positions: of the ranks along pp.
        weights: how many of each of SECTIONS a rank has. Shape (ranks, sections).
    """

    strategy: Strategy
    positions: tuple[int, ...]
    weights: np.ndarray

    @property
    def blocks(self) -> np.ndarray:
        """Blocks of each rank."""
        result: np.ndarray = self.weights[:, [FIRST_BLOCK, MIDDLE_BLOCK, LAST_BLOCK]].sum(axis=1)
        return result

    def in_flight(self, accumulation: np.ndarray) -> np.ndarray:
        """Micro-batches whose activations each rank holds. Shape (ranks, *accumulation.shape)."""
        mesh, parallelism = self.strategy.mesh, self.strategy.parallelism
        counts = accumulation.ravel().tolist()
        rows = [[_in_flight(mesh.pp, parallelism, rank, count) for count in counts] for rank in self.positions]
        return np.array(rows).reshape(len(self.positions), *accumulation.shape)


@lru_cache(maxsize=65536)
def _in_flight(pp: int, parallelism: Parallelism, rank: int, accumulation: int) -> float:
    return in_flight(Strategy(mesh=Mesh(pp=pp), parallelism=parallelism, accumulation=accumulation), rank)


def pipeline_ranks(whole: Trace, *, pp: int, schedule: str, stages_per_rank: int) -> PipelineRanks:
    """The ranks of a pipeline over a model.

    Arguments:
        whole: the step of the whole model on one device.
        schedule, stages_per_rank: as in Parallelism.
    """
    parallelism = Parallelism(pipeline_schedule=schedule, stages_per_rank=stages_per_rank)
    strategy, blocks = Strategy(mesh=Mesh(pp=pp), parallelism=parallelism), len(whole.header.blocks)
    if pp == 1:
        return PipelineRanks(strategy, (0,), _weights(range(blocks), blocks, before=True, after=True)[None])
    stages = pp * stages_per_rank
    starts = (*whole.once(("stages", stages), lambda: first_blocks(whole, segments_of(whole), stages)), blocks)
    positions, rows = tuple(unequal_ranks(strategy)), []
    for rank in positions:
        own = stages_of_rank(parallelism, ranks=pp, rank=rank)
        numbers = [block for stage in own for block in range(starts[stage], starts[stage + 1])]
        rows.append(_weights(numbers, blocks, before=0 in own, after=stages - 1 in own))
    return PipelineRanks(strategy, positions, np.array(rows))


def _weights(numbers: range | list[int], blocks: int, *, before: bool, after: bool) -> np.ndarray:
    weights = np.zeros(len(SECTIONS))
    weights[BEFORE_BLOCKS], weights[AFTER_BLOCKS] = before, after
    for number in numbers:
        weights[FIRST_BLOCK if number == 0 else LAST_BLOCK if number == blocks - 1 else MIDDLE_BLOCK] += 1
    return weights
