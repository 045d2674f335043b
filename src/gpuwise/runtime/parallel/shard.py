"""Shards: parameters, gradients and optimizer state are split over ranks by fully_shard (FSDP2)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from gpuwise.job.blocks import repeated_blocks
from gpuwise.runtime.parallel.job_loss import JobLoss, ModelCall
from gpuwise.runtime.parallel.rank_model import RankModel
from gpuwise.runtime.parallel.world import World
from gpuwise.strategy import Strategy

_COMPUTE = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}

T = TypeVar("T")


class Shards:
    """Gathers parameters where they are used, and scatters gradients.

    Attributes:
        root: the job's loss under fully_shard.
    """

    def __init__(self, root: nn.Module):
        self.root = root

    def micro_batch(self, *, first: bool, last: bool) -> AbstractContextManager[object]:
        return nullcontext()

    def evaluated(self, call: Callable[[], T]) -> T:
        return cast(T, self.root(ModelCall(call)))


def apply_shards(rank_model: RankModel, strategy: Strategy, world: World) -> None:
    """Shards each repeated block as a unit, and the rest of the model as another."""
    assert rank_model.loss is not None
    rank_model.synchronisation = Shards(shard_module(JobLoss(rank_model.model, rank_model.loss), strategy, world))


def shard_module(root: nn.Module, strategy: Strategy, world: World) -> nn.Module:
    """Applies fully_shard to the repeated blocks of a module, then to the module itself, whose forward runs them all."""
    mesh = shard_mesh(world)
    policy = MixedPrecisionPolicy(param_dtype=_COMPUTE.get(strategy.precision), reduce_dtype=torch.float32)
    reshard = strategy.parallelism.shard == "parameters"
    for block in repeated_blocks(root):
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
    fully_shard(root, mesh=mesh, mp_policy=policy)
    return root


def shard_mesh(world: World) -> DeviceMesh:
    """The mesh of fully_shard: shards alone, or replicas of shards."""
    return world.shards if world.mesh.dp_replicate == 1 else world.replicas_of_shards
