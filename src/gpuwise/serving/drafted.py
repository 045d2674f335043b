"""Drafted: what a row says of speculative decoding."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Drafted:
    """An instance that drafts and checks.

    Attributes:
        draft: name of the draft's job, or "ngram".
        draft_tokens: tokens drafted in each iteration.
        acceptance: probability that one is accepted after those before it.
        tokens_an_iteration: mean tokens that an iteration gives a sequence.
        pays_up_to: most sequences at which a token takes less time than without the draft, with caches of the mean length; 0
            where it never does.
        draft_weight_bytes: of the draft on one device.
    """

    draft: str
    draft_tokens: int
    acceptance: float
    tokens_an_iteration: float
    pays_up_to: int
    draft_weight_bytes: int

    @property
    def words(self) -> str:
        """A sentence for the report."""
        drafted = f"{self.draft} drafts {self.draft_tokens:,}, {self.tokens_an_iteration:.3g} tokens an iteration"
        if not self.pays_up_to:
            return f"{drafted}: slower than without it, even for one sequence"
        return f"{drafted}: faster than without it up to {self.pays_up_to:,} sequences at once"
