"""ServedJob: a job as plans of serving need it. PyTorch and the job's code run only where a recording is missing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from gpuwise.api.generation_cache import GenerationCache, ServedFacts
from gpuwise.api.sources import job_of
from gpuwise.notes import Note
from gpuwise.serving.preset_generations import load_preset_generation
from gpuwise.trace.presets.table import PRESETS

if TYPE_CHECKING:
    from gpuwise.job import Job
    from gpuwise.serving.generation import Generation


@dataclass(frozen=True)
class ServedJob:
    """A job to serve.

    Attributes:
        facts: that need no recording.
        live: makes the job itself.
        generation: how it generates, by target and precision. Raises JobError where it cannot.
    """

    facts: ServedFacts
    live: Callable[[], Job]
    generation: Callable[[str, str], Generation]

    @property
    def name(self) -> str:
        return self.facts.name

    @property
    def context_length(self) -> int | None:
        """Most tokens of a sequence; None without a limit."""
        return self.facts.context_length

    @property
    def assumption_notes(self) -> tuple[Note, ...]:
        return self.facts.assumption_notes


def served_job(job: str | Job, *, seq_len: int | None = None, image_size: int | None = None) -> ServedJob:
    """The job to serve. Arguments and errors as for gpuwise.api.sources.job_of.

    How presets generate ships with gpuwise, and what is recorded of other named jobs is cached on disk.
    """
    sizes = {name: size for name, size in (("seq_len", seq_len), ("image_size", image_size)) if size is not None}
    if not isinstance(job, str):
        return served(job_of(job, **sizes))
    return _preset(job, sizes) if job in PRESETS else _named(job, sizes)


def served(job: Job) -> ServedJob:
    """A Job object to serve. What is recorded of it is not cached, because changes of its code cannot be detected."""
    return ServedJob(ServedFacts.of(job), lambda: job, lambda target, precision: _record(job, target, precision))


def _preset(name: str, sizes: dict[str, int]) -> ServedJob:
    info = PRESETS[name]

    def live() -> Job:
        return job_of(name, **sizes)

    def generation(target: str, precision: str) -> Generation:
        shipped = load_preset_generation(name, target=target, precision=precision)
        return _record(live(), target, precision) if shipped is None else shipped

    return ServedJob(ServedFacts(name, info.writes_text, info.context_length or info.max_seq_len), live, generation)


def _named(argument: str, sizes: dict[str, int]) -> ServedJob:
    entries = GenerationCache.of(argument, sizes)

    @cache
    def live() -> Job:
        with entries.reading() if entries else nullcontext():
            return job_of(argument, **sizes)

    facts = entries.facts if entries else None
    if facts is None:
        facts = ServedFacts.of(live())
        if entries:
            entries.keep_facts(facts)

    def generation(target: str, precision: str) -> Generation:
        kept = entries.load(target, precision) if entries else None
        if kept is not None:
            return kept
        job = live()
        with entries.reading() if entries else nullcontext():
            recorded = _record(job, target, precision)
        if entries:
            entries.store(recorded, facts, target, precision)
        return recorded

    return ServedJob(facts, live, generation)


def _record(job: Job, target: str, precision: str) -> Generation:
    from gpuwise.tracing.generation import record_generation

    return record_generation(job, precision=precision, target=target, longest=job.context_length)
