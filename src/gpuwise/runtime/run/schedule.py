"""The learning-rate schedule of a run: a factor of the optimizer's own learning rate for each step."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from gpuwise.errors import JobError
from gpuwise.job import Job
from gpuwise.runtime.build.own_optimizers import NamedOptimizers

COSINE_END = 0.1  # of the learning rate, as in Brown et al., "Language Models are Few-Shot Learners" (2020), appendix B
# Share of the steps that decay, and how: Hägele et al., "Scaling Laws and Compute-Optimal Training Beyond Fixed Training
# Durations" (2024), after Hu et al., "MiniCPM" (2024), who named warmup-stable-decay.
WSD_DECAY = 0.2

Factor = Callable[[int], float]
Shape = Callable[[int, int], float]  # (step after the warm-up, steps after it) -> factor


def factor_of(job: Job, steps: int) -> Factor:
    """The factor of the learning rate as a function of the step (from 0), in a run of `steps` optimizer steps.

    Each schedule begins with a linear warm-up from near 0 over `warmup_steps`:
        - constant
        - cosine: half a wave down to a tenth
        - linear: a line down to 0
        - wsd: constant, then 1 - sqrt(progress) down to 0 over the last fifth
    """
    warmup, schedule = job.warmup_steps, job.schedule
    shape = _SHAPES[schedule] if isinstance(schedule, str) else _checked(schedule)
    after = max(1, steps - warmup)

    def factor(step: int) -> float:
        return (step + 1) / warmup if step < warmup else shape(step - warmup, after)

    return factor


class LearningRate:
    """Sets the learning rate of each parameter group to its initial rate times a common factor.

    Construct it before a saved state is loaded into the optimizer, which replaces the initial rates.
    """

    def __init__(self, optimizer: torch.optim.Optimizer | NamedOptimizers, factor: Factor):
        self._optimizer, self._factor = optimizer, factor
        self._own = [float(group["lr"]) for group in optimizer.param_groups]
        self._last: float | None = None
        self.value = self._own[0]

    def set(self, step: int) -> None:
        """Sets the learning rate of optimizer step `step`, counted from 0."""
        factor = self._factor(step)
        if factor == self._last:
            return
        self._last = factor
        for group, own in zip(self._optimizer.param_groups, self._own, strict=True):
            if isinstance(group["lr"], torch.Tensor):  # compiled updates hold it so, not to be compiled anew
                group["lr"].fill_(own * factor)
            else:
                group["lr"] = own * factor
        self.value = self._own[0] * factor


def _constant(step: int, steps: int) -> float:
    return 1.0


def _cosine(step: int, steps: int) -> float:
    return COSINE_END + (1 - COSINE_END) * 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))


def _linear(step: int, steps: int) -> float:
    return max(0.0, 1 - step / steps)


def _wsd(step: int, steps: int) -> float:
    begins = steps - round(steps * WSD_DECAY)
    return 1.0 if step < begins else 1 - math.sqrt(min(1.0, (step - begins) / max(1, steps - begins)))


_SHAPES = {"constant": _constant, "cosine": _cosine, "linear": _linear, "wsd": _wsd}


def _checked(own: Shape) -> Shape:
    """The job's own function with a check of its results."""

    def shape(step: int, steps: int) -> float:
        factor = own(step, steps)
        if not isinstance(factor, int | float) or not 0 <= factor < math.inf:
            raise JobError(
                f"the job's schedule gave {factor!r} at step {step}; a factor from 0 on was expected.",
                ["return a number such as 1.0 or 0.5"],
            )
        return float(factor)

    return shape
