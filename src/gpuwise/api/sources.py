"""The sources of a job's traces:

- a saved trace,
- a preset's shipped recording,
- a cached trace,
- tracing the job now with PyTorch.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING

from gpuwise.api.source import StepSource
from gpuwise.api.traced import JobSource, NamedSource
from gpuwise.errors import InputError, UnsupportedError
from gpuwise.notes.job import attention_of_newer_gpus
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.step_settings import Techniques, flags_of, job_word, settings_of
from gpuwise.strategy import PRECISIONS, Strategy
from gpuwise.trace import Trace, TraceFamily, family_of_one, load
from gpuwise.trace.parallel.ranks import RankStep
from gpuwise.trace.parallel.recorded import split_communication
from gpuwise.trace.presets import load_preset
from gpuwise.trace.presets.table import PRESETS, PresetInfo
from gpuwise.trace.update.compose import compose_update

if TYPE_CHECKING:
    from gpuwise.job import Job

TRACE_SUFFIX = ".npz"
MAX_SIZE = 100_000_000
# Parameters up to which a preset is traced anew for the CPU here: larger ones do not train on one, and take long to record.
TRACED_ON_CPU = 2_000_000_000
# A sample of this many tokens fills a device alone; of shorter ones 32 are a usual micro-batch.
LONG_SAMPLE_TOKENS = 512
SHORT_SAMPLES = 32


class SavedSource(StepSource):
    """One saved trace or family. It is valid only for the settings it was recorded under."""

    def __init__(self, path: str, sizes: dict[str, int]):
        saved = load(path)
        self.family = saved if isinstance(saved, TraceFamily) else family_of_one(saved)
        super().__init__(self.family.header.job, path, sizes)

    def find(self, strategy: Strategy, target: str) -> TraceFamily:
        recorded = self.family.header.strategy
        rank = self.family.header.rank
        if recorded.mesh.devices > 1 and (strategy.mesh, strategy.parallelism) != (recorded.mesh, recorded.parallelism):
            raise UnsupportedError(
                f"the trace {self.argument} is of rank {rank} of {_axes(recorded)}, on which forecast alone prices it.",
                [f"gpuwise forecast {job_word(self.argument)} {_axes(recorded)} --on ...", "name the job itself"],
            )
        for field in ("mode", *settings_of(Techniques)):
            requested, had = getattr(strategy, field), getattr(recorded, field)
            if requested not in (had, None):  # None accepts the recorded value
                name = field.replace("_", "-")
                ways = [_flag(name, had), "name the job itself, which is traced as asked"]
                raise UnsupportedError(f"the trace {self.argument} was recorded with {name} {had}, not {requested}.", ways)
        return self.family

    def ranks(self, strategy: Strategy, target: str) -> tuple[RankStep, ...] | None:
        """The one rank that was recorded; None if the recording is of a single device."""
        if self.family.header.strategy.mesh.devices == 1:
            return None

        def recorded(plain: Strategy) -> Trace:
            family = self.find(plain, target)
            return family.at(accumulation=plain.accumulation, micro_batch=plain.micro_batch, **self.sizes)

        trace = compose_update(recorded, strategy, on_cpu=target == "cpu")
        model_flops = trace.header.model_flops * strategy.accumulation or None
        return (RankStep("", *split_communication(trace), model_flops, trace),)

    def default_precision(self, best: str) -> str:
        return self.family.header.strategy.precision

    @property
    def tokens_per_sample(self) -> int:
        return self.family.header.units_per_sample


class PresetSource(StepSource):
    """A preset: its recording if that covers the strategy and sizes, else a trace with PyTorch.

    Attributes:
        info: the preset's description.
        recorded_only: whether to raise UnsupportedError instead of tracing, so that a search over variants needs no PyTorch.
            Default False.
    """

    takes_seq_len = True

    def __init__(self, info: PresetInfo, sizes: dict[str, int]):
        super().__init__(info.name, info.name, sizes)
        self.info, self.recorded_only = info, False
        self.samples_per_epoch = info.samples
        info.check_sizes(sizes)

    def at_seq_len(self, seq_len: int) -> PresetSource:
        return PresetSource(self.info, {**self.sizes, "seq_len": seq_len})

    def recorded(self, strategy: Strategy, target: str = "accelerator") -> TraceFamily | None:
        """The shipped family; None if it does not cover the strategy or the user's sizes."""
        plain = Strategy(
            strategy.recorded_precision, recompute=strategy.recompute, mode=strategy.mode, adapter=strategy.adapter
        )
        if strategy.variant != plain:
            return None
        family = load_preset(
            self.name, precision=strategy.precision, recompute=strategy.recompute, mode=strategy.mode, adapter=strategy.adapter
        )
        if family is None or not family.covers(self.sizes):
            return None
        # A recording has no assumptions on sizes; default sizes are noted here.
        assumed = (*self.info.assumptions(), *family.header.assumption_notes)
        if target == "pre-ampere" and any("flash_attention" in name for name in family.operations.name):
            assumed = (*assumed, attention_of_newer_gpus())
        return replace(family, header=replace(family.header, assumption_notes=assumed))

    def search_recorded(self, techniques: Strategy | None = None, *, precision: str | None = None) -> None:
        """Switches to recordings only, if there are any for the pinned precision and techniques."""
        names = [precision] if precision else [name for name in PRECISIONS if name != "tf32"]
        techniques = techniques or Strategy()
        self._traces.clear()
        self.recorded_only = True
        self.recorded_only = any(self._answers(techniques.but(precision=name)) for name in names)

    def _answers(self, strategy: Strategy) -> bool:
        try:
            StepTraces(lambda variant: self.find(variant, "accelerator")).family(strategy)
        except (UnsupportedError, InputError):  # InputError: a precision that does not go with the techniques
            return False
        return True

    def find(self, strategy: Strategy, target: str) -> TraceFamily:
        family = self.recorded(strategy, target)
        return self._live(strategy).find(strategy, target) if family is None else family

    def step(self, strategy: Strategy, target: str) -> Trace:
        if self.recorded(strategy) is not None:
            return super().step(strategy, target)
        return self._live(strategy).step(strategy, target)

    def rank_step(self, strategy: Strategy, target: str, rank: int) -> Trace:
        return self._live(strategy).rank_step(strategy, target, rank)

    def _live(self, strategy: Strategy) -> NamedSource:
        """The preset as a job to trace. Raises MissingDependencyError without PyTorch, UnsupportedError in a search."""
        variant = f"{self.name} in {strategy.precision}, recompute {strategy.recompute}, mode {strategy.mode}"
        variant += "" if strategy.adapter == "none" else f", {strategy.adapter} of rank {strategy.adapter_rank}"
        if self.recorded_only:
            raise UnsupportedError(f"there is no recorded trace of {variant}.")
        if find_spec("torch") is None:
            from gpuwise.job.dependencies import require

            require("torch", purpose=f"trace {variant} (the recordings shipped with gpuwise do not cover it)")
        return self._job

    def has_images(self) -> bool:
        return self.info.image_size is not None

    def with_own_kernels(self) -> StepSource:
        """A source that traces on this machine if PyTorch is installed, because recordings have a GPU's kernels.

        Its traces are cached on disk like those of any job.
        """
        here = find_spec("torch") is not None and self.info.parameters <= TRACED_ON_CPU
        return self._job if here else self

    @cached_property
    def _job(self) -> NamedSource:
        return NamedSource(self.argument, self.sizes)

    @property
    def tokens_per_sample(self) -> int:
        return self.sizes.get("seq_len") or self.info.seq_len or 1


