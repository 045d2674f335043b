"""Before a run takes hold of its data and its model: what cannot be trained is refused, and the process is prepared."""

from __future__ import annotations

import torch

from gpuwise.errors import InputError
from gpuwise.job import Job
from gpuwise.notes import Note
from gpuwise.runtime.build.host_memory import keep_freed_memory
from gpuwise.runtime.build.host_threads import apply_threads, unusable
from gpuwise.runtime.build.program import Program
from gpuwise.runtime.data.draws import seed_of
from gpuwise.runtime.devices.random_state import seed_everything
from gpuwise.runtime.parallel.world import World
from gpuwise.runtime.run.save_checks import rehearse_optimizer
from gpuwise.runtime.run.settings import TrainSettings
from gpuwise.step_settings import job_word
from gpuwise.strategy import Mesh, StepFacts, Strategy, check_techniques


def check_strategy(strategy: Strategy, settings: TrainSettings, *, ranks: int = 1) -> None:
    """Raises InputError or UnsupportedError for a strategy that so many ranks cannot train."""
    if not isinstance(strategy, Strategy):
        raise InputError(f"train needs a Strategy or a Plan, got a {type(strategy).__name__}.")
    if strategy.mode != "train":
        raise InputError("a strategy of mode infer cannot be trained.", ["--mode train"])
    check_ranks(strategy.mesh, ranks, settings.job_argument)
    check_techniques(strategy, StepFacts(skips=settings.on_nonfinite == "skip", priced=False))


def check_ranks(mesh: Mesh, ranks: int, job_argument: str) -> None:
    """Raises InputError for a mesh of another number of devices than there are ranks."""
    if mesh.devices == ranks:
        return
    if ranks == 1:
        raise InputError(
            f"the mesh {mesh} is of {mesh.devices} devices, and this is one process: a Job object cannot be sent to others.",
            [
                f"start this program in {mesh.devices} processes: torchrun --nproc-per-node {mesh.devices} PROGRAM",
                f"the command line, which starts them: gpuwise train {job_word(job_argument or 'FILE.py:job')} --mesh {mesh}",
            ],
        )
    raise InputError(
        f"the mesh {mesh} is of {mesh.devices} devices, and the launcher has started {ranks} ranks.",
        [f"--mesh dp={ranks}, or another mesh of {ranks} devices", f"start {mesh.devices} ranks"],
    )


def check_skips(program: Program, settings: TrainSettings) -> None:
    """Raises UnsupportedError for steps that are to be skipped where a job updates before its loss is known."""
    if program.own_step is not None:
        job = program.job.name or "the job"
        check_techniques(program.strategy, StepFacts(job, own_step=True, skips=settings.on_nonfinite == "skip"))


def seed_rank(seed: int, world: World) -> None:
    """Seeds what a rank draws while it trains, after all ranks have drawn the same initial weights.

    Ranks with the same samples, of a tensor-parallel group, draw the same; dropout of other ranks is their own.
    """
    if world.mesh.data_parallel * world.mesh.cp > 1:
        seed_everything(seed_of(seed, world.data_rank, world.coordinate("cp")))


def prepare_process(
    job: Job, strategy: Strategy, settings: TrainSettings, device: torch.device, *, core_share: int = 1
) -> list[Note]:
    """Settings of the whole process. Returns what could not be done.

    Arguments:
        core_share: ranks that share this machine's cores.
    """
    if device.type == "cpu":
        keep_freed_memory()
    notes = [*apply_threads(settings.host, core_share=core_share), *unusable(strategy, device, host=settings.host)]
    if settings.folder is not None:
        rehearse_optimizer(job, strategy)
    seed_everything(settings.seed)
    return notes
