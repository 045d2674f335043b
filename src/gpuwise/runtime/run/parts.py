"""The parts of a run, each of which owns its state, and the one place where they are put together."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeVar

import torch

from gpuwise.cost.forecast import Forecast
from gpuwise.job import Job
from gpuwise.notes import Note
from gpuwise.runtime.build.failure import job_failure
from gpuwise.runtime.build.program import Program, build
from gpuwise.runtime.data import MicroBatchLoader
from gpuwise.runtime.health import LossWatch
from gpuwise.runtime.interruption import ReadWatch, Stop, StopRequest, source_for
from gpuwise.runtime.run.checkpoint_manager import CheckpointManager, RunCheckpoints
from gpuwise.runtime.run.evaluation import Evaluations
from gpuwise.runtime.run.folder import RunFolder, RunIdentity, identity_of
from gpuwise.runtime.run.health import RunHealth
from gpuwise.runtime.run.length import count_steps
from gpuwise.runtime.run.loss_tracker import LossTracker
from gpuwise.runtime.run.memory import PeakMemory
from gpuwise.runtime.run.meter import Meter
from gpuwise.runtime.run.preparation import check_skips, check_strategy, prepare_process
from gpuwise.runtime.run.reporter import Reporter
from gpuwise.runtime.run.resume import checkpoint_to_continue
from gpuwise.runtime.run.run_state import LossHistory, RunState
from gpuwise.runtime.run.schedule import LearningRate, factor_of
from gpuwise.runtime.run.settings import TrainSettings
from gpuwise.runtime.run.stepper import Stepper
from gpuwise.runtime.run.update_guard import UpdateGuard
from gpuwise.runtime.show import LogStream, RunLog, display, is_stream, writer
from gpuwise.strategy import Strategy
from gpuwise.version import __version__

T = TypeVar("T")


@dataclass(frozen=True)
class RunParts:
    """The parts of a run, for its loop.

    Attributes:
        settings: settings of the run.
        forecast: forecast of its step; None without one.
        loader: the micro-batches of the job.
        program: the model, its forward and backward pass, its optimizer.
        stepper: takes a step.
        losses: losses of the steps so far.
        meter: the clock and the step counter.
        evaluations: the job's metrics on held-out data and their schedule.
        checkpoints: saves the state of the run.
        stop: whether a signal, a notice or a time limit ends the run.
        health: memory, stalls and other programs.
        reporter: display, log and curves.
    """

    settings: TrainSettings
    forecast: Forecast | None
    loader: MicroBatchLoader
    program: Program
    stepper: Stepper
    losses: LossTracker
    meter: Meter
    evaluations: Evaluations
    checkpoints: RunCheckpoints
    stop: Stop
    health: RunHealth
    reporter: Reporter


def start_run(
    job: Job,
    strategy: Strategy,
    settings: TrainSettings,
    device: torch.device,
    *,
    forecast: Forecast | None,
    plan: Mapping[str, object] | None,
    notes: Sequence[Note],
    stack: ExitStack,
) -> RunParts:
    """The parts of a run, ready for its next step. What has to be closed is put on `stack`."""
    check_strategy(strategy, settings)
    notes = list(notes)

    # 1. The folder is locked before anything is changed that another run in it may rely on.
    folder = None if settings.folder is None else RunFolder(settings.folder)
    if folder is not None:
        stack.enter_context(folder.locked())
        notes += folder.exposure()

    # 2. The process: memory, threads, random numbers.
    notes += prepare_process(job, strategy, settings, device)

    # 3. Log, display and writers: what is wrong with them is known before anything is trained.
    log = stack.enter_context(_log_of(settings, folder))
    shown = stack.enter_context(display(settings.progress, title=job.name))
    writers = [writer(name, settings.started_in if folder is None else folder.path) for name in settings.writers]

    # 4. Data and program. Their memory is counted from here on.
    memory = PeakMemory(device)
    loader = _blaming(job, "opening its data", job.data, lambda: _loader_of(job, strategy, settings, device))
    stack.callback(loader.close)
    steps, assumed = count_steps(job, loader, strategy, settings)
    notes += [*loader.notes, *assumed]
    program = _blaming(job, "building its model", job.model, lambda: build(job, strategy, device))
    assert program.optimizer is not None
    check_skips(program, settings)

    # 5. What is saved with the program. The learning rate is taken over before a checkpoint brings that of its step.
    rate = LearningRate(program.optimizer, factor_of(job, steps))
    evaluations = Evaluations(job, strategy, settings, loader.micro_batches_per_epoch)
    history = LossHistory(LossWatch(on_nonfinite=_on_nonfinite(program, settings)))
    state = RunState(program, loader, evaluations, history)

    # 6. The checkpoint to go on from, if there is one.
    manager: CheckpointManager | None = None
    identity: RunIdentity | None = None
    before, spent_before_s = 0, 0.0
    if folder is not None:
        identity = identity_of(job, strategy, settings, steps=steps, plan=plan)
        manager = _manager_of(folder, settings, device)
        checkpoint, resume_notes = checkpoint_to_continue(folder, manager, identity, resume=settings.resume, steps=steps)
        notes += resume_notes
        if checkpoint is not None:
            before, spent_before_s = checkpoint.step, state.load(checkpoint)

    # 7. The clock starts, and the user is told.
    meter = Meter(steps=steps, global_batch=strategy.global_batch, before=before, spent_before_s=spent_before_s)
    reporter = Reporter(
        shown,
        log,
        writers,
        meter=meter,
        folder=folder,
        identity=identity,
        header=_header(program, settings, meter, forecast),
        notes=notes,
    )
    stack.callback(reporter.writers.close)
    health = RunHealth(program, loader, memory, forecast=forecast.memory if forecast else None, reporter=reporter, meter=meter)
    checkpoints = RunCheckpoints(manager, state, reporter=reporter, meter=meter, stall=health.stall)
    stack.callback(_close, checkpoints, health)
    checkpoints.check()  # a state that cannot be saved is known before anything is trained

    # 8. From here on, signals, notices and deadlines are listened to, and a run that stands still is noticed.
    stop = stack.enter_context(Stop(time_limit_s=settings.time_limit_s, source=source_for(settings.preemption)))
    stack.enter_context(health)
    stack.enter_context(ReadWatch(loader, lambda: _ends_now(stop, meter, checkpoints)))

    # 9. The step itself. A run that is continued has its files already; another opens them after its first step.
    losses = LossTracker(program, loader, settings, history, reporter=reporter, checkpoints=checkpoints, health=health)
    guard = UpdateGuard(program, skips=settings.on_nonfinite == "skip")
    stepper = Stepper(
        program,
        loader,
        rate,
        guard,
        losses=losses,
        checkpoints=checkpoints,
        health=health,
        reporter=reporter,
        meter=meter,
    )
    if before:
        reporter.begin()
    return RunParts(
        settings, forecast, loader, program, stepper, losses, meter, evaluations, checkpoints, stop, health, reporter
    )


def _log_of(settings: TrainSettings, folder: RunFolder | None) -> RunLog:
    """In the file that the settings name, else in the run's folder; a pipe or a device that they name gets a copy."""
    path, usual = settings.log_path, None if folder is None else folder.log
    if path is not None and is_stream(path):
        return RunLog(usual, copy=LogStream(path))
    return RunLog(path or usual)


