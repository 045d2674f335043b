"""Before a run takes hold of its data and its model: what cannot be trained is refused, and the process is prepared."""

from __future__ import annotations

import torch

from gpuwise.errors import InputError, UnsupportedError
from gpuwise.job import Job
from gpuwise.notes import Note
from gpuwise.runtime.build.host_memory import keep_freed_memory
from gpuwise.runtime.build.host_threads import apply_threads, unusable
from gpuwise.runtime.build.program import Program
from gpuwise.runtime.checkpoint.program_state import seed_everything
from gpuwise.runtime.run.save_checks import rehearse_optimizer
from gpuwise.runtime.run.settings import TrainSettings
from gpuwise.step_settings import job_word
from gpuwise.strategy import StepFacts, Strategy, check_techniques


def check_strategy(strategy: Strategy, settings: TrainSettings) -> None:
    """Raises InputError or UnsupportedError for a strategy that cannot be trained here."""
    if not isinstance(strategy, Strategy):
        raise InputError(f"train needs a Strategy or a Plan, got a {type(strategy).__name__}.")
    if strategy.mode != "train":
        raise InputError("a strategy of mode infer cannot be trained.", ["--mode train"])
    if strategy.mesh.devices != 1:
        accumulation = strategy.accumulation * strategy.mesh.data_parallel
        raise UnsupportedError(
            f"this strategy is for {strategy.mesh.devices} devices; train runs on one.",
            [
                f"the same global batch on one device: --accumulate {accumulation}",
                f"plan for this machine: gpuwise plan {job_word(settings.job_argument)} --on here",
            ],
        )
    check_techniques(strategy, StepFacts(skips=settings.on_nonfinite == "skip"))


def check_skips(program: Program, settings: TrainSettings) -> None:
    """Raises UnsupportedError for steps that are to be skipped where a job updates before its loss is known."""
    if program.own_step is not None:
        job = program.job.name or "the job"
        check_techniques(program.strategy, StepFacts(job, own_step=True, skips=settings.on_nonfinite == "skip"))


def prepare_process(job: Job, strategy: Strategy, settings: TrainSettings, device: torch.device) -> list[Note]:
    """Settings of the whole process. Returns what could not be done."""
    if device.type == "cpu":
        keep_freed_memory()
    notes = [*apply_threads(settings.host), *unusable(strategy, device, host=settings.host)]
    if settings.folder is not None:
        rehearse_optimizer(job, strategy)
    seed_everything(settings.seed)
    return notes
