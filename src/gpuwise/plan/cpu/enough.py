"""Whether a CPU is enough for a job, with the figures that say so. docs/cpu-enough.md states the rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpuwise.notes import Note, to_dicts
from gpuwise.notes.note import Figure

ENOUGH, UNCERTAIN, NOT_ENOUGH = "enough", "uncertain", "not-enough"


@dataclass(frozen=True)
class CpuEnough:
    """A verdict on a CPU.

    Attributes:
        verdict: ENOUGH, UNCERTAIN or NOT_ENOUGH.
        notes: the verdict as a sentence, then why, and what would be needed.
    """

    verdict: str
    notes: tuple[Note, ...]

    @property
    def text(self) -> str:
        """The verdict as a sentence."""
        return self.notes[0].text

    @property
    def figures(self) -> Mapping[str, Figure]:
        """The figures of all notes, by name in their units."""
        return {name: value for note in reversed(self.notes) for name, value in note.figures.items()}

    def to_dict(self) -> dict[str, object]:
        """The JSON contract of `cpu_enough`."""
        return {
            "verdict": self.verdict,
            "text": self.text,
            "figures": dict(self.figures),
            "notes": to_dicts(self.notes),
        }
