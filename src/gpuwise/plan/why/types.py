"""PlanWhy: the answer to `gpuwise plan --why`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuwise.notes import Note, sentences, to_dicts


@dataclass(frozen=True)
class Neighbour:
    """The next cheaper or the next faster plan.

    Attributes:
        what: the plan in words.
        hours, usd: its expected time and cost.
        more_hours, more_usd: beyond the explained plan's; negative for less.
        inside: whether it keeps the limits as expected.
    """

    what: str
    hours: float
    usd: float
    more_hours: float
    more_usd: float
    inside: bool

    def to_dict(self) -> dict[str, object]:
        return {
            "what": self.what,
            "hours": self.hours,
            "usd": self.usd,
            "more_hours": self.more_hours,
            "more_usd": self.more_usd,
            "inside": self.inside,
        }


@dataclass(frozen=True)
class JobChange:
    """One change of the job, planned again on the same machines.

    Attributes:
        name: the change in words: "sequence length 4,096".
        flags: the flags that make it.
        hours, usd: expected time and cost of the run with it; None where it cannot be planned.
        hours_ratio: hours over those of the plan as it is; None likewise.
        changes_training: whether the trained parameters or the convergence differ.
        problem: why it cannot be planned; "" where it can.
    """

    name: str
    flags: str
    hours: float | None = None
    usd: float | None = None
    hours_ratio: float | None = None
    changes_training: bool = True
    problem: str = ""

    def to_dict(self) -> dict[str, object]:
        return {
            "name": self.name,
            "flags": self.flags,
            "hours": self.hours,
            "usd": self.usd,
            "hours_ratio": self.hours_ratio,
            "changes_training": self.changes_training,
            "problem": self.problem or None,
        }


@dataclass(frozen=True)
class PlanWhy:
    """Why a plan stands where it stands.

    Attributes:
        name: as the user named it; "1" for the winner.
        what: the plan in words; the devices for one that cannot train the job.
        rank: rank in the table; None outside of it.
        fell_notes: why it is not the first; none for the first.
        shares: shares of the step by what bounds it: compute, memory, launch, communication, input, pipeline.
        bound: a sentence on the largest share and its remedy.
        next_cheaper: of the cheaper plans the fastest; None without one.
        next_faster: of the faster plans the cheapest; None without one.
        changes: changes of the job, the largest effect first.
    """

    name: str
    what: str
    rank: int | None = None
    fell_notes: tuple[Note, ...] = ()
    shares: Mapping[str, float] = field(default_factory=dict)
    bound: str = ""
    next_cheaper: Neighbour | None = None
    next_faster: Neighbour | None = None
    changes: tuple[JobChange, ...] = ()

    @property
    def fell(self) -> tuple[str, ...]:
        """The reasons why it is not the first, as sentences."""
        return sentences(self.fell_notes)

    @property
    def most(self) -> JobChange | None:
        """The change that shortens the run most; None where none does by a hundredth."""
        first = self.changes[0] if self.changes else None
        return first if first is not None and first.hours_ratio is not None and first.hours_ratio < 0.99 else None

    def to_dict(self) -> dict[str, object]:
        """The JSON contract of `gpuwise plan --json`, one entry of `why`."""
        return {
            "name": self.name,
            "what": self.what,
            "rank": self.rank,
            "fell": list(self.fell),
            "fell_notes": to_dicts(self.fell_notes),
            "shares": dict(self.shares),
            "bound": self.bound,
            "next_cheaper": None if self.next_cheaper is None else self.next_cheaper.to_dict(),
            "next_faster": None if self.next_faster is None else self.next_faster.to_dict(),
            "changes": [change.to_dict() for change in self.changes],
            "most": None if self.most is None else self.most.to_dict(),
        }
