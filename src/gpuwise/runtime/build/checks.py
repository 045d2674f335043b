"""Which techniques a step cannot combine, with each other, with a device or with what the job asks for."""

from __future__ import annotations

import torch
from torch import nn

from gpuwise.errors import InputError, JobError, UnsupportedError
from gpuwise.job import Job
from gpuwise.runtime.build.offload import refuse_host
from gpuwise.strategy import Strategy


def check_program(job: Job, strategy: Strategy, device: torch.device, model: nn.Module) -> None:
    """Raises JobError or UnsupportedError for a job that gives nothing to run in this mode, InputError for techniques that
    exclude each other."""
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
    _check_techniques(strategy, device)
    _check_update(job, strategy)


def _check_techniques(strategy: Strategy, device: torch.device) -> None:
    """Raises InputError for techniques that exclude each other, or that this device or mode has no use for."""
    if strategy.offload != "none":
        refuse_host(device)
    if strategy.mode != "train":
        return
    frees = strategy.optimizer_in_backward or strategy.offload != "none"
    if strategy.optimizer_in_backward and strategy.precision == "amp-fp16":
        raise InputError(
            "an optimizer in backward cannot scale fp16 gradients: whether to skip a step is known only once "
            "all of them are there.",
            ["--precision amp-bf16", "leave out --optimizer-in-backward"],
        )
    if strategy.optimizer_in_backward and strategy.offload != "none":
        raise InputError(
            "offload frees each gradient as soon as it is there, so an optimizer in backward adds nothing.",
            ["leave out --optimizer-in-backward", "--offload none"],
        )
    if strategy.keep_gradients and frees:
        raise InputError("gradients cannot be kept where each is freed as soon as it was used.", ["leave out --keep-gradients"])


def _check_update(job: Job, strategy: Strategy) -> None:
    """Raises InputError where the job asks something of the update that the strategy's way to update cannot do."""
    if job.clip_norm is not None and strategy.optimizer_in_backward:
        raise InputError(
            "gradients cannot be clipped together where each is used and freed as it comes.",
            ["leave out --optimizer-in-backward", "a Job without clip_norm"],
        )
    if job.ema_decay is not None and strategy.offload == "parameters":
        raise InputError(
            "the average of the parameters stays on the device, which offloaded parameters are to leave.",
            ["--offload optimizer", "a Job without ema_decay"],
        )
