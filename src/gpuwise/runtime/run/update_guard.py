"""The update of a step, made unless its loss or its gradients are not finite; what forward wrote goes back with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gpuwise.runtime.build.buffers import SavedBuffers
from gpuwise.runtime.build.program import Program
from gpuwise.runtime.health import bad_input

_OF_DATA = ("leave such samples out of the data, or fill them: torch.nan_to_num", "--on-nonfinite skip leaves the step out")
_ANOMALY = "torch.autograd.set_detect_anomaly(True) in the job, which names the operation"


class NonFiniteCause(NamedTuple):
    """The cause of a non-finite step.

    Attributes:
        text: a clause for the message.
        ways_out: remedies, as in errors.
        of_data: whether the batch contains NaN, against which no loss scale helps.
    """

    text: str
    ways_out: tuple[str, ...]
    of_data: bool = False


class UpdateGuard:
    """Makes the updates of a program. Call `before` first, then `update` or `update_unseen` with the loss.

    A skipped update, by `skips` or by a loss scaler at a non-finite loss, restores the buffers that forward wrote (batch
    norm's statistics). A step in which only the scaled gradients overflow keeps them, as in plain PyTorch, because its
    forward was finite.
    """

    def __init__(self, program: Program, *, skips: bool):
        self.program, self.skips = program, skips
        self._scales = program.scaler.is_enabled()
        self._buffers = SavedBuffers(program.model) if skips or self._scales else None

    def before(self) -> None:
        if self._buffers is not None:
            self._buffers.save()

    def update(self, loss: float, micro_batches: Sequence[object]) -> tuple[float, NonFiniteCause | None]:
        """The update of a step whose loss is known. Returns the loss, NaN where its gradients are not finite, and why.

        A loss scaler that is too large is noticed, and lowered, by the update itself.
        """
        finite = math.isfinite(loss)
        if self._scales:
            self.program.update()
        elif finite and self._gradients_are_sound() and self.program.update(checks_norm=True):
            return loss, None
        else:
            self.program.zero_grad()
        if self._buffers is not None and not (self._scales and finite):
            self._buffers.restore()
        if not finite:
            return loss, _of_data(loss, micro_batches)
        if self._scales:
            return loss, None
        return math.nan, NonFiniteCause(
            f"the gradients are not finite, though the loss is {loss:.6g},",
            (_ANOMALY, "a lower learning rate in the Job" if self.skips else _OF_DATA[1]),
        )

    def update_unseen(self, loss: Tensor) -> Tensor:
        """The same without waiting for the loss: the update is made, whatever it is. Returns the loss, NaN where the norm of
        the gradients is known and not finite, still on its device."""
        self.program.update()
        if self._buffers is not None:
            self._buffers.restore_where(~loss.isfinite())
        norm = self.program.gradient_norm
        return loss if norm is None or self._scales else torch.where(norm.to(loss.device).isfinite(), loss, math.nan)

    def _gradients_are_sound(self) -> bool:
        """Where gradients are clipped, the update looks at their norm itself."""
        return not self.skips or self.program.job.clip_norm is not None or self.program.gradients_are_finite()


def _of_data(loss: float, micro_batches: Sequence[object]) -> NonFiniteCause | None:
    text = bad_input(micro_batches)
    if text is None:
        return None
    is_nan = " NaN " in text
    return NonFiniteCause(
        f"{text}, so the loss is {loss}" if is_nan else f"{text}, and the loss is {loss}", _OF_DATA, of_data=is_nan
    )