def _loader_of(job: Job, strategy: Strategy, settings: TrainSettings, device: torch.device) -> MicroBatchLoader:
    return MicroBatchLoader(job, strategy, settings.host, seed=settings.seed, device=device)


def _manager_of(folder: RunFolder, settings: TrainSettings, device: torch.device) -> CheckpointManager:
    return CheckpointManager(
        folder.checkpoints,
        device,
        keep=settings.keep,
        save_every_s=settings.save_every_s,
        interruptions_per_day=settings.interruptions_per_day,
    )


def _on_nonfinite(program: Program, settings: TrainSettings) -> str:
    """fp16 finds its loss scale by trying: a loss that overflowed is skipped, and the scale halved."""
    return "skip" if program.scaler.is_enabled() else settings.on_nonfinite


def _header(program: Program, settings: TrainSettings, meter: Meter, forecast: Forecast | None) -> dict[str, object]:
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
    }


def _close(checkpoints: RunCheckpoints, health: RunHealth) -> None:
    """What is being written is waited for, and what has come up since the last look is told."""
    checkpoints.wait()
    if checkpoints.begun:
        health.look()


def _ends_now(stop: Stop, meter: Meter, checkpoints: RunCheckpoints) -> StopRequest | None:
    """Why the run is to end, asked while its data does not come. From the watch's own thread."""
    now_s = time.perf_counter()
    if not stop.pending and now_s < stop.look_s:
        return None
    return stop.check(now_s, meter.recent_step_time_s, checkpoints.save_s)


def _blaming(job: Job, doing: str, part: object, call: Callable[[], T]) -> T:
    """Turns whatever the job's code raises into an error that names its line."""
    try:
        return call()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the user's own code may raise anything
        raise job_failure(error, job, doing=doing, part=part) from error
