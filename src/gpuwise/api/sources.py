"""Where the traces of a job come from: a saved trace, a preset's shipped recording, or tracing it now with PyTorch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpuwise.errors import InputError, UnsupportedError
from gpuwise.strategy import PRECISIONS, Mesh, Strategy
from gpuwise.trace import Header, Trace, TraceFamily, family_of_one, load
from gpuwise.trace.presets import load_preset
from gpuwise.trace.presets.table import PRESETS, PresetInfo

if TYPE_CHECKING:
    from gpuwise.job import Job

TRACE_SUFFIX = ".npz"
MAX_SIZE = 100_000_000
# A sample of this many tokens fills a device alone; of shorter ones 32 are a usual micro-batch.
LONG_SAMPLE_TOKENS = 512
SHORT_SAMPLES = 32


class Source(ABC):
    """The traces of one job: called with a Strategy, gives the family of its precision, recompute, optimizer and mode.

    name: of the job. argument: what the user typed, "" for a Job object. sizes: seq_len and image_size where the user
    gave them. samples_per_epoch: None where unknown. Families are kept, so that asking twice costs nothing.
    """

    samples_per_epoch: int | None = None

    def __init__(self, name: str, argument: str, sizes: dict[str, int]):
        self.name, self.argument, self.sizes = name, argument, sizes
        self._families: dict[tuple[Strategy, str], TraceFamily] = {}

    def __call__(self, strategy: Strategy, *, substrate: str = "accelerator") -> TraceFamily:
        """Raises UnsupportedError or MissingDependencyError where the variant cannot be had.

        substrate: whose kernels are traced, "accelerator" or "cpu"; a recording keeps its own.
        """
        variant = strategy.variant
        key = (variant, substrate)
        if key not in self._families:
            family = self.find(variant, substrate)
            self._families[key] = replace(family, header=self.unanswered(family.header, strategy))
        return self._families[key]

    @abstractmethod
    def find(self, strategy: Strategy, substrate: str) -> TraceFamily:
        """The family, not yet kept."""

    def trace(self, strategy: Strategy, *, substrate: str = "accelerator") -> Trace:
        """The Trace of this strategy at the user's sizes."""
        family = self(strategy, substrate=substrate)
        return family.at(accumulation=strategy.accumulation, micro_batch=strategy.micro_batch, **self.sizes)

    def unanswered(self, header: Header, strategy: Strategy) -> Header:
        """The header without the guesses that the user has answered: those that name the flag of what was given."""
        given = {*self.sizes, *(["optimizer"] if strategy.optimizer else [])}
        flags = [f"--{name.replace('_', '-')} " for name in given]
        kept = tuple(line for line in header.assumptions if not any(flag in f"{line} " for flag in flags))
        return replace(header, assumptions=kept)

    def default_precision(self, best: str) -> str:
        """The precision where the user names none: the device's best."""
        return best

    @property
    def tokens_per_sample(self) -> int:
        """1 where samples are no sequences of tokens."""
        return 1


class SavedSource(Source):
    """One saved trace or family; it answers for nothing but what it was recorded under."""

    def __init__(self, path: str, sizes: dict[str, int]):
        saved = load(path)
        self.family = saved if isinstance(saved, TraceFamily) else family_of_one(saved)
        super().__init__(self.family.header.job, path, sizes)

    def find(self, strategy: Strategy, substrate: str) -> TraceFamily:
        recorded = self.family.header.strategy
        for field in ("precision", "recompute", "mode", "optimizer"):
            asked, had = getattr(strategy, field), getattr(recorded, field)
            if asked != had and not (field == "optimizer" and asked is None):
                ways = [f"give --{field} {had}", "name the job itself, which is traced as asked"]
                raise UnsupportedError(f"the trace {self.argument} was recorded with {field} {had}, not {asked}.", ways)
        return self.family

    def default_precision(self, best: str) -> str:
        return self.family.header.strategy.precision

    @property
    def tokens_per_sample(self) -> int:
        return self.family.header.units_per_sample


class JobSource(Source):
    """A Job, traced when asked for, with PyTorch."""

    def __init__(self, job: Job, argument: str, sizes: dict[str, int]):
        super().__init__(job.name, argument, sizes)
        self.job = job
        self.samples_per_epoch = job.samples

    def find(self, strategy: Strategy, substrate: str) -> TraceFamily:
        self._require_torch()
        from gpuwise.tracing import trace_family

        return trace_family(self.job, strategy, substrate=substrate)

    def trace(self, strategy: Strategy, *, substrate: str = "accelerator") -> Trace:
        """Recorded at this very micro-batch: one recording, where a family takes several."""
        self._require_torch()
        from gpuwise.tracing import record

        trace = record(self.job, strategy.but(mesh=Mesh()), substrate=substrate).with_accumulation(strategy.accumulation)
        return replace(trace, header=self.unanswered(trace.header, strategy))

    def _require_torch(self) -> None:
        from gpuwise.job.dependencies import require

        require("torch", purpose=f"trace {self.name or 'the job'}")

    @property
    def tokens_per_sample(self) -> int:
        return self.job.tokens_per_sample or 1


