"""TrainSettings: the settings of a run besides its job and its strategy."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from pathlib import Path

from gpuwise.errors import InputError
from gpuwise.json_types import Json
from gpuwise.runtime.health.losses import ON_NONFINITE
from gpuwise.strategy import HostSettings

RESUMES = ("auto", "must", "never")
PREEMPTIONS = ("auto", "aws", "gcp", "azure", "none")
LENGTHS = ("steps", "epochs", "samples", "tokens")


@dataclass(frozen=True)
class TrainSettings:
    """How long, where to, and what to watch.

    Attributes:
        steps, epochs, samples, tokens: how long, one of them at most; one epoch without any.
        seed: of the initial weights, the order of the data and everything random in between; 0.
        folder: of the run, for checkpoints, log and report; None keeps nothing.
        resume: auto continues what is in the folder, must raises where there is nothing to continue, never raises where there
            is something.
        copy_to: folder elsewhere, such as a mounted bucket, that checkpoints and log are copied to. The run goes on from it
            where its own folder has less. None: nowhere.
        keep: number of newest checkpoints kept besides the best, in both folders; 2.
        save_every_s: seconds between checkpoints; None chooses them from what a save takes and interruptions_per_day.
        interruptions_per_day: expected interruptions of the machine per day; None: the default.
        evaluate_every: optimizer steps between evaluations by job.evaluate; None: at the end, or once an epoch where `monitor`
            needs it.
        monitor: "max:accuracy" or "min:loss", a metric of job.evaluate whose best checkpoint is kept.
        patience: evaluations without a better one before the run stops early; None: never.
        time_limit_s: seconds within which the run saves and stops; None: no limit.
        preemption: provider whose interruption notices the run follows: auto | aws | gcp | azure | none.
        on_nonfinite: a step with a non-finite loss stops the run ("stop") or is skipped ("skip").
        log_path: JSON lines go there, not to the folder; a pipe or a device gets a copy.
        progress: what stderr shows: auto | panel | plain | silent.
        writers: writers of curves: "tensorboard", "wandb".
        usd_per_hour: price of the machine in US dollars per hour; None if unknown.
        host: threads, loader workers and the like.
        job_argument: what the user calls the job; "" for a Job object.
        started_in: what relative paths are relative to. folder, copy_to and log_path are absolute from here on, so that a job
            that changes the working folder takes nothing along.

    Raises InputError where a value makes no sense.
    """

    steps: int | None = None
    epochs: float | None = None
    samples: int | None = None
    tokens: int | None = None
    seed: int = 0
    folder: Path | None = None
    copy_to: Path | None = None
    resume: str = "auto"
    keep: int = 2
    save_every_s: float | None = None
    interruptions_per_day: float | None = None
    evaluate_every: int | None = None
    monitor: str | None = None
    patience: int | None = None
    time_limit_s: float | None = None
    preemption: str = "auto"
    on_nonfinite: str = "stop"
    log_path: Path | None = None
    progress: str = "auto"
    writers: tuple[str, ...] = ()
    usd_per_hour: float | None = None
    host: HostSettings = field(default_factory=HostSettings)
    job_argument: str = ""
    started_in: Path = field(default_factory=Path.cwd)

    def __post_init__(self) -> None:
        for name in ("folder", "copy_to", "log_path"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, self.started_in / getattr(self, name))
        lengths = [name for name in LENGTHS if getattr(self, name) is not None]
        if len(lengths) > 1:
            raise InputError(f"{' and '.join(lengths)} say how long to train; give one of them.")
        for name in lengths:
            if not 0 < getattr(self, name) < 1e15:  # also refuses NaN
                raise InputError(f"{name} must be above zero and sensible, got {getattr(self, name)!r}.")
        for name in ("save_every_s", "evaluate_every", "patience", "time_limit_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"{name.replace('_', ' ')} must be above zero, got {value!r}.")
        for name in ("interruptions_per_day", "usd_per_hour"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise InputError(f"{name.replace('_', ' ')} must be a number from 0 on, got {value!r}.")
        if not 0 <= self.seed < 2**63:
            raise InputError(f"the seed must be a whole number from 0 to 2^63 - 1, got {self.seed}.")
        if self.keep < 2:
            raise InputError(f"at least two checkpoints are kept, in case one is damaged; got {self.keep}.", ["--keep 2"])
        for name, allowed in (("resume", RESUMES), ("on_nonfinite", ON_NONFINITE), ("preemption", PREEMPTIONS)):
            if getattr(self, name) not in allowed:
                raise InputError(
                    f"unknown {name.replace('_', '-')} {getattr(self, name)!r}.", [f"one of: {', '.join(allowed)}"]
                )
        if self.patience is not None and self.monitor is None:
            raise InputError(
                "patience counts evaluations without a better metric, and none is monitored.",
                ["--monitor max:accuracy, with a metric of the job's evaluate"],
            )
        self.monitored  # noqa: B018 - raises where it cannot be read

    @property
    def monitored(self) -> tuple[str, bool] | None:
        """The monitored metric, and whether larger values are better."""
        if self.monitor is None:
            return None
        which, colon, metric = self.monitor.partition(":")
        if not colon or which not in ("min", "max") or not metric:
            raise InputError(f"cannot read the metric to monitor, {self.monitor!r}.", ["max:accuracy", "min:loss"])
        return metric, which == "max"

    def shared(self) -> dict[str, Json]:
        """The settings that all ranks of a run must have in common, without those of a machine, such as paths."""
        own = {"folder", "log_path", "progress", "started_in", "time_limit_s", "preemption"}
        return {name: str(value) for name, value in self.to_dict().items() if name not in own}

    def to_dict(self) -> dict[str, object]:
        """The settings as plain types, without None. Host settings are part of the strategy."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "host"}
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items() if value is not None}
