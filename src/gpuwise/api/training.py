"""Trainer: the run of a job on this machine, as a plan or flags say, with its forecast."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

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
from gpuwise.api.train_keywords import TrainKeywords, in_folder, step_keywords, train_settings
from gpuwise.hardware.waiting import wait_passively
from gpuwise.notes import Note, sentences
from gpuwise.plan.types import Plan
from gpuwise.step_settings import named_sizes
from gpuwise.strategy import HostSettings

if TYPE_CHECKING:
    import torch

    from gpuwise.job import Job
    from gpuwise.runtime import TrainedStep, Training, TrainResult


def train(job: str | Job, plan: str | os.PathLike[str] | Plan | None = None, **keywords: Unpack[TrainKeywords]) -> TrainResult:
    """Runs a job on this machine, with its forecast next to what is measured.

    Arguments: those of Trainer, of which this runs all steps. Raises what it raises.
    """
    return Trainer(job, plan, **keywords).run()


class Trainer:
    """A job's run on this machine, under a plan or its own settings.

        trainer = gpuwise.Trainer(job, plan, epochs=3, run="runs/digits")
        result = trainer.run()                      # or step by step:
        for step in trainer: print(step.step, step.loss)

    Arguments:
        plan: a Plan or its file, run as it is. Without one, the keywords of gpuwise.step_settings.RunSettings say how a step is
            run (micro_batch, accumulate, precision, threads and so on), and what they leave open is chosen.
        epochs, steps, samples, tokens: how long, one of them; None: as planned, or one epoch.
        run: the folder of checkpoints, log and report; a run in it that has not ended is continued. "auto": runs/<job>. None
            keeps nothing.
        resume: True: there must be a run to continue; False: there must be none.
        seed: of weights and of the order of data; 0.
        save_every: "10min" or seconds between checkpoints; None chooses them from what a save takes and `interruptions`.
        keep: newest checkpoints kept, beside the best; 2.
        interruptions: a day, to be expected; None: one.
        evaluate_every: steps between evaluations; None: at the end, or once an epoch where `monitor` needs it.
        monitor: "max:accuracy" or "min:loss", whose best checkpoint is kept.
        patience: evaluations without a better one, after which the run stops early; None: never.
        time_limit: "11h" or seconds; the run is saved and ends before.
        preemption: whose notices are listened to: auto | aws | gcp | azure | none.
        on_nonfinite: "stop" or "skip" a step whose loss is not finite.
        writers: of curves: "tensorboard", "wandb".
        log: a file for the log, where not in the run's folder.
        progress: auto | panel | plain | silent.

    Attributes:
        job, strategy, settings: what is run.
        forecast: of a step; None where there can be none.
        reasons: of what was chosen.
        folder: of the run.
        model: once it has begun.
        result: once it has ended.

    Raises JobError where the plan is for another job or the job fails, InputError, and what `forecast` raises.
    """

    def __init__(self, job: str | Job, plan: str | os.PathLike[str] | Plan | None = None, **keywords: Unpack[TrainKeywords]):
        from gpuwise.job.dependencies import require
        from gpuwise.plan.file import load_plan

        requested = step_keywords(keywords, plan)
        sizes = named_sizes(requested)
        if plan is not None and not isinstance(plan, Plan):
            plan = load_plan(plan)
        self.plan = plan
        if plan is not None:
            check_same_sizes(plan, sizes)
        wait_passively()  # before PyTorch is loaded
        require("torch", purpose="train")
        from gpuwise.runtime import Training

        host = HostSettings.from_dict(requested) if plan is None else plan.host
        self.settings = train_settings(keywords, plan, host=host, job_argument=job if isinstance(job, str) else "")
        run = keywords.get("run")
        here = this_device()
        self.reason_notes: tuple[Note, ...] = ()
        if plan is not None:
            self.job = planned_job(job, plan)
            check_device(plan, here.chip)
            self.strategy = plan.strategy
            self.settings = in_folder(self.settings, run, self.job, self.strategy)
            self.forecast = forecast_here(JobSource(self.job, "", {}), self.strategy, here, host)
        else:
            self.job, source = job_to_run(job, sizes)
            named = named_strategy(self.job, requested, here, self.settings)
            self.settings = in_folder(self.settings, run, self.job, named)
            self.strategy, self.reason_notes, self.forecast = chosen_strategy(
                named, requested, source, here, self.settings, self.job
            )
            self.reason_notes = (*batch_reason(self.job, requested, self.settings, self.strategy), *self.reason_notes)
        self._training: Training = Training(
            self.job,
            self.strategy,
            self.settings,
            device=here.torch_device,
            forecast=self.forecast,
            notes=self.reason_notes,
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
