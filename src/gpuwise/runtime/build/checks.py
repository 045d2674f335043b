"""Checks that a job defines all parts that a mode needs."""

from __future__ import annotations

from torch import nn

from gpuwise.errors import JobError, UnsupportedError
from gpuwise.job import Job
from gpuwise.strategy import Strategy


def check_program(job: Job, strategy: Strategy, model: nn.Module) -> None:
    """Raises JobError or UnsupportedError for a job that cannot run in this mode."""
    if strategy.mode == "train" and not any(p.requires_grad for p in model.parameters()):
        raise JobError(
            f"{job.name or 'the model'} has no parameter that requires a gradient.",
            ["set requires_grad on what should be trained", "use --mode infer"],
        )
    if strategy.mode != "train" and job.loss is None:
        raise UnsupportedError(
            f"{job.name or 'the job'} has its own step and no loss, so a forward pass is not known.",
            ["loss=lambda model, batch: ... in the Job, beside its step"],
        )
