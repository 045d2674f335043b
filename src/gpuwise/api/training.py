"""Trainer: the run of a job on this machine, as a plan or flags say, with its forecast."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from gpuwise.api.run_batch import batch_reason
from gpuwise.api.run_start import (
    check_device,
    check_same_sizes,
    chosen_strategy,
    forecast_here,
    job_to_run,
    named_strategy,
    planned_job,
    this_device,
)
from gpuwise.api.traced import JobSource
from gpuwise.errors import InputError
from gpuwise.hardware.waiting import wait_passively
from gpuwise.notes import Note, sentences
from gpuwise.plan.types import Plan
from gpuwise.step_settings import RunSettings, flag_of, settings_of, sizes_of
from gpuwise.strategy import HostSettings, Strategy
from gpuwise.units import parse_count, parse_duration

if TYPE_CHECKING:
    import torch

    from gpuwise.job import Job
    from gpuwise.runtime import TrainedStep, Training, TrainResult, TrainSettings

AUTO = "auto"  # a run folder of this name: runs/<job>, the first that is free or to be continued


def train(job: str | Job, plan: str | os.PathLike[str] | Plan | None = None, **settings: Any) -> TrainResult:
    """Runs a job on this machine, with its forecast next to what is measured.

    Arguments: those of Trainer, of which this runs all steps. Raises what it raises.
    """
    return Trainer(job, plan, **settings).run()


class Trainer:
    """A job's run on this machine, under a plan or the settings given.

        trainer = gpuwise.Trainer(job, plan, epochs=3, run="runs/digits")
        result = trainer.run()                      # or step by step:
        for step in trainer: print(step.step, step.loss)

    Arguments:
        plan: a Plan or its file, run as it is; else the settings of gpuwise.step_settings.RunSettings say how: micro_batch,
            accumulate, precision, recompute and the other techniques, seq_len, threads, loader_workers and so on; what none
            of them says is chosen.
        epochs, steps, samples, tokens: how long, one of them; None: as planned, or one epoch.
        run: the folder of checkpoints, log and report; a run in it that has not ended is continued. "auto": runs/<job>.
            None keeps nothing. resume: True: there must be one to continue; False: there must be none.
        save_every: "10min" or seconds between checkpoints; None chooses them by what a save takes and how many
            `interruptions` a day are to be expected. keep: checkpoints kept, the best apart.
        evaluate_every: steps. monitor: "max:accuracy"; its best checkpoint is kept; patience: evaluations without a better.
        time_limit: "11h" or seconds: the run is saved and ends before. preemption: auto | aws | gcp | azure | none.
        on_nonfinite: "stop" or "skip" a step whose loss is no number. writers: "tensorboard", "wandb".
        log: a file for the log, where not in the run's folder. progress: auto | panel | plain | silent.

    Attributes: job, strategy, forecast (None where there can be none), reasons (of what was chosen), folder; once it has
    begun, model; at the end, result.

    Raises JobError where the plan is for another job or the job fails, InputError, and what `forecast` raises.
    """

    def __init__(
        self,
        job: str | Job,
        plan: str | os.PathLike[str] | Plan | None = None,
        *,
        epochs: float | None = None,
        steps: int | None = None,
        samples: int | str | None = None,
        tokens: int | str | None = None,
        run: str | os.PathLike[str] | None = None,
        resume: bool | None = None,
        seed: int = 0,
        save_every: float | str | None = None,
        keep: int = 2,
        interruptions: float | None = None,
        evaluate_every: int | None = None,
        monitor: str | None = None,
        patience: int | None = None,
        time_limit: float | str | None = None,
        preemption: str = "auto",
        on_nonfinite: str = "stop",
        writers: str | tuple[str, ...] = (),
        log: str | os.PathLike[str] | None = None,
        progress: str = "auto",
        **strategy: Unpack[RunSettings],
    ):
        from gpuwise.job.dependencies import require
        from gpuwise.plan.file import load_plan

        sizes = {name: value for name, value in sizes_of(strategy).items() if value is not None}
        given = {name: value for name, value in strategy.items() if value is not None and name not in sizes}
        _check_names(given, plan)
        if plan is not None and not isinstance(plan, Plan):
            plan = load_plan(plan)
        self.plan = plan
        if plan is not None:
            check_same_sizes(plan, sizes)
        wait_passively()  # before PyTorch is loaded
        require("torch", purpose="train")
        from gpuwise.runtime import Training, TrainSettings

        if plan is not None and all(length is None for length in (steps, epochs, samples, tokens)):
            steps = plan.steps
        self.settings: TrainSettings = TrainSettings(
            steps=steps,
            epochs=epochs,
            samples=_count(samples, "samples"),
            tokens=_count(tokens, "tokens"),
            seed=seed,
            resume="auto" if resume is None else "must" if resume else "never",
            keep=keep,
            save_every_s=_seconds(save_every),
            interruptions_per_day=interruptions,
            evaluate_every=evaluate_every,
            monitor=monitor,
            patience=patience,
            time_limit_s=_seconds(time_limit),
            job_argument=job if isinstance(job, str) else "",
            preemption=preemption,
            on_nonfinite=on_nonfinite,
            progress=progress,
            log_path=None if log is None else Path(log),
            writers=(writers,) if isinstance(writers, str) else tuple(writers),
            usd_per_hour=None if plan is None else plan.offer.usd_per_hour,
            host=HostSettings.from_dict(given) if plan is None else plan.host,
        )
        here = this_device()
        self.job: Job
        self.reason_notes: tuple[Note, ...] = ()
        if plan is not None:
            self.job = planned_job(job, plan)
            check_device(plan, here.chip)
            self.strategy = plan.strategy
            self.settings = _in_folder(self.settings, run, self.job, self.strategy)
            self.forecast = forecast_here(JobSource(self.job, "", {}), self.strategy, here, self.settings.host)
        else:
            self.job, source = job_to_run(job, sizes)
            named = named_strategy(self.job, given, here, self.settings)
            self.settings = _in_folder(self.settings, run, self.job, named)
            self.strategy, self.reason_notes, self.forecast = chosen_strategy(
                named, given, source, here, self.settings, self.job
            )
            self.reason_notes = (*batch_reason(self.job, given, self.settings, self.strategy), *self.reason_notes)
        self._training: Training = Training(
            self.job,
            self.strategy,
            self.settings,
            device=here.torch_device,
            forecast=self.forecast,
            notes=self.reasons,
            plan=None if plan is None else plan.to_dict(),
        )

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the settings that the user did not name are what they are, in sentences."""
        return sentences(self.reason_notes)

    @property
    def folder(self) -> Path | None:
        return self.settings.folder

    @property
    def model(self) -> torch.nn.Module:
        """As it is trained now. Before the first step there is none yet."""
        return self._training.model

    @property
    def result(self) -> TrainResult | None:
        return self._training.result

    def __iter__(self) -> Iterator[TrainedStep]:
        return iter(self._training)

    def run(self) -> TrainResult:
        """All steps. Returns what came of them."""
        return self._training.run()

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Writes the plain weights as they are now, averages in place of parameters where the job keeps them, as a
        safetensors file that transformers and timm load; before the first step, those of the newest checkpoint in the run's
        folder. Returns its path."""
        return self._training.export(Path(path))


def _check_names(given: Mapping[str, Any], plan: object) -> None:
    if unknown := set(given) - set(settings_of(RunSettings)):
        raise InputError(f"train does not take {', '.join(sorted(unknown))}.")
    if plan is not None and given:
        flags = ", ".join(map(flag_of, given))
        raise InputError(
            f"{flags} and --plan exclude each other: a plan is run as it is.", ["leave out --plan", f"leave out {flags}"]
        )


def _count(value: int | str | None, what: str) -> int | None:
    return None if value is None else parse_count(str(value), f"a number of {what}")


def _seconds(value: float | str | None) -> float | None:
    return parse_duration(value) if isinstance(value, str) else value


def _in_folder(settings: TrainSettings, run: str | os.PathLike[str] | None, job: Job, strategy: Strategy) -> TrainSettings:
    from gpuwise.runtime.run.folder import usual_folder

    if run is None:
        if settings.resume == "must":
            raise InputError("there is nothing to continue without a folder.", ["--run FOLDER of the run to continue"])
        return settings
    if os.fspath(run) == AUTO:
        return replace(settings, folder=usual_folder(settings.started_in / "runs", job, strategy, settings))
    return replace(settings, folder=Path(run))
