"""The optimizer of a step: the strategy's or the job's, on the device, in host memory or within backward."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from torch import nn
from torch.optim import Optimizer

from gpuwise.job import Job
from gpuwise.runtime.build.master_weights import MasterOptimizer, MasterWeights
from gpuwise.runtime.build.offload import HostCopies, HostOptimizer, StreamedBlocks
from gpuwise.runtime.build.optimizers import InBackward, check_fused_sgd, hidden_matrices, make_optimizer
from gpuwise.runtime.build.own_optimizers import NamedOptimizers, named_optimizers
from gpuwise.runtime.build.own_step import check_own_step
from gpuwise.runtime.build.sparse_gradients import has_sparse_gradients, sparse_kernels
from gpuwise.runtime.parallel.experts import separate_meshes
from gpuwise.strategy import Strategy


def optimizer_of(
    job: Job, strategy: Strategy, model: nn.Module, copies: HostCopies | None, streamed: StreamedBlocks | None
) -> Optimizer | NamedOptimizers:
    """The optimizer of the trainable parameters, of their copies in host memory, or of their master weights in fp16.

    A job's own step may have several, by name.
    """
    if isinstance(job.optimizer, Mapping):
        check_own_step(job, strategy, model, closure=False)  # before the optimizers are built
        named = named_optimizers(job.optimizer, model)
        for part in named.parts.values():
            check_fused_sgd(part, scaled=strategy.scales_loss)
        return named
    choice = strategy.optimizer or job.optimizer
    hidden = hidden_matrices(model) if choice == "muon" else []
    kernels = strategy.optimizer_kernels
    if isinstance(choice, str) and has_sparse_gradients(model):
        kernels = sparse_kernels(choice, kernels, job=job.name or "the job")
    masters = MasterWeights(model.parameters()) if strategy.precision == "fp16" else None
    updated = masters if copies is None else copies
    make = partial(
        make_optimizer,
        choice,
        learning_rate=job.learning_rate,
        kernels=kernels,
        hidden=hidden if updated is None else [updated[p] for p in hidden],
        scaled=strategy.scales_loss,
    )
    if copies is not None:
        return HostOptimizer(copies, make, streamed)
    if masters is not None:
        return MasterOptimizer(masters, make)
    trainable = [p for p in model.parameters() if p.requires_grad]
    if strategy.optimizer_in_backward:
        return InBackward(trainable, make)
    optimizer = make(trainable)
    if strategy.mesh.ep > 1:
        separate_meshes(optimizer)
    return optimizer
