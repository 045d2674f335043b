"""StepSource: the traces of one job."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

from gpuwise.errors import UnsupportedError
from gpuwise.notes import Note
from gpuwise.notes.job import OF_TRAINING, forward_alone
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.strategy import StepFacts, Strategy
from gpuwise.trace import Header, Trace, TraceFamily
from gpuwise.trace.parallel.ranks import RankStep


class StepSource(ABC):
    """The traces of one job. A call with a Strategy returns the family of its variant.

    A source records or reads traces; other optimizer updates are composed from them. Families are cached in memory.

    Attributes:
        name: name of the job.
        argument: the JOB argument; "" for a Job object.
        sizes: seq_len and image_size, if the user set them.
        samples_per_epoch: samples in the data set; None (default) where unknown.
        takes_seq_len: whether the job can be made at another sequence length. False by default.
        traces_any_size: whether the step of any micro-batch can be recorded. False by default.
    """

    samples_per_epoch: int | None = None
    traces_any_size = False
    takes_seq_len = False

    def __init__(self, name: str, argument: str, sizes: dict[str, int]):
        self.name, self.argument, self.sizes = name, argument, sizes
        self._traces: dict[tuple[str, bool], StepTraces] = {}

    def traces(self, target: str = "accelerator") -> StepTraces:
        """The job's traces for many strategies, taken from families.

        target: kind of device whose kernels are traced, "accelerator", "pre-ampere" or "cpu"; a recording keeps its own.
        """
        return self._kept_traces(target, single=False)

    def step_traces(self, target: str = "accelerator") -> StepTraces:
        """The job's traces for a few strategies: each is one recording, where a family is several."""
        return self._kept_traces(target, single=True)

    def _kept_traces(self, target: str, *, single: bool) -> StepTraces:
        def family(variant: Strategy) -> TraceFamily:
            recorded = self.find(variant, target)
            return replace(recorded, header=self._answered(recorded.header))

        def step(strategy: Strategy) -> Trace:
            recorded = self.step(strategy, target)
            return replace(recorded, header=self._answered(recorded.header))

        def ranks(strategy: Strategy) -> tuple[RankStep, ...] | None:
            return self.ranks(strategy, target)

        def at_length(seq_len: int) -> StepTraces:
            return self.at_seq_len(seq_len)._kept_traces(target, single=single)

        if (target, single) not in self._traces:
            self._traces[target, single] = StepTraces(
                family,
                record_step=step if single else None,
                record_other=step if self.traces_any_size else None,
                record_ranks=ranks if single else None,
                with_seq_len=at_length if self.takes_seq_len else None,
                sizes=self.sizes,
                on_cpu=target == "cpu",
            )
        return self._traces[target, single]

    def __call__(self, strategy: Strategy, *, target: str = "accelerator") -> TraceFamily:
        """The family of a variant. Raises UnsupportedError or MissingDependencyError if it is not available."""
        return self.traces(target).family(strategy.variant)

    @abstractmethod
    def find(self, strategy: Strategy, target: str) -> TraceFamily:
        """The family of a variant as recorded, without the cache."""

    def step(self, strategy: Strategy, target: str) -> Trace:
        """The step of a strategy as recorded."""
        family = self.find(strategy.variant, target)
        return family.at(accumulation=strategy.accumulation, micro_batch=strategy.micro_batch, **self.sizes)

    def ranks(self, strategy: Strategy, target: str) -> tuple[RankStep, ...] | None:
        """The recorded steps of the ranks of a mesh that differ. None where they are to be composed from the step of one
        device: in a source of recordings, and for data parallelism, whose composition is exact enough."""
        return None

    def rank_step(self, strategy: Strategy, target: str, rank: int) -> Trace:
        """The recorded step of one rank of the strategy's mesh. Raises UnsupportedError for a source of recordings."""
        raise UnsupportedError(f"{self.argument} is a recording: ranks are recorded from the job.", ["name the job itself"])

    def at_seq_len(self, seq_len: int) -> StepSource:
        """The job at another sequence length. Raises UnsupportedError without `takes_seq_len`, or the errors of `source_of`."""
        raise UnsupportedError(f"{self.argument or self.name} has one sequence length.", ["name a job by its file or preset"])

    def step_facts(self, target: str = "accelerator") -> StepFacts:
        """The facts of the job's step that are known before tracing."""
        return StepFacts(self.name or "the job", on_cpu=target == "cpu")

    def has_images(self) -> bool:
        """Whether channels_last lays out anything in memory. A recording refuses it by itself."""
        return True

    def with_own_kernels(self) -> StepSource:
        """The source for this machine's CPU: itself, unless its traces have the kernels of another device."""
        return self

    def _answered(self, header: Header) -> Header:
        """The header without the assumptions that the user's sizes replace.

        For a forward pass it also lacks the optimizer and has a note on what inference leaves out.
        """
        replaced = {f"--{name.replace('_', '-')}" for name in self.sizes}
        added: tuple[Note, ...] = ()
        notes = header.assumption_notes
        if header.strategy.mode == "infer":
            replaced.add("--optimizer")
            notes = tuple(note for note in notes if note.kind not in OF_TRAINING)
            added = (forward_alone(),)
        kept = tuple(note for note in notes if note.flag not in replaced and note not in added)
        return replace(header, assumption_notes=(*kept, *added))

    def default_precision(self, best: str) -> str:
        """The default precision: the device's best."""
        return best

    @property
    def tokens_per_sample(self) -> int:
        """Tokens in a sample; 1 if samples are no sequences of tokens."""
        return 1
