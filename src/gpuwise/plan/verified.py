"""Verified: what exact forecasts changed of what was composed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuwise.plan.compose.verify import Finals


@dataclass(frozen=True)
class Verified:
    """What the exact forecasts of finalists changed.

    Attributes:
        clusters: clusters whose fastest composed strategies were forecast exactly.
        strategies: strategies that were.
        largest_time_change: seconds of a step over the composed ones, less 1, where that is farthest from 0; None without any.
        largest_memory_change: bytes of a device, likewise.
        reordered: clusters on which another strategy than the composed first is the fastest.
        dropped: strategies that do not fit after all, or cannot be traced.
    """

    clusters: int
    strategies: int
    largest_time_change: float | None
    largest_memory_change: float | None
    reordered: int
    dropped: int

    @classmethod
    def of(cls, finals: Iterable[Finals]) -> Verified:
        """The sum of many clusters."""
        every = list(finals)
        finalists = [finalist for each in every for finalist in each.finalists]
        dropped = sum(len(each.dropped) for each in every)
        return cls(
            len(every),
            len(finalists) + dropped,
            max((finalist.time_change for finalist in finalists), key=abs, default=None),
            max((finalist.memory_change for finalist in finalists), key=abs, default=None),
            sum(not each.finalists or each.finalists[0].rank != 0 for each in every),
            dropped,
        )

    def to_dict(self) -> dict[str, object]:
        """The JSON contract of `gpuwise plan --json`, `verified`."""
        return {
            "clusters": self.clusters,
            "strategies": self.strategies,
            "largest_time_change": self.largest_time_change,
            "largest_memory_change": self.largest_memory_change,
            "reordered": self.reordered,
            "dropped": self.dropped,
        }
