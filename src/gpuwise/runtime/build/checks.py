"""Checks of a job and a strategy before their program is built."""

from __future__ import annotations

import torch
from torch import nn

from gpuwise.errors import JobError, UnsupportedError
from gpuwise.job import Job
from gpuwise.runtime.build.device_checks import check_device
from gpuwise.runtime.devices import backend_of
from gpuwise.runtime.parallel.world import World, check_world
from gpuwise.strategy import Strategy, check_techniques


def check_strategy(job: Job, strategy: Strategy, device: torch.device, world: World | None) -> None:
    """Raises the error of what cannot be built: the mesh of another world, techniques that exclude each other, the device."""
    check_world(strategy.mesh, world)
    checked = strategy
    if world is not None and strategy.optimizer is None and isinstance(job.optimizer, str):
        checked = strategy.but(optimizer=job.optimizer)  # sharding excludes some, the job's own included
    check_techniques(checked, job.step_facts(on_cpu=backend_of(device).is_host, priced=False))
    check_device(job, strategy, device)


def check_program(job: Job, strategy: Strategy, model: nn.Module) -> None:
    """Raises JobError or UnsupportedError for a job that cannot run in this mode."""
    if strategy.mode == "train" and not any(p.requires_grad for p in model.parameters()):
        raise JobError(
            f"{job.name or 'the model'} has no parameter that requires a gradient.",
            ["set requires_grad on what should be trained", "use --mode infer"],
        )
    if strategy.mode != "train" and job.loss is None and job.forward is None:
        raise UnsupportedError(
            f"{job.name or 'the job'} has its own step and no forward pass.",
            ["forward=lambda model, batch: model(batch) in the Job, beside its step"],
        )
