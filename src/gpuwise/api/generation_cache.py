"""GenerationCache: how a named job generates, on disk."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwise.api.cache_entries import RECORDING, CacheEntries, CacheNote
from gpuwise.errors import FileFormatError
from gpuwise.notes import Note
from gpuwise.serving.generation import Generation
from gpuwise.serving.generation_file import load_generation, save_generation

if TYPE_CHECKING:
    from gpuwise.job import Job


@dataclass(frozen=True)
class ServedFacts:
    """Facts of a job that plans of serving need.

    Attributes:
        name: the job's.
        writes_text: whether it generates; else a request is one forward pass.
        context_length: most tokens of a sequence; None without a limit.
        assumption_notes: guesses of the job, each with the flag that changes it.
    """

    name: str
    writes_text: bool
    context_length: int | None
    assumption_notes: tuple[Note, ...] = ()

    @classmethod
    def of(cls, job: Job) -> ServedFacts:
        """The facts of a job."""
        kept = tuple(note for note in job.assumptions if isinstance(note, Note))
        return cls(job.name, job.generate is not None, job.context_length, kept)


class GenerationCache(CacheEntries[ServedFacts]):
    """The cached generations of one JOB argument at its sizes."""

    kind = "generation"
    recording = (*RECORDING, "serving")

    def load(self, target: str, precision: str) -> Generation | None:
        """How the job generates on one kind of device; None if there is no entry."""

        def generation(path: Path) -> Generation:
            loaded = load_generation(path)
            header = loaded.tokens.header
            if self.facts is None or header.job != self.facts.name:
                raise FileFormatError(f"{path} is of another job.")
            if (header.target, header.strategy.precision) != (target, precision):
                raise FileFormatError(f"{path} is of another kind of device, or in another precision.")
            return loaded

        return self.entry((precision,), target, generation)

    def store(self, generation: Generation, facts: ServedFacts, target: str, precision: str) -> None:
        """Stores how the job generates. Stores nothing if the job changed while the process ran."""
        self.keep(partial(save_generation, generation), facts, (precision,), target)

    def facts_of(self, note: CacheNote) -> ServedFacts:
        facts = ServedFacts(**{**note, "assumption_notes": tuple(map(Note.from_dict, note["assumption_notes"]))})
        longest = facts.context_length
        if not isinstance(facts.name, str) or not isinstance(facts.writes_text, bool):
            raise ValueError("a field has the wrong type")
        if longest is not None and (type(longest) is not int or longest < 1):
            raise ValueError("a field has the wrong type")
        return facts

    def note_of(self, facts: ServedFacts) -> dict[str, object]:
        return {**asdict(facts), "assumption_notes": [note.to_dict() for note in facts.assumption_notes]}
