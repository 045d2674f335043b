"""The schedules of torch.distributed.pipelining over the stages of one rank."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as pytorch
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle

from gpuwise.runtime.parallel.stages import ModelStage
from gpuwise.runtime.parallel.stages_absent import Tree
from gpuwise.runtime.parallel.stages_flow import BlockCall
from gpuwise.strategy.parallelism import SINGLE_STAGE_SCHEDULES

Schedule = PipelineScheduleSingle | PipelineScheduleMulti
SCHEDULES: dict[str, type[Tree]] = {
    "gpipe": pytorch.ScheduleGPipe,
    "1f1b": pytorch.Schedule1F1B,
    "looped-bfs": pytorch.ScheduleLoopedBFS,
    "interleaved-1f1b": pytorch.ScheduleInterleaved1F1B,
    "interleaved-zero-bubble": pytorch.ScheduleInterleavedZeroBubble,
    "zbv-zero-bubble": pytorch.ScheduleZBVZeroBubble,
    "dualpipe-v": pytorch.ScheduleDualPipeV,
}


class _Agreed:
    """The result of PyTorch's vote on whether all shapes are stated."""

    def item(self) -> int:
        return 1


FORWARD, BACKWARD, WEIGHTS = "forward", "backward", "weights"
Watch = Callable[[str, int, int], object]


class _StatedStage(PipelineStage):
    """A stage whose shapes are stated, on every rank. PyTorch's vote on that would send numbers, which tracing has not.

    Attributes:
        watch: called with (FORWARD | BACKWARD | WEIGHTS, stage, micro-batch) before each part of the stage's work. The
            backward pass of a split schedule is that of the stage's inputs, and WEIGHTS follows later.
    """

    watch: Watch | None = None

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Tree, **kwargs: Tree) -> Tree:
        if self.watch is not None:
            self.watch(FORWARD, self.stage_index, fwd_chunk_id)
        return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Tree, **kwargs: Tree) -> Tree:
        if self.watch is not None:
            self.watch(BACKWARD, self.stage_index, bwd_chunk_id)
        return super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Tree, **kwargs: Tree) -> Tree:
        if self.watch is not None:
            self.watch(WEIGHTS, self.stage_index, bwd_chunk_id)
        return super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)

    def _warmup_forward_vote(self, *args: object, **kwargs: object) -> Tree:
        return _Agreed()

    def _warmup_backward_result(self, *args: object, **kwargs: object) -> Tree:
        return _Agreed()


def make_schedule(
    name: str,
    stages: Sequence[ModelStage],
    micro_batches: int,
    *,
    device: torch.device,
    group: dist.ProcessGroup,
    watch: Watch | None = None,
) -> Schedule:
    """A schedule over the stages of this rank, whose last stage gives the loss itself.

    Arguments:
        name: of PIPELINE_SCHEDULES.
        stages: the stages, which know their shapes (see ModelStage.begin).
        micro_batches: of a step.
        device: of the stages.
        group: the ranks of the pipeline.
        watch: see _StatedStage.
    """
    # On an error, which is raised, PyTorch also logs the whole schedule.
    logging.getLogger(pytorch.__name__).setLevel(logging.CRITICAL)
    stated = [
        _StatedStage(
            stage,
            stage.index,
            stage.cut.stages,
            device,
            input_args=_examples(stage.inputs),
            output_args=_examples(stage.outputs) or (torch.empty((), device="meta", requires_grad=True),),
            group=group,
        )
        for stage in stages
    ]
    for stage in stated:
        stage.watch = watch
    over = stated[0] if name in SINGLE_STAGE_SCHEDULES else stated
    schedule: Schedule = SCHEDULES[name](over, micro_batches, loss_fn=_the_loss_itself, scale_grads=False)
    return schedule


def _the_loss_itself(output: Tensor, target: Tensor) -> Tensor:
    return output


def _examples(call: BlockCall | None) -> tuple[Tensor, ...]:
    """Tensors without memory, of the shapes that the call's receiver or sender has."""
    return tuple(
        torch.empty(t.shape, dtype=t.dtype, device="meta", requires_grad=t.dtype.is_floating_point)
        for t in (call.inputs if call is not None else ())
    )
