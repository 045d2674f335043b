"""What flows between the blocks of a job's model, by dry runs, for batches of several shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from gpuwise.errors import UnsupportedError
from gpuwise.job.batches import named_tensors
from gpuwise.job.job import Batch
from gpuwise.runtime.devices.random_state import unchanged_generators
from gpuwise.runtime.parallel.stages_absent import WAYS
from gpuwise.runtime.parallel.stages_cut import Cut, check_cut, cut_at
from gpuwise.runtime.parallel.stages_flow import Flow, check_flow
from gpuwise.runtime.parallel.stages_model import dry_model, names_of_tensors, paths_of_blocks, paths_of_edges

_KEPT = 32  # shapes of batches

Shapes = tuple[tuple[str, tuple[int, ...], torch.dtype], ...]


class Flows:
    """Dry runs of a model.

    Attributes:
        model: the model without parameters that runs dry.
        blocks: paths of its repeated blocks.
        edges: paths of the modules outside the blocks that have parameters.
        cut: where the model is cut, once `cut_by` has decided it.

    Arguments:
        model: the whole model.
        device: that it runs on.
        dtype: in which its parameters compute, if it is not their own.
    """

    def __init__(self, model: nn.Module, *, device: torch.device, dtype: torch.dtype | None):
        self.blocks = paths_of_blocks(model)
        self.edges = paths_of_edges(model, self.blocks)
        self._dry = dry_model(model, self.blocks, self.edges, device=device, dtype=dtype)
        self.model = self._dry.model
        self.cut: Cut | None = None
        self._flows: dict[object, Flow] = {}

    def cut_by(self, function: Callable[[nn.Module], object], stages: int, model: nn.Module, *, trains: bool) -> Cut:
        """Decides where the whole model is cut, by the flow of a function of it."""
        flow = self._run(function, trains=trains)
        self.cut = cut_at(flow, stages, names_of_tensors(model, self._dry))
        return self.cut

    def of(self, key: object, function: Callable[[nn.Module], object], *, trains: bool) -> Flow:
        """The flow of a function of the model, kept under a key that tells the shapes apart.

        Raises UnsupportedError for a model that the cut does not fit.
        """
        if (key, trains) not in self._flows:
            if len(self._flows) >= _KEPT:
                self._flows.clear()
            self._flows[key, trains] = self._run(function, trains=trains)
        return self._flows[key, trains]

    def _run(self, function: Callable[[nn.Module], object], *, trains: bool) -> Flow:
        self.model.train(trains)
        with unchanged_generators(torch.device("cpu")):
            flow = self._dry.run(function)
        check_flow(flow, self.blocks)
        if self.cut is not None:
            if tuple(call.path for call in flow.blocks) != self.cut.blocks:
                raise UnsupportedError("the model runs its blocks in another order for other shapes.", WAYS)
            check_cut(flow, self.cut)
        return flow


def shapes(batch: Batch) -> Shapes:
    """What tells batches of other shapes apart."""
    return tuple((name, tuple(tensor.shape), tensor.dtype) for name, tensor in named_tensors(batch))


def in_words(batch: Batch) -> str:
    """The tensors of a batch and their shapes, for an error."""
    return ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in named_tensors(batch))


def first_of_other_shapes(batches: Sequence[Batch]) -> Batch | None:
    """The first micro-batch whose shapes are not those of the first; None where all are alike."""
    expected = shapes(batches[0])
    return next((batch for batch in batches if shapes(batch) != expected), None)
