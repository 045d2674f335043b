"""The single parts of a run, as its settings want them."""

from __future__ import annotations

import platform
import socket
from collections.abc import Callable
from typing import TypeVar

import torch

from gpuwise.cost.forecast import Forecast
from gpuwise.job import Job
from gpuwise.runs.attempt import Attempt
from gpuwise.runtime.build.failure import job_failure
from gpuwise.runtime.build.program import Program
from gpuwise.runtime.data import MicroBatchLoader
from gpuwise.runtime.data.order import WHOLE, DataShare
from gpuwise.runtime.parallel.world import World
from gpuwise.runtime.ranks import Ranks
from gpuwise.runtime.run.checkpoint_manager import CheckpointManager, RunCheckpoints
from gpuwise.runtime.run.folder import RunFolder
from gpuwise.runtime.run.health import RunHealth
from gpuwise.runtime.run.meter import Meter
from gpuwise.runtime.run.settings import TrainSettings
from gpuwise.runtime.show import LogStream, RunLog, is_stream
from gpuwise.strategy import Mesh, Strategy
from gpuwise.version import __version__

T = TypeVar("T")


def log_of(settings: TrainSettings, folder: RunFolder | None) -> RunLog:
    """In the file that the settings name, else in the run's folder; a pipe or a device that they name gets a copy."""
    path, usual = settings.log_path, None if folder is None else folder.log
    if path is not None and is_stream(path):
        return RunLog(usual, copy=LogStream(path))
    return RunLog(path or usual)


def loader_of(
    job: Job, strategy: Strategy, settings: TrainSettings, device: torch.device, world: World | None
) -> MicroBatchLoader:
    share = WHOLE if world is None else DataShare(world.data_rank, world.mesh.data_parallel)
    return MicroBatchLoader(job, strategy, settings.host, seed=settings.seed, device=device, share=share)


def manager_of(folder: RunFolder, settings: TrainSettings, device: torch.device, ranks: Ranks, mesh: Mesh) -> CheckpointManager:
    return CheckpointManager(
        folder.checkpoints,
        device,
        keep=settings.keep,
        save_every_s=settings.save_every_s,
        interruptions_per_day=settings.interruptions_per_day,
        ranks=ranks,
        mesh=mesh,
    )


def on_nonfinite(program: Program, settings: TrainSettings) -> str:
    """fp16 finds its loss scale by trying: a loss that overflowed is skipped, and the scale halved."""
    return "skip" if program.scaler.is_enabled() else settings.on_nonfinite


def header(
    program: Program, settings: TrainSettings, meter: Meter, forecast: Forecast | None, attempt: Attempt
) -> dict[str, object]:
    """What the log begins with: what runs, where and how."""
    return {
        "job": program.job.name,
        "parameters": sum(p.numel() for p in program.model.parameters()),
        "strategy": {**program.strategy.to_dict(), **settings.host.to_dict()},
        "device": str(program.device),
        "threads": torch.get_num_threads(),
        "seed": settings.seed,
        "steps": meter.steps,
        "versions": {"gpuwise": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "settings": settings.to_dict(),
        "forecast": forecast and forecast.to_dict(),
        "resumed_from": meter.before or None,
        "began": attempt.began,
        "host": socket.gethostname(),
    }


def close(checkpoints: RunCheckpoints, health: RunHealth) -> None:
    """What is being written is waited for, and what has come up since the last look is told."""
    checkpoints.wait()
    if checkpoints.begun:
        health.look()


def blaming(job: Job, doing: str, part: object, call: Callable[[], T]) -> T:
    """Turns any error of the job's code into one that names its line."""
    try:
        return call()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the user's own code may raise anything
        raise job_failure(error, job, doing=doing, part=part) from error
