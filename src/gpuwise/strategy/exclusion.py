"""Rows of the table of techniques that exclude each other (gpuwise.strategy.legal), and what they are decided by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpuwise.errors import GpuwiseError, InputError
from gpuwise.strategy.strategy import Strategy


@dataclass(frozen=True)
class StepFacts:
    """The known facts of a job and its device. An unknown fact never leads to a refusal.

    Attributes:
        job: the job's name, as errors call it. Default "the job".
        on_cpu: whether the device is a CPU. Default False.
        own_step: whether the job updates inside a step of its own, or an optimizer that evaluates the loss. Default False.
        closure: whether it is such an optimizer, which needs a closure. Default False.
        clips: whether gradients are clipped by their common norm (Job.clip_norm). Default False.
        averages: whether an average of the parameters is kept (Job.ema_decay). Default False.
        skips: whether a step whose loss is not finite is to be skipped (--on-nonfinite skip). Default False.
        scalar_parameter: whether a trained parameter is a single number, which a recorded step shows. Default False.
        priced: whether the step is to be forecast. Training runs some techniques that no forecast prices so far. Default True.
    """

    job: str = "the job"
    on_cpu: bool = False
    own_step: bool = False
    closure: bool = False
    clips: bool = False
    averages: bool = False
    skips: bool = False
    scalar_parameter: bool = False
    priced: bool = True


@dataclass(frozen=True)
class Exclusion:
    """One row of the table.

    Attributes:
        applies: whether a strategy, with what is known of its step, has both techniques.
        reason: why they exclude each other; may name {job}, {own}, {where} and others of `_text`.
        ways_out: up to two settings that resolve it.
        error: what is raised. InputError (the default) for what makes no sense, UnsupportedError for what is not done so far.
        forward: whether it holds for a forward pass, too. Default False.
    """

    applies: Callable[[Strategy, StepFacts], bool]
    reason: str
    ways_out: tuple[str, ...]
    error: type[GpuwiseError] = InputError
    forward: bool = False
