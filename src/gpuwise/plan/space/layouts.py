"""Layouts: how devices may be divided among tensor, context, expert, pipeline and data parallelism, as columns of arrays.

The rules are those of gpuwise.strategy.check_techniques and gpuwise.trace.parallel.ranks, applied to all combinations at once;
tests/property/test_layouts.py holds them to each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from gpuwise.errors import InputError, UnsupportedError
from gpuwise.strategy import Mesh, Parallelism, Strategy, check_techniques
from gpuwise.strategy.parallelism import SHARDS

_WHOLE = len(SHARDS)  # the index that stands for parameters that are not split


@dataclass(frozen=True)
class ModelLimits:
    """What of a model limits its layouts.

    Attributes:
        blocks: number of its repeated blocks.
        tensor_degrees: degrees of tensor parallelism that divide its heads and features, 1 among them.
        seq_len: length of its sequences; None where it has none.
        context_degrees, expert_degrees: of context and expert parallelism, 1 among them; 1 alone by default.
    """

    blocks: int
    tensor_degrees: tuple[int, ...]
    seq_len: int | None = None
    context_degrees: tuple[int, ...] = (1,)
    expert_degrees: tuple[int, ...] = (1,)


@dataclass(frozen=True)
class Layouts:
    """Layouts of one number of devices, a row each. All columns have shape (layouts,).

    Attributes:
        tp, pp, dp_replicate, dp_shard: degrees of the mesh.
        stages_per_rank: 1 runs 1f1b, more run interleaved-1f1b.
        shard: index into SHARDS; their number where nothing is split.
        cp, ep: degrees of context and expert parallelism.
    """

    tp: np.ndarray
    pp: np.ndarray
    dp_replicate: np.ndarray
    dp_shard: np.ndarray
    stages_per_rank: np.ndarray
    shard: np.ndarray
    cp: np.ndarray
    ep: np.ndarray

    @property
    def shards(self) -> np.ndarray:
        """Ranks that split parameters, gradients or state: those of dp_shard and of cp."""
        result: np.ndarray = self.dp_shard * self.cp
        return result

    def __len__(self) -> int:
        return len(self.tp)

    def mesh(self, row: int) -> Mesh:
        return Mesh(
            tp=int(self.tp[row]),
            pp=int(self.pp[row]),
            dp_replicate=int(self.dp_replicate[row]),
            dp_shard=int(self.dp_shard[row]),
            cp=int(self.cp[row]),
            ep=int(self.ep[row]),
        )

    def under(self, techniques: Strategy) -> Layouts:
        """The layouts that go with a strategy's techniques, by the rules of gpuwise.strategy.check_techniques.

        Arguments:
            techniques: its mesh and batch do not count.
        """
        degrees = self.tp, self.pp, self.dp_replicate, self.dp_shard, self.stages_per_rank, self.cp, self.ep
        columns = np.column_stack([*(degree > 1 for degree in degrees), self.shard])
        kinds, kind_of_row = np.unique(columns, axis=0, return_inverse=True)
        legal = np.array([_goes_with(techniques, kind.tolist()) for kind in kinds], dtype=bool)
        rows = np.flatnonzero(legal[kind_of_row.ravel()])
        return self if len(rows) == len(self) else Layouts(*(getattr(self, f.name)[rows] for f in fields(self)))

    def parallelism(self, row: int) -> Parallelism:
        """Schedule, stages and shards of a row."""
        stages, shard = int(self.stages_per_rank[row]), int(self.shard[row])
        schedule = "1f1b" if stages == 1 else "interleaved-1f1b"
        shards = SHARDS[0] if shard == _WHOLE else SHARDS[shard]
        return Parallelism(shard=shards, pipeline_schedule=schedule, stages_per_rank=stages)


def _goes_with(techniques: Strategy, kind: list[int]) -> bool:
    """Whether techniques go with layouts of a kind: whether each axis has several devices, and the shard."""
    tp, pp, dp_replicate, dp_shard, stages, cp, ep = (1 + several for several in kind[:-1])
    alike = Layouts(*(np.array([degree]) for degree in (tp, pp, dp_replicate, dp_shard, stages, kind[-1], cp, ep)))
    strategy = techniques.but(mesh=alike.mesh(0), parallelism=alike.parallelism(0), accumulation=2 * pp)
    try:
        check_techniques(strategy)
    except (InputError, UnsupportedError):
        return False
    return True


def layouts(devices: int, limits: ModelLimits, *, most_stages: int = 8) -> Layouts:
    """All layouts of so many devices.

    Arguments:
        most_stages: of a rank.
    """
    degrees = divisors(devices)
    axes = np.meshgrid(
        np.array([degree for degree in limits.tensor_degrees if devices % degree == 0]),
        degrees,
        degrees,
        np.arange(1, most_stages + 1),
        np.arange(_WHOLE + 1),
        np.array([degree for degree in limits.context_degrees if devices % degree == 0]),
        np.array([degree for degree in limits.expert_degrees if devices % degree == 0]),
        indexing="ij",
    )
    tp, pp, dp_shard, stages, shard, cp, ep = (axis.ravel() for axis in axes)
    of_model = tp * pp * dp_shard * cp
    legal = devices % of_model == 0
    legal &= (pp == 1) | (pp * stages <= limits.blocks)
    legal &= (pp > 1) | (stages == 1)
    legal &= (dp_shard * cp == 1) == (shard == _WHOLE)
    legal &= (ep == 1) | ((dp_shard % ep == 0) & (tp * pp * cp == 1))  # as gpuwise.strategy.legal_tensor has it
    rows = np.flatnonzero(legal)
    columns = (tp, pp, devices // of_model, dp_shard, stages, shard, cp, ep)
    return Layouts(*(column[rows] for column in columns))


def divisors(number: int) -> np.ndarray:
    """The whole numbers that divide a number, ascending."""
    candidates = np.arange(1, number + 1)
    result: np.ndarray = candidates[number % candidates == 0]
    return result


def accumulations(global_batch: int, *, data_parallel: int, micro_batches: Sequence[int]) -> np.ndarray:
    """Micro-batches of a step that make a global batch, for each size of them; 0 where they do not. Shape (micro-batches,)."""
    sizes = np.asarray(micro_batches) * data_parallel
    return np.where(global_batch % sizes == 0, global_batch // sizes, 0)


def fills_pipeline(accumulation: np.ndarray, *, pp: int, stages_per_rank: int) -> np.ndarray:
    """Whether a step has as many micro-batches as the schedule takes. Shape of `accumulation`."""
    some = accumulation > 0
    if pp == 1:
        return some
    if stages_per_rank == 1:
        return accumulation >= pp
    rounds: np.ndarray = some & (accumulation % np.maximum(1, accumulation // pp) == 0)
    return rounds
