"""Replicas: every rank has whole parameters, and DistributedDataParallel averages their gradients."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gpuwise.runtime.parallel.job_loss import JobLoss
from gpuwise.runtime.parallel.rank_model import RankModel
from gpuwise.runtime.parallel.world import World
from gpuwise.strategy import Strategy

T = TypeVar("T")


class Replicas:
    """Averages gradients in the backward pass of the last micro-batch of a step.

    Attributes:
        root: the job's loss inside DistributedDataParallel.
    """

    def __init__(self, loss: nn.Module, world: World):
        self.root = self._ddp = DistributedDataParallel(
            loss,
            process_group=world.data.get_group(),
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
            find_unused_parameters=True,
        )

    def micro_batch(self, *, first: bool, last: bool) -> AbstractContextManager[object]:
        return nullcontext() if last else self._ddp.no_sync()

    def evaluated(self, call: Callable[[], T]) -> T:
        return call()


def apply_replicas(rank_model: RankModel, strategy: Strategy, world: World) -> None:
    """Averages the gradients of all data-parallel ranks."""
    assert rank_model.loss is not None
    rank_model.synchronisation = Replicas(JobLoss(rank_model.model, rank_model.loss), world)
