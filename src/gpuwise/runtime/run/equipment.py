"""What a run works with: opened in order, closed in reverse, and used by the loop."""

from __future__ import annotations

import math
import platform
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, TypeVar

import torch

from gpuwise.cost.forecast import Forecast
from gpuwise.errors import InputError, UnsupportedError
from gpuwise.job import Job
from gpuwise.report.json import finite
from gpuwise.runtime.build.buffers import sound_buffers
from gpuwise.runtime.build.failure import job_failure
from gpuwise.runtime.build.host_memory import keep_freed_memory
from gpuwise.runtime.build.host_threads import apply_threads, unusable
from gpuwise.runtime.build.program import build
from gpuwise.runtime.checkpoint import plain_name
from gpuwise.runtime.checkpoint.program_state import seed_everything
from gpuwise.runtime.data import MicroBatchLoader
from gpuwise.runtime.health import LossWatch, MemoryView, Stall, StallWatch
from gpuwise.runtime.interruption import ReadWatch, Stop, StopRequest, source_for
from gpuwise.runtime.run.checkpoint_manager import CheckpointManager
from gpuwise.runtime.run.evaluation import Evaluations
from gpuwise.runtime.run.folder import RunFolder, identity_of
from gpuwise.runtime.run.length import count_steps
from gpuwise.runtime.run.memory import PeakMemory
from gpuwise.runtime.run.meter import Meter
from gpuwise.runtime.run.neighbours import Neighbours
from gpuwise.runtime.run.resuming import Parts, to_continue
from gpuwise.runtime.run.save_checks import check_saveable, rehearse_optimizer
from gpuwise.runtime.run.schedule import LearningRate, factor_of
from gpuwise.runtime.run.settings import TrainSettings
from gpuwise.runtime.show import Fanout, LogStream, RunLog, display, is_stream, writer
from gpuwise.step_settings import job_word
from gpuwise.strategy import Strategy
from gpuwise.version import __version__

T = TypeVar("T")


