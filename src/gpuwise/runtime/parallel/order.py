"""The fixed order in which a rank's model is made of the job's model."""

from __future__ import annotations

import torch
from torch import nn

from gpuwise.job import Job
from gpuwise.runtime.build.compiling import apply_compile
from gpuwise.runtime.build.recompute import apply_recompute
from gpuwise.runtime.parallel.initial_weights import InitialWeights
from gpuwise.runtime.parallel.pipeline import cut_into_stages
from gpuwise.runtime.parallel.rank_model import RankModel
from gpuwise.runtime.parallel.replicate import apply_replicas
from gpuwise.runtime.parallel.shard import Shards, apply_shards, shard_stages
from gpuwise.runtime.parallel.split import apply_split, split_of
from gpuwise.runtime.parallel.world import World
from gpuwise.strategy import Strategy


def arrange(
    job: Job,
    strategy: Strategy,
    model: nn.Module,
    *,
    device: torch.device,
    world: World | None,
    weights: InitialWeights | None = None,
) -> RankModel:
    """Applies the parallelisms, recompute and compilation of a strategy to the job's model, each where it belongs.

    Arguments:
        job: the job.
        strategy: the strategy of the step.
        model: the whole model, on its device; every rank has the same initial weights.
        device: the model's.
        world: this rank's position in the mesh; None for a single process.
        weights: the values of a model whose parameters are on the meta device; None for one that has them.
    """
    rank_model = RankModel(model, [model], job.loss)
    mesh = strategy.mesh
    # Before anything is cut, the split inside blocks is decided and compared with the plain model.
    split = None if world is None else split_of(job, strategy, model, device=device, world=world, weights=weights)
    # 1. Pipeline: the model is cut into stages, and this rank keeps its own. Everything below acts on each stage alone.
    if world is not None and mesh.pp > 1:
        cut_into_stages(job, strategy, rank_model, device=device, world=world)

    # 2. Tensor, context and expert parallelism replace modules, or their parameters and inputs, inside blocks.
    if split is not None:
        apply_split(split, rank_model)

    # 3. Recompute wraps the blocks as they now run, so that a block's communication is repeated with it.
    for part in rank_model.parts:
        apply_recompute(part, strategy.recompute)
    # 4. Compilation takes in all of the above. What follows works by hooks around blocks, outside the compiled code.
    if strategy.compile:
        for part in rank_model.parts:
            apply_compile(part)
    # 5. Data parallelism, outermost: parameters are sharded as the steps above leave them, or gradients are averaged.
    if world is not None and rank_model.pipeline is not None:
        if mesh.data_parallel * mesh.cp > 1:
            shard_stages(rank_model, strategy, world)
    elif world is not None:
        if mesh.dp_shard * mesh.cp > 1 or (mesh.dp_replicate > 1 and mesh.tp > 1):
            apply_shards(rank_model, strategy, world)
        elif mesh.dp_replicate > 1:
            apply_replicas(rank_model, strategy, world)
    # 6. What is left of the model on this rank gets memory and rank 0's values.
    if weights is not None:
        weights.hand_out(rank_model.model)
    if isinstance(rank_model.synchronisation, Shards):
        rank_model.synchronisation.begin()
    return rank_model