def source_of(job: str | Job, *, seq_len: int | None = None, image_size: int | None = None) -> StepSource:
    """The source of a JOB argument: a saved trace, a preset, `path.py:name`, `keras:`, `hf:`, `timm:`, or a Job object.

    Traces of named jobs are cached on disk. Those of a Job object are not, because changes of its code cannot be detected.
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
    return NamedSource(job, sizes)


def _axes(strategy: Strategy) -> str:
    """The flags of a strategy's mesh: '--mesh dp_shard=8,tp=2 --sequence-parallel'."""
    return flags_of(
        Strategy(strategy.precision, mesh=strategy.mesh, parallelism=strategy.parallelism), without=("precision", "micro_batch")
    )


def _flag(name: str, value: object) -> str:
    """The command-line flag that sets a setting to this value."""
    if isinstance(value, str):
        return f"give --{name} {value}"
    return f"give --{name}" if value is True else f"leave out --{name}"


def usual_micro_batch(tokens_per_sample: int | None) -> int:
    """The default micro-batch. Callers report it with the result."""
    return 1 if (tokens_per_sample or 1) >= LONG_SAMPLE_TOKENS else SHORT_SAMPLES


def job_of(job: str | Job, *, seq_len: int | None = None, image_size: int | None = None) -> Job:
    """The Job itself, to run it. Raises the errors of `source_of`, and InputError for a saved trace."""
    from gpuwise.job import resolve

    sizes = _checked_sizes(seq_len=seq_len, image_size=image_size)
    if not isinstance(job, str):
        _sizes_of_job(job := _checked_job(job), sizes)
        return job
    if job.endswith(TRACE_SUFFIX):
        raise InputError(f"{job} is a recorded trace: it can be priced, not trained.", ["name the job it is of"])
    return resolve(job, **sizes)


def _checked_job(job: Job) -> Job:
    """A Job object with a name. Raises InputError for anything else."""
    from gpuwise.job import Job

    if not isinstance(job, Job):
        raise InputError(f"a job is a name or a gpuwise.Job, got {type(job).__name__}.", ["gpuwise.Job(model=..., ...)"])
    return job if job.name else replace(job, name="job")


def _checked_sizes(**sizes: int | None) -> dict[str, int]:
    """The sizes that are not None. Raises InputError for a senseless number."""
    checked = {name: value for name, value in sizes.items() if value is not None}
    for name, value in checked.items():
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_SIZE:
            flag = name.replace("_", "-")
            raise InputError(f"--{flag} must be a whole number from 1 to {MAX_SIZE:,}, got {value!r}.")
    return checked


def _sizes_of_job(job: Job, sizes: dict[str, int]) -> dict[str, int]:
    """The sizes of a Job object. It makes its own batches, so other sizes cannot be set."""
    for name, value in sizes.items():
        if getattr(job, name) != value:
            raise InputError(
                f"this job makes batches of {name} {getattr(job, name)}, not {value}.", [f"make the Job with {name}={value}"]
            )
    return sizes