class Equipment:
    """The job's data and program, the clock, and everything that watches, shows and keeps.

    start: steps done before, by the run that this one continues; steps: in all. begun: files may be written. started: a step
    of this process had a finite loss, and the clock for saves runs. request, stopped: what ended the run before its last
    step; None while nothing has.
    """

    def __init__(
        self,
        job: Job,
        strategy: Strategy,
        settings: TrainSettings,
        device: torch.device,
        *,
        forecast: Forecast | None,
        plan: Mapping[str, Any] | None,
        notes: Sequence[str],
        stack: ExitStack,
    ):
        _check_strategy(strategy, settings)
        self.job, self.strategy, self.settings, self.forecast = job, strategy, settings, forecast
        self.notes = list(notes)
        self.begun = self.started = False
        self.request: StopRequest | None = None
        self.stopped: str | None = None
        self.good_loss = self.first_loss = math.nan

        self.folder = None if settings.folder is None else RunFolder(settings.folder)
        if self.folder is not None:
            stack.enter_context(self.folder.locked())  # before anything is changed that another run here may rely on
            self.notes += self.folder.exposure()
        if device.type == "cpu":
            keep_freed_memory()
        self.notes += [*apply_threads(settings.host), *unusable(strategy, device, host=settings.host)]
        if self.folder is not None:
            rehearse_optimizer(job, strategy)
        seed_everything(settings.seed)
        self.log = stack.enter_context(self._make_log())
        self.shown = stack.enter_context(display(settings.progress, title=job.name))
        curves = settings.started_in if self.folder is None else self.folder.path
        self.writers = Fanout([writer(name, curves) for name in settings.writers], say=self.tell)
        stack.callback(self.writers.close)

        self._memory = PeakMemory(device)
        self.loader = self._blaming(
            "opening its data",
            job.data,
            lambda: MicroBatchLoader(job, strategy, settings.host, seed=settings.seed, device=device),
        )
        stack.callback(self.loader.close)
        self.notes += self.loader.notes
        self._loader_notes = len(self.loader.notes)  # more come while an iterable is read
        self.steps, assumed = count_steps(job, self.loader, strategy, settings)
        self.notes += assumed
        self.program = self._blaming("building its model", job.model, lambda: build(job, strategy, device))
        assert self.program.optimizer is not None
        if self.program.own is not None and settings.on_nonfinite == "skip":
            raise UnsupportedError(
                f"{job.name or 'the job'} updates inside its own step, before the loss is known: none can be skipped.",
                ["--on-nonfinite stop", "skip the update in the job's own step"],
            )
        self._sound_buffers = sound_buffers(self.program.model)
        self.rate = LearningRate(self.program.optimizer, factor_of(job, self.steps))
        self.evaluations = Evaluations(job, strategy, settings, self.loader.micro_batches_per_epoch)
        self.watch = LossWatch(on_nonfinite=_patience_of_scaler(self.program.scaler, settings.on_nonfinite))
        self._parts = Parts(self.program, self.loader, self.evaluations, self.watch)

        self.checkpoints: CheckpointManager | None = None
        self.start, self._spent_before_s = 0, 0.0
        self.identity: dict[str, Any] = {}  # of a run that has a folder
        if self.folder is not None:
            self.identity = identity_of(job, strategy, settings, steps=self.steps, plan=plan)
            self.checkpoints = CheckpointManager(
                self.folder.checkpoints,
                device,
                keep=settings.keep,
                save_every_s=settings.save_every_s,
                interruptions_per_day=settings.interruptions_per_day,
            )
            stack.callback(self._close_checkpoints)
            checkpoint, told = to_continue(
                self.folder, self.checkpoints, self.identity, resume=settings.resume, steps=self.steps
            )
            self.notes += told
            if checkpoint is not None:
                before = self._parts.load(checkpoint)
                self.start, self._spent_before_s = checkpoint.step, before["spent_s"]
                self.first_loss, self.good_loss = before["first_loss"], before["last_loss"]
        self.batches = self.loader.steps()
        for note in self.notes:
            self.shown.note(note)
        self.meter = Meter(steps=self.steps, global_batch=strategy.global_batch, before=self.start)
        if self.checkpoints is not None:
            check_saveable(self._state(), self._meta())  # before anything is trained
        self.stop = stack.enter_context(Stop(time_limit_s=settings.time_limit_s, source=source_for(settings.preemption)))
        self._stalls: deque[Stall] = deque()
        self.stall = stack.enter_context(
            StallWatch(None if self.folder is None else self.folder.path, tell=self._stalled, waits_for=self.loader.waits_for)
        )
        stack.enter_context(ReadWatch(self.loader, self._ends_now))
        self.memory_bytes: int | None = None
        self.neighbours = Neighbours(torch.get_num_threads()) if device.type == "cpu" else None
        self.paused_s = self.evaluation_s = 0.0  # of the latest pause, of the latest evaluation
        if self.start:
            self._begin()

    def first_step_is_done(self, loss: float) -> None:
        """A step had a finite loss: from here on there is something to keep."""
        if self.checkpoints is not None and not self.begun:
            check_saveable(self._state(), self._meta())  # of the optimizer, which has had no state until now
        self.started = True
        if not self.begun:
            self.first_loss = loss
            self._begin()
        for note in self.notes:
            self.log.write("event", {"kind": "note", "text": note})
        if self.checkpoints is not None:
            self.checkpoints.started(now_s=self.meter.now_s)

    def _begin(self) -> None:
        """Opens what a run that fails in its first step must not have written."""
        self.begun = True
        if self.folder is not None:
            try:
                self.folder.write_identity(self.identity)
            except OSError as error:
                raise InputError(
                    f"cannot write to the run folder {self.folder.path}: {error.strerror or error}.",
                    ["another --run FOLDER", "--no-run keeps nothing"],
                ) from error
        header = self._header()
        self.log.open(header)
        if self.start:
            self.log.write("resumed", {"step": self.start})
        self.writers.open(header)

    def look(self) -> None:
        """What is done a few times a second: memory, stalls, finished saves, the disk."""
        self.memory_bytes = self._memory.now_bytes()
        self.stall.step_s = self.meter.recent_step_time_s
        if self.neighbours is not None and (note := self.neighbours.look(time.monotonic())):
            self.notes.append(note)
            self.tell(note, "note")
        for note in self.loader.notes[self._loader_notes :]:
            self._loader_notes += 1
            self.notes.append(note)
            self.tell(note, "note")
        while self._stalls:
            stall = self._stalls.popleft()
            self.log.write("event", {"kind": "stall", "text": stall.text, "step": self.meter.step, "phase": stall.phase})
        if self.checkpoints is None:
            return
        for record, said in self.checkpoints.look(now_s=self.meter.now_s):
            if record:
                self.log.write("checkpoint", record)
            if said:
                self.tell(said, "checkpoint")

    def memory_view(self, batch: Any) -> MemoryView:
        """What is known of the run's memory, for when it has run out."""
        return MemoryView(
            forecast=self.forecast.memory if self.forecast else None,
            measured_peak_bytes=self._memory.bytes(),
            example=self._example(),
            batch=batch,
            strategy=self.strategy,
            device=self.program.device,
        )

    def peak_memory_bytes(self) -> int | None:
        return self._memory.bytes()

    def save(self, step: int, *, best: bool = False, wait: bool = False) -> None:
        """A checkpoint of the run as it is after `step`."""
        checkpoints = self.checkpoints
        assert checkpoints is not None
        self.stall.beat("save")
        if problem := self.not_finite():
            checkpoints.problem = f"no checkpoint of step {step}: {problem}."
            self.tell(checkpoints.problem, "checkpoint")
            return
        self.timed(lambda: checkpoints.save(step, self._state(), self._meta(), best=best, wait=wait))
        self.look()

    def not_finite(self) -> str | None:
        """What of the weights is no longer finite, as a clause. Buffers that never were are as the model wants them."""
        if not self.program.parameters_are_finite():
            return "its parameters are no longer finite numbers"
        still = set(sound_buffers(self.program.model, self._sound_buffers))
        broken = [plain_name(name) for name in self._sound_buffers if name not in still]
        return f"no longer finite numbers are in its buffers {', '.join(broken[:5])}" if broken else None

    def save_last(self, step: int) -> None:
        """As `save`, and waits until it is on the disk. What an evaluation has just saved is not saved again."""
        assert self.checkpoints is not None
        self.checkpoints.wait()
        self.look()
        if self.checkpoints.last is None or self.checkpoints.last[0] != step:
            self.save(step, wait=True)

    @property
    def spent_s(self) -> float:
        """Seconds of the run, earlier parts included."""
        return self._spent_before_s + self.meter.wall_s

    def timed(self, call: Callable[[], T]) -> T:
        """Calls, and tells the clock that this was not training."""
        began_s = time.perf_counter()
        try:
            return call()
        finally:
            self.paused_s = time.perf_counter() - began_s
            self.meter.pause(self.paused_s)

    def epoch(self, samples: int) -> float | None:
        """Passes over the data so far."""
        whole = self.loader.samples_per_epoch
        return None if not whole else samples / whole

    def tell(self, text: str, kind: str = "event", **fields: Any) -> None:
        """Something that a person should know: on the display, in the log."""
        self.shown.note(text)
        self.log.write("event", {"kind": kind, "text": text, "step": fields.pop("step", self.meter.step), **fields})

    def _make_log(self) -> RunLog:
        """In the file that the settings name, else in the run's folder; a pipe or a device that they name gets a copy."""
        asked, usual = self.settings.log_path, None if self.folder is None else self.folder.log
        if asked is not None and is_stream(asked):
            return RunLog(usual, copy=LogStream(asked))
        return RunLog(asked or usual)

    def _header(self) -> dict[str, Any]:
        """What the log begins with: what runs, where and how."""
        versions = {"gpuwise": __version__, "torch": torch.__version__, "python": platform.python_version()}
        return {
            "job": self.job.name,
            "parameters": sum(p.numel() for p in self.program.model.parameters()),
            "strategy": {**self.strategy.to_dict(), **self.settings.host.to_dict()},
            "device": str(self.program.device),
            "threads": torch.get_num_threads(),
            "seed": self.settings.seed,
            "steps": self.steps,
            "versions": versions,
            "settings": self.settings.to_dict(),
            "forecast": self.forecast and self.forecast.to_dict(),
            "resumed_from": self.start or None,
        }

    def _meta(self) -> dict[str, Any]:
        """What a checkpoint says of the run, for whoever looks at it."""
        return finite({"metrics": self.evaluations.metrics, "best": self.evaluations.best, "run": self.identity})

    def _state(self) -> dict[str, Any]:
        return self._parts.state({"first_loss": self.first_loss, "last_loss": self.good_loss, "spent_s": self.spent_s})

    def _stalled(self, stall: Stall) -> None:
        """From the watch's own thread: a person is told at once, the log when the loop comes by."""
        self.shown.note(stall.text)
        self._stalls.append(stall)

    def _ends_now(self) -> StopRequest | None:
        """Why the run is to end, asked while its data does not come. From the watch's own thread."""
        now_s = time.perf_counter()
        if not self.stop.pending and now_s < self.stop.look_s:
            return None
        return self.stop.check(now_s, self.meter.recent_step_time_s, self.checkpoints.save_s if self.checkpoints else 0.0)

    def _example(self) -> Any:
        with suppress(Exception):  # the user's own code, and there may be no memory left for it
            return self.job.batch(self.strategy.micro_batch)
        return None

    def _close_checkpoints(self) -> None:
        assert self.checkpoints is not None
        self.checkpoints.wait()
        if self.begun:
            self.look()

    def _blaming(self, doing: str, part: object, call: Callable[[], T]) -> T:
        """Turns whatever the job's code raises into an error that names its line."""
        try:
            return call()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # the user's own code may raise anything
            raise job_failure(error, self.job, doing=doing, part=part) from error


def _check_strategy(strategy: Strategy, settings: TrainSettings) -> None:
    if not isinstance(strategy, Strategy):
        raise InputError(f"train needs a Strategy or a Plan, got a {type(strategy).__name__}.")
    if strategy.mode != "train":
        raise InputError("a strategy of mode infer cannot be trained.", ["--mode train"])
    if strategy.optimizer_in_backward and settings.on_nonfinite == "skip":
        raise InputError(
            "an optimizer in backward has updated parameters before the loss is known: no step can be skipped.",
            ["leave out --optimizer-in-backward", "--on-nonfinite stop"],
        )
    if strategy.mesh.devices != 1:
        accumulation = strategy.accumulation * strategy.mesh.data_parallel
        raise UnsupportedError(
            f"this strategy is for {strategy.mesh.devices} devices; train runs on one.",
            [
                f"the same global batch on one device: --accumulate {accumulation}",
                f"plan for this machine: gpuwise plan {job_word(settings.job_argument)} --on here",
            ],
        )


def _patience_of_scaler(scaler: torch.amp.GradScaler, on_nonfinite: str) -> str:
    """fp16 finds its loss scale by trying: a loss that overflowed is skipped, and the scale halved."""
    return "skip" if scaler.is_enabled() else on_nonfinite
