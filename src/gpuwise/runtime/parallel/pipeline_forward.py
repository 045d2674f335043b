"""One forward pass through the stages of a pipeline, without gradients and without a schedule."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gpuwise.runtime.parallel.stages import Stages
from gpuwise.runtime.parallel.stages_absent import received
from gpuwise.runtime.parallel.stages_flow import BlockCall, Flow


class _OutputError(BaseException):
    """Ends the last stage's run after the model's forward, before what follows the call."""


def forward_through(
    stages: Stages,
    flow: Flow,
    call: Callable[[nn.Module], object],
    *,
    rank_of: Callable[[int], int],
    device: torch.device,
    group: dist.ProcessGroup,
) -> object:
    """The model's output on the rank with the last stage, None on others. All ranks of the pipeline call it.

    Arguments:
        stages: of this rank.
        flow: of a dry run at the shapes of the batch.
        call: calls the model with the batch.
        rank_of: the rank of a stage.
        device: of the stages.
        group: the ranks of the pipeline.
    """
    outputs: list[object] = []

    def stop(module: nn.Module, args: object, output: object) -> None:
        outputs.append(output)
        raise _OutputError

    def run(model: nn.Module, number: int) -> object:
        hook = model.register_forward_hook(stop)
        try:
            return call(model)
        except _OutputError:
            return ()
        finally:
            hook.remove()

    own = {stage.index for stage in stages}
    here: tuple[Tensor, ...] = ()  # what the stage before has left on this rank
    for stage in stages:
        stage.begin(flow, run)
        if stage.inputs is not None and stage.index - 1 not in own:
            here = _from_rank(rank_of(stage.index - 1), stage.inputs, device, group)
        here = stage(*here)
        if stage.outputs is not None and stage.index + 1 not in own:
            for tensor in here:
                dist.send(tensor, group=group, group_dst=rank_of(stage.index + 1))
    return received(outputs[0]) if outputs else None


def _from_rank(rank: int, call: BlockCall, device: torch.device, group: dist.ProcessGroup) -> tuple[Tensor, ...]:
    tensors = tuple(torch.empty(expected.shape, dtype=expected.dtype, device=device) for expected in call.inputs)
    for tensor in tensors:
        dist.recv(tensor, group=group, group_src=rank)
    return tensors
