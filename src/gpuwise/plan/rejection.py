"""Rejection: how many offers a plan leaves out for one reason."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuwise.notes import Note


@dataclass(frozen=True)
class Rejection:
    """The number of offers rejected for one reason, with the nearest ones as examples."""

    count: int
    examples: tuple[str, ...] = ()
    reason: Note = field(kw_only=True)

    def to_dict(self) -> dict[str, object]:
        """The JSON contract of `gpuwise plan --json`, one entry of `rejection_notes`."""
        return {**self.reason.to_dict(), "count": self.count, "examples": list(self.examples)}
