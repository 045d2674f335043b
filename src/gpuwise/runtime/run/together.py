"""StepTogether: what ranks exchange within each step, for the Stepper."""

from __future__ import annotations

import time
from typing import cast

import torch
from torch import Tensor

from gpuwise.json_types import Json
from gpuwise.runtime.build.named_loss import LossParts
from gpuwise.runtime.ranks import Ranks
from gpuwise.runtime.ranks.word import StepWord
from gpuwise.runtime.run.decisions import AgreedDecisions
from gpuwise.runtime.run.update_guard import NonFiniteCause

NO_WORD = torch.empty(0)
CAUSE_S = 60.0  # for the causes that all ranks name


class StepTogether:
    """The loss of all ranks, and what they decide on.

    Attributes:
        decisions: hear the word of each step.
    """

    def __init__(self, ranks: Ranks, word: StepWord, decisions: AgreedDecisions):
        self.decisions = decisions
        self._ranks, self._word = ranks, word

    def reduce(self, step: int, loss: Tensor, parts: LossParts) -> tuple[Tensor, Tensor, LossParts]:
        """The loss, the word and the named parts of all ranks, on the device of the loss."""
        own = self.decisions.word(step, time.perf_counter())
        numbers, parts = self._word.reduce(loss, parts, own)
        return numbers[0], numbers[1:], parts

    def first_cause(self, step: int, cause: NonFiniteCause | None) -> NonFiniteCause | None:
        """The cause of a loss or gradients that are not finite, from the first rank that knows one; every rank asks for it."""
        own: Json = None if cause is None else [cause.text, list(cause.ways_out), cause.of_data]
        for rank, values in enumerate(self._ranks.gathered(f"cause/{step}", own, within_s=CAUSE_S)):
            if values is not None:
                text, ways_out, of_data = cast("tuple[str, list[str], bool]", values)
                where = f"rank {rank} on {self._ranks.hosts[rank]}: " if of_data else ""
                return NonFiniteCause(f"{where}{text}", tuple(ways_out), bool(of_data))
        return None
