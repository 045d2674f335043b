"""JobCache: the traces of a named job on disk."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from gpuwise.api.cache_entries import CacheEntries, CacheNote
from gpuwise.errors import FileFormatError, GpuwiseError
from gpuwise.strategy import Strategy
from gpuwise.trace import TraceFamily, load, save


@dataclass(frozen=True)
class JobFacts:
    """Facts of a job that need no tracing.

    Attributes:
        name: the job's.
        tokens_per_sample: tokens in a sample; 1 if samples are no sequences of tokens.
        samples_per_epoch: samples of its data set; None where unknown.
        own_step, clips, averages: as in gpuwise.strategy.StepFacts. Default False.
    """

    name: str
    tokens_per_sample: int
    samples_per_epoch: int | None
    own_step: bool = False
    clips: bool = False
    averages: bool = False


class JobCache(CacheEntries[JobFacts]):
    """The cached traces of one JOB argument at its sizes."""

    kind = "job"

    def load(self, variant: Strategy, target: str, micro_batch: int | None = None) -> TraceFamily | None:
        """The entry of a variant: its family, or with micro_batch the step recorded at that batch.

        None if there is no entry. Raises the cached error (UnsupportedError, MissingDependencyError), if there is one.
        """

        def family(path: Path) -> TraceFamily:
            loaded = load(path)
            if not isinstance(loaded, TraceFamily) or self.facts is None or loaded.header.job != self.facts.name:
                raise FileFormatError(f"{path} is of another job.")
            if not _same_program(loaded.header.strategy, variant):
                raise FileFormatError(f"{path} is of another strategy.")
            return loaded

        return self.entry((variant.to_dict(), micro_batch), target, family)

    def store(
        self,
        result: TraceFamily | GpuwiseError,
        facts: JobFacts,
        variant: Strategy,
        target: str,
        micro_batch: int | None = None,
    ) -> None:
        """Stores a family, or the error that was raised instead. Stores nothing if the job changed while the process ran."""
        written = result if isinstance(result, GpuwiseError) else partial(save, result)
        self.keep(written, facts, (variant.to_dict(), micro_batch), target)

    def facts_of(self, note: CacheNote) -> JobFacts:
        facts = JobFacts(**note)
        counts = [facts.tokens_per_sample, facts.samples_per_epoch or 1]
        switches = [facts.own_step, facts.clips, facts.averages]
        sound = isinstance(facts.name, str) and all(isinstance(switch, bool) for switch in switches)
        if not sound or not all(type(n) is int and n > 0 for n in counts):
            raise ValueError("a field has the wrong type")
        return facts

    def note_of(self, facts: JobFacts) -> dict[str, object]:
        return asdict(facts)


def _same_program(recorded: Strategy, requested: Strategy) -> bool:
    fields = ("recorded_precision", "recompute", "mode", "channels_last")
    return all(getattr(recorded, name) == getattr(requested, name) for name in fields)
