"""The number of optimizer steps of a run."""

from __future__ import annotations

import math
from dataclasses import replace

from gpuwise.errors import InputError, JobError
from gpuwise.job import Job
from gpuwise.notes import Note
from gpuwise.notes.training import micro_batches_left_over, trained_for_one_epoch
from gpuwise.runtime.data import MicroBatchLoader
from gpuwise.runtime.run.folder import RunIdentity
from gpuwise.runtime.run.settings import TrainSettings
from gpuwise.strategy import Strategy


def of_the_run(settings: TrainSettings, saved: RunIdentity | None) -> TrainSettings:
    """The settings with the length of the run that they continue, where they name none. saved: the content of its run.json."""
    named = any(length is not None for length in (settings.steps, settings.samples, settings.tokens, settings.epochs))
    return settings if named or saved is None else replace(settings, steps=saved["steps"])


def count_steps(job: Job, loader: MicroBatchLoader, strategy: Strategy, settings: TrainSettings) -> tuple[int, list[Note]]:
    """The optimizer steps of a run, at least one, and notes on assumptions. Samples and tokens are rounded up to whole steps;
    of epochs, micro-batches that fill no last step are left out.

    Raises JobError when the length of an epoch is unknown, InputError for tokens of a job without tokens.
    """
    if settings.steps is not None:
        return int(settings.steps), []
    if settings.samples is not None:
        return math.ceil(settings.samples / strategy.global_batch), []
    if settings.tokens is not None:
        if job.tokens_per_sample is None:
            raise InputError(
                f"{job.name or 'the job'} counts {job.sample_unit}s, not tokens.",
                ["--samples or --epochs", "tokens_per_sample=... in the Job"],
            )
        return math.ceil(settings.tokens / (job.tokens_per_sample * strategy.global_batch)), []
    micro_batches = loader.micro_batches_per_epoch
    if micro_batches is None:
        raise JobError("nothing says how many samples an epoch of this job has.", ["samples=... in the Job", "--steps N"])
    notes = [] if settings.epochs else [trained_for_one_epoch()]
    steps, left_over = divmod(int((settings.epochs or 1) * micro_batches), strategy.accumulation * strategy.mesh.data_parallel)
    if steps and left_over:
        notes.append(micro_batches_left_over(left_over=left_over))
    return max(1, steps), notes
