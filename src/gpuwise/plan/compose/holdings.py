"""What a rank holds and updates for its parameters, by the sections of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuwise.errors import UnsupportedError
from gpuwise.plan.compose.shallow import AFTER_BLOCKS, BEFORE_BLOCKS, SECTIONS, ShallowStep
from gpuwise.plan.compose.workload import Work
from gpuwise.strategy import Mesh, Strategy
from gpuwise.trace.parallel.blocks import block_of_modules
from gpuwise.trace.parallel.experts import expert_parallel
from gpuwise.trace.parallel.stage import stage_step
from gpuwise.trace.parallel.tensor import tensor_parallel
from gpuwise.trace.tables import CATEGORIES, PHASES
from gpuwise.trace.trace import Trace
from gpuwise.trace.update.sharded import with_sharded_update

_PARAMETER, _GRADIENT, _STATE = (CATEGORIES.index(name) for name in ("parameter", "gradient", "optimizer_state"))
_SPLIT = 8  # ranks of the second of two updates, from which the others follow


@dataclass(frozen=True)
class Holdings:
    """Parameters of a tensor-parallel rank, as recorded.

    Attributes:
        parameter_bytes, gradient_bytes: by SECTIONS.
        tensors: number of gradients by SECTIONS.
        tied_bytes, tied_gradient_bytes, tied_tensors: of what the sections before and behind the blocks share: a rank with both
            has it once.
    """

    parameter_bytes: np.ndarray
    gradient_bytes: np.ndarray
    tensors: np.ndarray
    tied_bytes: float
    tied_gradient_bytes: float
    tied_tensors: float

    def of_ranks(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bytes of parameters and of gradients of ranks with so many of each section. weights: shape (ranks, sections)."""
        both = (weights[:, BEFORE_BLOCKS] > 0) & (weights[:, AFTER_BLOCKS] > 0)
        return (
            weights @ self.parameter_bytes - both * self.tied_bytes,
            weights @ self.gradient_bytes - both * self.tied_gradient_bytes,
        )

    def tensors_of_ranks(self, weights: np.ndarray) -> np.ndarray:
        """Number of gradients of such ranks."""
        both = (weights[:, BEFORE_BLOCKS] > 0) & (weights[:, AFTER_BLOCKS] > 0)
        result: np.ndarray = weights @ self.tensors - both * self.tied_tensors
        return result


@dataclass(frozen=True)
class PerElement:
    """What grows linearly with a number of elements."""

    base: float
    each: float

    def at(self, elements: np.ndarray) -> np.ndarray:
        return self.base + self.each * elements


@dataclass(frozen=True)
class UpdateCost:
    """One optimizer update, by elements updated.

    Attributes:
        device_s: of its kernels.
        calls, kernels: that the host launches.
        state_bytes: of the optimizer's state.
    """

    device_s: PerElement
    calls: PerElement
    kernels: PerElement
    state_bytes: PerElement


def holdings(shallow: ShallowStep, strategy: Strategy) -> Holdings:
    """What the sections of a step hold on one of the ranks of tp and ep."""
    of_whole = _by_block(_of_rank(shallow.trace, strategy))
    if len(shallow.trace.header.blocks) < 2:
        edges = np.array([of_whole[:, 0], of_whole[:, 0] * 0])
    else:
        edges = np.array([_by_block(_stage(shallow.trace, strategy, rank))[:, 0] for rank in (0, 1)])
    result = np.zeros((3, len(SECTIONS)))
    result[:] = of_whole[:, 1:2]
    result[:, BEFORE_BLOCKS], result[:, AFTER_BLOCKS] = edges
    tied = edges.sum(axis=0) - of_whole[:, 0]
    return Holdings(*result, *tied.tolist())


def _stage(trace: Trace, strategy: Strategy, rank: int) -> Trace:
    of_two = strategy.but(mesh=Mesh(pp=2), accumulation=2)
    stage = trace.once(("stage of two", rank), lambda: stage_step(trace, of_two, rank)[0])  # the same at any tp
    return _of_rank(stage, strategy.but(mesh=Mesh(tp=strategy.mesh.tp)))


def _of_rank(trace: Trace, strategy: Strategy) -> Trace:
    if strategy.mesh.ep > 1:
        trace = expert_parallel(trace, strategy)[0]
    return tensor_parallel(trace, strategy)[0] if strategy.mesh.tp > 1 else trace


def _by_block(trace: Trace) -> np.ndarray:
    """Bytes of parameters and gradients, and number of gradients: of what is in no block, and of each block.

    Shape (3, 1 + blocks).
    """
    storages = trace.storages
    block = block_of_modules(trace.modules, trace.header.blocks)[storages.module] + 1
    count = len(trace.header.blocks) + 1
    parameter, gradient = (storages.category == category for category in (_PARAMETER, _GRADIENT))
    parameter_bytes, gradient_bytes = (
        np.bincount(block[rows], weights=storages.size_bytes[rows], minlength=count) for rows in (parameter, gradient)
    )
    return np.array([parameter_bytes, gradient_bytes, np.bincount(block[gradient], minlength=count)])


@dataclass(frozen=True)
class Update:
    """One optimizer update on two numbers of ranks, between which everything is linear in the elements of a rank.

    Attributes:
        elements: that a rank updates.
        works: the kernels of each.
        calls, kernels, state_bytes: as in UpdateCost, of each.
    """

    elements: tuple[float, float]
    works: tuple[Work, Work]
    calls: tuple[float, float]
    kernels: tuple[float, float]
    state_bytes: tuple[float, float]

    def cost(self, device_s: Sequence[float]) -> UpdateCost:
        """The cost by elements. device_s: of the kernels of each of the works."""

        def per_element(values: Sequence[float]) -> PerElement:
            each = (values[0] - values[1]) / (self.elements[0] - self.elements[1])
            return PerElement(values[0] - each * self.elements[0], each)

        return UpdateCost(*map(per_element, (device_s, self.calls, self.kernels, self.state_bytes)))


def update_of(shallow: ShallowStep, strategy: Strategy, *, element_bytes: int, widened: float) -> Update:
    """The update of a rank's parameters.

    Arguments:
        element_bytes, widened: as in gpuwise.trace.parallel.shard.

    Raises UnsupportedError for an optimizer that the job makes itself.
    """
    trace = _of_rank(shallow.trace, strategy)
    optimizer = strategy.optimizer or trace.header.strategy.optimizer
    if optimizer is None:
        raise UnsupportedError(
            f"the update of {trace.header.job} is its own: it is not composed for many strategies.", ["name an --optimizer"]
        )
    elements, works, counted = [], [], []
    for ranks in (1, _SPLIT):
        split = np.full(len(trace.modules), ranks, dtype=np.int64)
        step = with_sharded_update(trace, strategy, optimizer, ranks=split, widened=widened)
        gradients = trace.storages.size_bytes[trace.storages.category == _GRADIENT]
        elements.append(float(gradients.sum()) / element_bytes / ranks)
        counts = step.counts("optimizer")
        assert PHASES[-1] == "optimizer"
        state = float(step.storages.size_bytes[step.storages.category == _STATE].sum())
        run = np.flatnonzero(counts)
        works.append(Work((step,), 1, run, np.zeros(len(run), dtype=np.int64), counts[run].astype(np.float64), 1))
        counted.append((float(counts.sum()), float(counts @ step.operations.column("kernels")), state))
    calls, kernels, state_bytes = zip(*counted, strict=True)
    return Update((elements[0], elements[1]), (works[0], works[1]), calls, kernels, state_bytes)
