"""Searched: the best strategy on each hardware, from which `choose` ranks plans for any budget, deadline and amount."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from gpuwise.hardware.prices import UsualPrices
from gpuwise.hardware.types import Chip, Offer
from gpuwise.notes import Note
from gpuwise.plan.best import Best, BestStrategies
from gpuwise.plan.buying.candidates import Candidate, Key
from gpuwise.plan.cpu.choice import CpuChoice
from gpuwise.plan.economics.owned import OwnedRate
from gpuwise.plan.estimate import Estimate
from gpuwise.plan.fit.change import FittingChange
from gpuwise.plan.types import Plan
from gpuwise.trace.header import Header


@dataclass(frozen=True)
class Searched:
    """The best strategy on each hardware. Budget, deadline and objective do not enter.

    The amount enters only where the user sets no global batch, and where this machine's CPU may compile the step.

    Attributes:
        header: of the job's trace.
        considered: every offer and machine: a Candidate, or (offer, reason) if it is rejected before pricing.
        best: the best strategy, or why there is none, by Candidate.key.
        strategies: the search behind them.
        assumed_batch: samples of a step if that is a default; None if the user sets it. Plans with another have a note on it.
        assumption_notes: guesses shared by all plans.
        market: what a device-hour usually costs.
        choices: settings chosen for this machine's CPU.
        incomplete: offers without a price, in words.
        remembered: options that `choose` has made, by the amount and the identity of the candidate.
        priced: what `choose` remembers beside, by the amount; not of a copy.
    """

    header: Header
    considered: Sequence[Candidate | tuple[Offer, Note]]
    best: Best
    strategies: BestStrategies
    assumed_batch: int | None
    assumption_notes: tuple[Note, ...]
    market: UsualPrices
    choices: Mapping[Key, CpuChoice]
    incomplete: Sequence[str]
    remembered: dict[tuple[int, int], object] = field(default_factory=dict, compare=False, repr=False)
    priced: dict[int, object] = field(default_factory=dict, init=False, compare=False, repr=False)

    @cached_property
    def by_key(self) -> dict[Key, Candidate]:
        """A candidate of each hardware."""
        return {item.key: item for item in self.considered if isinstance(item, Candidate)}

    @property
    def runs_somewhere(self) -> bool:
        """Whether any hardware has a strategy."""
        return any(isinstance(estimate, Estimate) for estimate in self.best.values())

    @cached_property
    def chips(self) -> dict[str, Chip]:
        """The chips of all candidates by id."""
        return {item.chip.id: item.chip for item in self.by_key.values()}

    @cached_property
    def rates(self) -> dict[Offer, OwnedRate]:
        """What an hour of each machine of the user's costs."""
        return {item.offer: item.rate for item in self.considered if isinstance(item, Candidate) and item.rate is not None}

    @cached_property
    def _key_of(self) -> dict[tuple[int, int], Key]:
        """Keys by the identity of the offer, whose hash is slow, and the number of machines."""
        items = (item for item in self.considered if isinstance(item, Candidate))
        return {(id(item.offer), item.cluster.machines): item.key for item in items}

    def unsettled(self, plans: Sequence[Plan]) -> list[Key]:
        """The hardware of plans whose estimates are not exact yet."""
        keys = dict.fromkeys(self._key_of[id(plan.offer), plan.machines] for plan in plans)
        return [key for key in keys if isinstance(estimate := self.best[key], Estimate) and not estimate.settled]

    def verified(self, keys: Sequence[Key]) -> Searched:
        """A copy with exact estimates of these keys, each of which has one."""
        exact = {}
        for key in keys:
            estimate = self.best[key]
            assert isinstance(estimate, Estimate)
            exact[key] = self.strategies.exact(self.by_key[key], estimate)
        return replace(self, best={**self.best, **exact})

    def led_on(self, plan: Plan) -> Searched:
        """A copy in which a composed strategy, of a plan that is exact, is replaced by a faster one that it leads on to; itself
        without one."""
        key = self._key_of[id(plan.offer), plan.machines]
        estimate = self.best[key]
        assert isinstance(estimate, Estimate)
        reached = self.strategies.led_on(self.by_key[key], estimate)
        return self if reached is estimate else replace(self, best={**self.best, key: reached})

    def what_fits(self) -> tuple[Candidate, FittingChange] | None:
        """As for BestStrategies.what_fits."""
        return self.strategies.what_fits(self.by_key, self.best)
