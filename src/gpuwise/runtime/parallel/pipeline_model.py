"""A pipeline as the model that a job's evaluate calls: each call runs through the stages of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from gpuwise.errors import UnsupportedError
from gpuwise.runtime.parallel.stages import OwnPaths, Stages
from gpuwise.runtime.parallel.stages_absent import WAYS, AbsentTensor, Arguments, Keywords
from gpuwise.runtime.parallel.stages_flow import Flow


class PipelineModel(OwnPaths):
    """The job's model, called by all ranks of a pipeline alike and without gradients.

    Its parameters are those of this rank. Attributes without code (a config, a number) are those of the job's model.

    Arguments:
        stages: of this rank.
        run: (arguments, keywords) -> the model's output.
    """

    def __init__(self, stages: Stages, run: Callable[[Arguments, Keywords], object]):
        super().__init__()
        self.stages, self._run = stages, run
        self.training = stages.training

    @property
    def inner(self) -> Iterable[nn.Module]:
        return self.stages

    def forward(self, *args: object, **kwargs: object) -> object:
        return self._run(args, kwargs)

    def __getattr__(self, name: str) -> object:  # type: ignore[override]
        try:
            return super().__getattr__(name)
        except AttributeError:
            value = getattr(next(iter(self.stages)).model, name)
        if callable(value) or isinstance(value, Tensor):
            raise UnsupportedError(
                f"evaluate uses model.{name}; of a model in pipeline stages it can call the whole model alone.",
                ["call model(...) in the Job's evaluate", *WAYS],
            )
        return value


def on_all_ranks(
    output: object, flow: Flow, *, has_output: bool, root: int, device: torch.device, group: dist.ProcessGroup
) -> object:
    """The output of a model on every rank of a pipeline.

    Arguments:
        output: of the model, on the rank with the last stage; ignored elsewhere.
        flow: of a dry run of the same call, which tells other ranks the shapes.
        has_output: whether this rank has the last stage.
        root: the rank that has it.
        device: of the stages.
        group: the ranks of the pipeline.
    """
    leaves, structure = tree_flatten(flow.output)
    values = tree_leaves(output) if has_output else []
    for number, leaf in enumerate(leaves):
        if isinstance(leaf, AbsentTensor):
            expected = torch.empty(leaf.shape, dtype=leaf.dtype, device=device)
            tensor = values[number].to(expected.dtype).contiguous() if has_output else expected
            dist.broadcast(tensor, group=group, group_src=root)
            leaves[number] = tensor
    return output if has_output else tree_unflatten(leaves, structure)