class PresetSource(Source):
    """A preset: its recording where that covers what is asked, else traced with PyTorch.

    recorded_only: raise UnsupportedError instead of tracing, so that a search over variants needs no PyTorch.
    """

    def __init__(self, info: PresetInfo, sizes: dict[str, int]):
        super().__init__(info.name, info.name, sizes)
        self.info, self.recorded_only = info, False
        self.samples_per_epoch = info.samples
        info.check_sizes(sizes)

    def recorded(self, strategy: Strategy) -> TraceFamily | None:
        """The shipped family, or None where it does not cover the strategy or the user's sizes."""
        if strategy.optimizer not in (None, self.info.optimizer):
            return None
        family = load_preset(self.name, precision=strategy.precision, recompute=strategy.recompute, mode=strategy.mode)
        if family is None or not family.covers(self.sizes):
            return None
        # A recording assumes no sizes; what is taken where the user names none is said here.
        said = (*self.info.assumptions(), *family.header.assumptions)
        return replace(family, header=replace(family.header, assumptions=said))

    def search_recorded(self, *, optimizer: str | None, precision: str | None, recompute: str | None) -> None:
        """From here on only recordings answer, if there are any for what the user pinned."""
        names = [precision] if precision else [name for name in PRECISIONS if name != "tf32"]
        wanted = Strategy(recompute=recompute or "none", optimizer=optimizer)
        self.recorded_only = any(self.recorded(wanted.but(precision=name)) for name in names)

    def find(self, strategy: Strategy, substrate: str) -> TraceFamily:
        family = self.recorded(strategy)
        return self._live(strategy).find(strategy, substrate) if family is None else family

    def trace(self, strategy: Strategy, *, substrate: str = "accelerator") -> Trace:
        if self.recorded(strategy) is not None:
            return super().trace(strategy, substrate=substrate)
        return self._live(strategy).trace(strategy, substrate=substrate)

    def _live(self, strategy: Strategy) -> JobSource:
        """The preset as a job to trace. Raises MissingDependencyError without PyTorch, UnsupportedError in a search."""
        variant = f"{self.name} in {strategy.precision}, recompute {strategy.recompute}, mode {strategy.mode}"
        if self.recorded_only:
            raise UnsupportedError(f"there is no recorded trace of {variant}.")
        from gpuwise.job import resolve
        from gpuwise.job.dependencies import require

        require("torch", purpose=f"trace {variant} (the recordings shipped with gpuwise do not cover it)")
        return JobSource(resolve(self.name, **self.sizes), self.argument, self.sizes)

    @property
    def tokens_per_sample(self) -> int:
        return self.sizes.get("seq_len") or self.info.seq_len or 1


def source_of(job: str | Job, *, seq_len: int | None = None, image_size: int | None = None) -> Source:
    """The source for what the user names: a saved trace, a preset, `path.py:name`, `hf:`, `timm:`, or a Job itself.

    Raises InputError, UnknownNameError, JobError, FileFormatError or MissingDependencyError.
    """
    sizes = _checked_sizes(seq_len=seq_len, image_size=image_size)
    if not isinstance(job, str):
        job = _checked_job(job)
        return JobSource(job, "", _sizes_of_job(job, sizes))
    if job.endswith(TRACE_SUFFIX):
        return SavedSource(job, sizes)
    if job in PRESETS:
        return PresetSource(PRESETS[job], sizes)
    from gpuwise.job import resolve

    return JobSource(resolve(job, **sizes), job, sizes)


def usual_micro_batch(tokens_per_sample: int | None) -> int:
    """Samples a forward pass where the user names none; whoever uses it says so beside the result."""
    return 1 if (tokens_per_sample or 1) >= LONG_SAMPLE_TOKENS else SHORT_SAMPLES


def job_of(job: str | Job, *, seq_len: int | None = None, image_size: int | None = None) -> Job:
    """The Job itself, to run it. Raises what `source_of` raises, and InputError for a saved trace."""
    from gpuwise.job import resolve

    sizes = _checked_sizes(seq_len=seq_len, image_size=image_size)
    if not isinstance(job, str):
        return _checked_job(job)
    if job.endswith(TRACE_SUFFIX):
        raise InputError(f"{job} is a recorded trace: it can be priced, not trained.", ["name the job it is of"])
    return resolve(job, **sizes)


def _checked_job(job: Job) -> Job:
    """A Job object with a name to call it by. Raises InputError for anything else."""
    from gpuwise.job import Job

    if not isinstance(job, Job):
        raise InputError(f"a job is a name or a gpuwise.Job, got {type(job).__name__}.", ["gpuwise.Job(model=..., ...)"])
    return job if job.name else replace(job, name="job")


def _checked_sizes(**sizes: Any) -> dict[str, int]:
    """The sizes that are given. Raises InputError for one that is no sensible number."""
    given = {name: value for name, value in sizes.items() if value is not None}
    for name, value in given.items():
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_SIZE:
            flag = name.replace("_", "-")
            raise InputError(f"--{flag} must be a whole number from 1 to {MAX_SIZE:,}, got {value!r}.")
    return given


def _sizes_of_job(job: Job, sizes: dict[str, int]) -> dict[str, int]:
    """A Job object makes its own batches: sizes other than its own cannot be forced on it."""
    for name, value in sizes.items():
        if getattr(job, name) != value:
            raise InputError(f"this job makes batches of {name} {getattr(job, name)}, not {value}.",
                             [f"make the Job with {name}={value}"])  # fmt: skip
    return sizes
