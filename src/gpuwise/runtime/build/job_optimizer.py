"""The optimizer of a step: the strategy's or the job's, on the device, in host memory or within backward."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from torch import nn
from torch.optim import Optimizer

from gpuwise.job import Job
from gpuwise.runtime.build.offload import HostCopies, HostOptimizer, StreamedBlocks
from gpuwise.runtime.build.optimizers import InBackward, check_fused_sgd, hidden_matrices, make_optimizer
from gpuwise.runtime.build.own_optimizers import NamedOptimizers, named_optimizers
from gpuwise.runtime.build.own_step import check_own_step
from gpuwise.runtime.parallel.experts import separate_meshes
from gpuwise.strategy import Strategy


def optimizer_of(
    job: Job, strategy: Strategy, model: nn.Module, copies: HostCopies | None, streamed: StreamedBlocks | None
) -> Optimizer | NamedOptimizers:
    """The optimizer of the trainable parameters or their copies in host memory. A job's own step may have several, by name."""
    if isinstance(job.optimizer, Mapping):
        check_own_step(job, strategy, model, closure=False)  # before the optimizers are built
        named = named_optimizers(job.optimizer, model)
        for part in named.parts.values():
            check_fused_sgd(part, scaled=strategy.precision == "amp-fp16")
        return named
    choice = strategy.optimizer or job.optimizer
    hidden = hidden_matrices(model) if choice == "muon" else []
    make = partial(
        make_optimizer,
        choice,
        learning_rate=job.learning_rate,
        kernels=strategy.optimizer_kernels,
        hidden=hidden if copies is None else [copies[p] for p in hidden],
        scaled=strategy.precision == "amp-fp16",
    )
    if copies is not None:
        return HostOptimizer(copies, make, streamed)
    trainable = [p for p in model.parameters() if p.requires_grad]
    if strategy.optimizer_in_backward:
        return InBackward(trainable, make)
    optimizer = make(trainable)
    if strategy.mesh.ep > 1:
        separate_meshes(optimizer)
    return optimizer
