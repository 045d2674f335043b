"""Trainer: runs a job on this machine, under a plan or settings, with its forecast."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from gpuwise.api.plain_arguments import plainly
from gpuwise.api.rank_start import check_launch, chosen_by_first, folder_of_first, joined, mesh_to_run
from gpuwise.api.run_batch import batch_reason
from gpuwise.api.run_start import (
    Here,
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
from gpuwise.api.train_keywords import AUTO, TrainKeywords, in_folder, step_keywords, train_settings
from gpuwise.hardware.detect.ranks import leads_run, rank_environment
from gpuwise.hardware.waiting import wait_passively
from gpuwise.notes import Note, sentences
from gpuwise.notes.job import OF_TRAINING
from gpuwise.plan.types import Plan
from gpuwise.runs.attempt import failure_noted
from gpuwise.step_settings import RunSettings, named_sizes
from gpuwise.strategy import HostSettings, Strategy

if TYPE_CHECKING:
    import torch

    from gpuwise.cost import Forecast
    from gpuwise.job import Job
    from gpuwise.runtime import TrainedStep, Training, TrainResult, TrainSettings
    from gpuwise.runtime.ranks import RunRanks


@plainly
def train(job: str | Job, plan: str | os.PathLike[str] | Plan | None = None, **keywords: Unpack[TrainKeywords]) -> TrainResult:
    """Runs a job on this machine, with its forecast beside the measurements.

    Arguments and errors are those of Trainer; this function runs all of its steps.
    """
    return Trainer(job, plan, **keywords).run()


class Trainer:
    """The run of a job on this machine, under a plan or settings; in a process that torchrun, srun or a launcher of Kubernetes
    has started, one rank of the run, with `mesh` for all of them.

        trainer = gpuwise.Trainer(job, plan, epochs=3, run="runs/digits")
        result = trainer.run()                      # or step by step:
        for step in trainer: print(step.step, step.loss)

    Arguments:
        plan: a Plan or the path of its file. Without one, the keywords of gpuwise.step_settings.RunSettings (micro_batch,
            accumulate, precision, threads and so on) set the strategy, and open settings are chosen.
        epochs, steps, samples, tokens: length of the run, one of them; None takes the plan's, or one epoch.
        run: folder of checkpoints, log and report. An unfinished run in it is continued. "auto" is runs/<job>; None stores
            nothing.
        copy_to: folder elsewhere, such as a mounted bucket: checkpoints and log are copied there, and a machine whose `run` has
            less goes on from it.
        resume: True requires a run to continue; False requires that there is none.
        seed: seed of the weights and of the order of the data; 0 by default.
        save_every: "10min" or seconds between checkpoints; None derives it from the time of a save and `interruptions`.
        keep: number of newest checkpoints to keep, beside the best; 2 by default.
        interruptions: expected interruptions a day; None takes one.
        evaluate_every: steps between evaluations; None evaluates at the end, or once an epoch if `monitor` needs it.
        monitor: "max:accuracy" or "min:loss", whose best checkpoint is kept.
        patience: the run stops early after this many evaluations without improvement; None never stops early.
        time_limit: "11h" or seconds; the run is saved and ends before that.
        preemption: source of preemption notices: auto | aws | gcp | azure | none.
        on_nonfinite: "stop" or "skip" a step whose loss is not finite.
        writers: writers of curves: "tensorboard", "wandb".
        log: path of the log, if it is not in the run's folder.
        progress: display of the progress: auto | panel | plain | silent.

    Attributes:
        job, strategy, settings: the job, its strategy, and the settings of the run.
        forecast: forecast of a step; None if it is not possible.
        reasons: reasons for the chosen settings.
        folder: folder of the run.
        model: the model, once the run has begun.
        result: the result, once the run has ended.

    Raises JobError if the plan is for another job or the job fails, InputError, and the errors of `forecast`.
    """

    @plainly
    def __init__(self, job: str | Job, plan: str | os.PathLike[str] | Plan | None = None, **keywords: Unpack[TrainKeywords]):
        began_s, run = time.perf_counter(), keywords.get("run")
        with failure_noted(None if run == AUTO or not leads_run() else run):
            self._training = self._training_of(job, plan, keywords, began_s)

    def _training_of(
        self, job: str | Job, plan: str | os.PathLike[str] | Plan | None, keywords: TrainKeywords, began_s: float
    ) -> Training:
        """Sets the attributes, and returns the run. began_s: start of its preparation, on the clock of perf_counter."""
        from gpuwise.job.dependencies import require
        from gpuwise.plan.file import load_plan

        requested = step_keywords(keywords, plan)
        sizes = named_sizes(requested)
        if plan is not None and not isinstance(plan, Plan):
            plan = load_plan(plan)
        self.plan = plan
        if plan is not None:
            check_same_sizes(plan, sizes)
        environment = rank_environment()
        wait_passively()  # before PyTorch is loaded
        require("torch", purpose="train")
        from gpuwise.runtime import Training

        host = HostSettings.from_dict(requested) if plan is None else plan.host
        self.settings = train_settings(keywords, plan, host=host, job_argument=job if isinstance(job, str) else "")
        check_launch(mesh_to_run(requested, plan), environment, self.settings.job_argument)
        ranks, device = joined(environment)
        self.reason_notes: tuple[Note, ...] = ()
        self.forecast: Forecast | None = None
        with ranks.speaking():
            here = this_device() if environment else this_device().with_threads(host.threads)  # ranks divide all of them
            self._prepare(job, plan, requested, keywords.get("run"), here, ranks)
        return Training(
            self.job,
            self.strategy,
            self.settings,
            device=device or here.torch_device,
            forecast=self.forecast,
            notes=(*self.reason_notes, *self._notes_of_job(), *self._values_not_known()),
            plan=None if plan is None else plan.to_dict(),
            ranks=ranks,
            setup_s=time.perf_counter() - began_s,
        )

    def _prepare(
        self,
        job: str | Job,
        plan: Plan | None,
        requested: RunSettings,
        run: str | os.PathLike[str] | None,
        here: Here,
        ranks: RunRanks,
    ) -> None:
        """Sets job, strategy, settings and forecast. Of several ranks, rank 0 chooses what depends on its machine."""
        if plan is not None:
            self.job = planned_job(job, plan)
            check_device(plan, here.chip)
            self.strategy = plan.strategy
            self._set_folder(run, self.strategy, ranks)
            planned, notes = JobSource(self.job, "", {}), here.notes(plan.strategy.mesh)
            _, self.reason_notes, self.forecast = chosen_by_first(
                ranks, lambda: (plan.strategy, notes, forecast_here(planned, plan.strategy, here, self.settings.host))
            )
            return
        self.job, source = job_to_run(job, named_sizes(requested))
        named = named_strategy(self.job, requested, here, self.settings)
        self._set_folder(run, named, ranks)
        self.strategy, reasons, self.forecast = chosen_by_first(
            ranks, lambda: chosen_strategy(named, requested, source, here, self.settings, self.job)
        )
        self.reason_notes = (*batch_reason(self.job, requested, self.settings, self.strategy), *reasons)

    def _set_folder(self, run: str | os.PathLike[str] | None, strategy: Strategy, ranks: RunRanks) -> None:
        """Sets the folder of the settings."""

        def with_folder(settings: TrainSettings) -> TrainSettings:
            return in_folder(settings, run, self.job, strategy)

        environment = rank_environment()
        if environment is None:
            self.settings = with_folder(self.settings)
        else:
            self.settings = folder_of_first(ranks, environment, self.settings, with_folder)

    def _notes_of_job(self) -> list[Note]:
        """What a named model is trained without, or on."""
        return [note for note in self.job.assumptions if isinstance(note, Note) and note.kind in OF_TRAINING]

    def _values_not_known(self) -> list[Note]:
        """What the forecast had to guess of the data, which may be why the run takes another time."""
        return [note for note in (self.forecast.assumption_notes if self.forecast else ()) if note.kind == "value-not-known"]

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons for the chosen settings, as sentences."""
        return sentences(self.reason_notes)

    @property
    def folder(self) -> Path | None:
        return self.settings.folder

    @property
    def model(self) -> torch.nn.Module:
        """The model in its current state. There is none before the first step."""
        return self._training.model

    @property
    def result(self) -> TrainResult | None:
        return self._training.result

    def __iter__(self) -> Iterator[TrainedStep]:
        return iter(self._training)

    def run(self) -> TrainResult:
        """Runs all steps and returns the result."""
        return self._training.run()

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Writes the current weights as a safetensors file that transformers and timm load, and returns its path.

        If the job keeps averages, they replace the parameters. Before the first step, the weights are those of the newest
        checkpoint in the run's folder.
        """
        return self._training.export(Path(path))
