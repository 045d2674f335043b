"""StepTogether: what ranks exchange within each step, for the Stepper."""

from __future__ import annotations

import time
from typing import cast

import torch
from torch import Tensor

from gpuwise.json_types import Json
from gpuwise.runtime.build.named_loss import LossParts, mean_loss, mean_parts
from gpuwise.runtime.ranks import Ranks
from gpuwise.runtime.ranks.word import StepWord, Word
from gpuwise.runtime.run.decisions import AgreedDecisions
from gpuwise.runtime.run.update_guard import NonFiniteCause

NO_WORD = torch.empty(0)
CAUSE_S = 60.0  # for the causes that all ranks name


class StepTogether:
    """The loss of all ranks, and what they decide on.

    The exchange of a step begins when the last micro-batch's loss is known and ends after its backward pass, which hides it.
    It begins after the gradients where a program does not show its losses: a pipeline, a job's own step.

    Arguments:
        accumulation: micro-batches of a step.

    Attributes:
        decisions: hear the word of each step.
    """

    def __init__(self, ranks: Ranks, word: StepWord, decisions: AgreedDecisions, *, accumulation: int):
        self.decisions = decisions
        self._ranks, self._word, self._accumulation = ranks, word, accumulation
        self._step = 0
        self._losses: list[Tensor] = []
        self._parts: list[LossParts] = []

    def begin(self, step: int) -> None:
        self._step = step
        self._losses, self._parts = [], []

    def add_loss(self, loss: Tensor, parts: LossParts) -> None:
        """Adds the loss of a micro-batch, before its backward pass."""
        self._losses.append(loss)
        if parts:
            self._parts.append(parts)
        if len(self._losses) == self._accumulation:
            self._start(mean_loss(self._losses), mean_parts(self._parts) if self._parts else {})

    def read(self, loss: Tensor, parts: LossParts) -> tuple[Tensor, Tensor, LossParts]:
        """The loss, the word and the named parts of all ranks, on the device of the loss.

        Arguments:
            loss, parts: of this rank's step.
        """
        self._ensure_started(loss, parts)
        return self._word.read()

    def as_numbers(self, loss: Tensor, parts: LossParts) -> tuple[float, Word, dict[str, float]]:
        """The same as numbers, which the host waits for."""
        self._ensure_started(loss, parts)
        return self._word.as_numbers()

    def _ensure_started(self, loss: Tensor, parts: LossParts) -> None:
        if not self._word.started:
            self._start(loss, parts)

    def _start(self, loss: Tensor, parts: LossParts) -> None:
        self._word.start(loss, parts, self.decisions.word(self._step, time.perf_counter()))

    def first_cause(self, step: int, cause: NonFiniteCause | None) -> NonFiniteCause | None:
        """The cause of a loss or gradients that are not finite, from the first rank that knows one; every rank asks for it."""
        own: Json = None if cause is None else [cause.text, list(cause.ways_out), cause.of_data]
        for rank, values in enumerate(self._ranks.gathered(f"cause/{step}", own, within_s=CAUSE_S)):
            if values is not None:
                text, ways_out, of_data = cast("tuple[str, list[str], bool]", values)
                where = f"rank {rank} on {self._ranks.hosts[rank]}: " if of_data else ""
                return NonFiniteCause(f"{where}{text}", tuple(ways_out), bool(of_data))
        return None
