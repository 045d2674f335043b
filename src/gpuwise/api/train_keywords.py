"""The keywords of `train`, and the run settings that they make."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from gpuwise.errors import InputError, nearest
from gpuwise.plan.types import Plan
from gpuwise.step_settings import JobSizes, RunSettings, flag_of, settings_of
from gpuwise.strategy import HostSettings, Strategy
from gpuwise.units import parse_count, parse_duration

if TYPE_CHECKING:
    from gpuwise.job import Job
    from gpuwise.runtime import TrainSettings

AUTO = "auto"  # as a run folder: the first runs/<job> that is free or can be continued


class TrainKeywords(RunSettings, total=False):
    """The keywords of `train` beside a job and a plan. `Trainer` documents them."""

    epochs: float | None
    steps: int | None
    samples: int | str | None
    tokens: int | str | None
    run: str | os.PathLike[str] | None
    copy_to: str | os.PathLike[str] | None
    resume: bool | None
    seed: int
    save_every: float | str | None
    keep: int
    interruptions: float | None
    evaluate_every: int | None
    monitor: str | None
    patience: int | None
    time_limit: float | str | None
    preemption: str
    on_nonfinite: str
    writers: str | tuple[str, ...]
    log: str | os.PathLike[str] | None
    progress: str


_OF_THE_RUN = TrainKeywords.__optional_keys__ - RunSettings.__optional_keys__


def step_keywords(keywords: TrainKeywords, plan: object) -> RunSettings:
    """The keywords of the step that are not None. Raises InputError for an unknown one, or one that a plan excludes."""
    requested = {name: value for name, value in keywords.items() if value is not None and name not in _OF_THE_RUN}
    if unknown := sorted(set(requested) - set(settings_of(RunSettings))):
        names = [*settings_of(RunSettings), *sorted(_OF_THE_RUN)]
        near = [name for each in unknown for name in nearest(each, names)]
        ways = [f"nearest: {', '.join(near)}"] if near else []
        raise InputError(f"train does not take {', '.join(unknown)}.", [*ways, f"one of: {', '.join(names)}"])
    excluded = [name for name in requested if name not in JobSizes.__optional_keys__]
    if plan is not None and excluded:
        flags = ", ".join(map(flag_of, excluded))
        raise InputError(
            f"{flags} and --plan exclude each other: a plan is run as it is.", ["leave out --plan", f"leave out {flags}"]
        )
    return cast(RunSettings, requested)


def train_settings(keywords: TrainKeywords, plan: Plan | None, *, host: HostSettings, job_argument: str) -> TrainSettings:
    """The settings of a run without its folder, see `in_folder`. Raises InputError for a senseless value."""
    from gpuwise.runtime import TrainSettings

    steps, epochs = keywords.get("steps"), keywords.get("epochs")
    samples, tokens = keywords.get("samples"), keywords.get("tokens")
    if plan is not None and all(length is None for length in (steps, epochs, samples, tokens)):
        steps = plan.steps
    resume, log, writers = keywords.get("resume"), keywords.get("log"), keywords.get("writers", ())
    copy_to = keywords.get("copy_to")
    return TrainSettings(
        steps=steps,
        epochs=epochs,
        samples=_count(samples, "samples"),
        tokens=_count(tokens, "tokens"),
        seed=keywords.get("seed", 0),
        resume="auto" if resume is None else "must" if resume else "never",
        copy_to=None if copy_to is None else Path(copy_to),
        keep=keywords.get("keep", 2),
        save_every_s=_seconds(keywords.get("save_every")),
        interruptions_per_day=keywords.get("interruptions"),
        evaluate_every=keywords.get("evaluate_every"),
        monitor=keywords.get("monitor"),
        patience=keywords.get("patience"),
        time_limit_s=_seconds(keywords.get("time_limit")),
        job_argument=job_argument,
        preemption=keywords.get("preemption", "auto"),
        on_nonfinite=keywords.get("on_nonfinite", "stop"),
        progress=keywords.get("progress", "auto"),
        log_path=None if log is None else Path(log),
        writers=(writers,) if isinstance(writers, str) else tuple(writers),
        usd_per_hour=None if plan is None else plan.machines * plan.offer.usd_per_hour,
        host=host,
    )


def in_folder(settings: TrainSettings, run: str | os.PathLike[str] | None, job: Job, strategy: Strategy) -> TrainSettings:
    """The settings with the folder of the run. Raises InputError if there is no run to continue and one is required."""
    from gpuwise.runtime.run.folder import usual_folder

    if run is None:
        if settings.copy_to is not None:
            raise InputError("what is copied to a folder is the folder of a run, and this run has none.", ["--run FOLDER"])
        if settings.resume == "must":
            raise InputError("there is nothing to continue without a folder.", ["--run FOLDER of the run to continue"])
        _check_saves_nothing(settings)
        return settings
    if os.fspath(run) == AUTO:
        return replace(settings, folder=usual_folder(settings.started_in / "runs", job, strategy, settings))
    return replace(settings, folder=Path(run))


def _check_saves_nothing(settings: TrainSettings) -> None:
    """Raises InputError for settings of checkpoints, of which a run without a folder has none."""
    usual = type(settings)()
    for name, flag in (("save_every_s", "--save-every"), ("keep", "--keep"), ("interruptions_per_day", "--interruptions")):
        if getattr(settings, name) != getattr(usual, name):
            raise InputError(
                f"{flag} is about checkpoints, and a run without a folder keeps none.", ["--run FOLDER", f"leave out {flag}"]
            )


def _count(value: int | str | None, what: str) -> int | None:
    return None if value is None else parse_count(str(value), f"a number of {what}")


def _seconds(value: float | str | None) -> float | None:
    return parse_duration(value) if isinstance(value, str) else value
