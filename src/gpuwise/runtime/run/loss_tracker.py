"""LossTracker: processes the loss of each step."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import NamedTuple

from gpuwise.errors import JobError
from gpuwise.runtime.build.program import Program
from gpuwise.runtime.data import MicroBatchLoader
from gpuwise.runtime.data.loader import Positions
from gpuwise.runtime.health import LossEvent, write_bad_batch
from gpuwise.runtime.run.checkpoint_manager import RunCheckpoints
from gpuwise.runtime.run.health import RunHealth
from gpuwise.runtime.run.reporter import Reporter
from gpuwise.runtime.run.run_state import LossHistory
from gpuwise.runtime.run.settings import TrainSettings
from gpuwise.runtime.run.update_guard import NonFiniteCause
from gpuwise.runtime.show import StepRecord


class StepRow(NamedTuple):
    """The figures of a step in the log, without its loss; see StepRecord.

    Attributes:
        positions: epoch and first sample of each micro-batch, of all ranks.
        parts: names of the parts of the loss.
        cause: cause of a non-finite step, if known.
    """

    now_s: float
    step: int
    learning_rate: float
    step_time_s: float
    data_s: float
    gradient_norm: float | None
    positions: Positions
    parts: tuple[str, ...]
    cause: NonFiniteCause | None = None


class LossTracker:
    """Logs the losses of a run, and ends it at a non-finite loss if the settings require that.

    The first finite loss opens the files of the run.

    Attributes:
        loss: latest known finite loss; NaN before the first.
        parts: named parts of the latest known loss.
        started: whether a step of this process had a finite loss.
    """

    def __init__(
        self,
        program: Program,
        loader: MicroBatchLoader,
        settings: TrainSettings,
        history: LossHistory,
        *,
        reporter: Reporter,
        checkpoints: RunCheckpoints,
        health: RunHealth,
    ):
        self.history = history
        self.parts: dict[str, float] = {}
        self.started = False
        self._job, self._strategy, self._settings, self._loader = program.job, program.strategy, settings, loader
        self._reporter, self._checkpoints, self._health = reporter, checkpoints, health

    @property
    def loss(self) -> float:
        return self.history.last

    def add(self, row: StepRow, values: list[float]) -> None:
        """Adds a step with its loss and the parts of the loss. Raises JobError when the run cannot continue."""
        loss = values[0]
        event = self.history.watch.see(row.step, loss, what=row.cause.text if row.cause else "")
        if math.isfinite(loss):
            if not self.started:
                self._start(loss)
            self.history.last = loss
        if row.parts:
            self.parts = dict(zip(row.parts, values[1:], strict=True))
        samples = row.step * self._strategy.global_batch
        self._reporter.log.step(
            StepRecord(
                row.now_s,
                row.step,
                samples,
                self._loader.epochs(samples),
                loss,
                row.learning_rate,
                row.step_time_s,
                row.data_s,
                row.gradient_norm,
                self._health.memory_bytes,
                self.parts if row.parts else None,
            )
        )
        if event is not None:
            self._tell(event, row)

    def _start(self, loss: float) -> None:
        """Opens the files of the run at its first finite loss, and starts the time to the first save."""
        if not self._reporter.begun:
            self._checkpoints.check()  # the optimizer has its state only now
        self.started = True
        if not self._reporter.begun:
            self.history.first = loss
            self._reporter.begin()
        self._reporter.log_notes()
        self._checkpoints.start()

    def _tell(self, event: LossEvent, row: StepRow) -> None:
        """Reports a non-finite loss or a spike."""
        if event.first:
            self._reporter.tell(event.text, event.kind, step=event.step, loss=event.loss)
        if event.kind != "nonfinite":
            return
        saved = self._save_position(event, row)
        # The loss scale of fp16 adapts by trial, but no scale helps against NaN in the data.
        skips = self._settings.on_nonfinite == "skip"
        if event.ends or (row.cause is not None and row.cause.of_data and not skips):
            name, half = self._job.name or "the job", self._strategy.precision in ("amp-fp16", "bf16", "fp16")
            before = "the first step" if math.isnan(self.loss) else f"the last good one was {self.loss:.6g}"
            what = f"the loss of {name} is {event.loss}" if row.cause is None else f"{name}: {row.cause.text}"
            ways = [
                "a lower learning rate in the Job",
                "--precision amp-bf16 or fp32" if half else "--on-nonfinite skip leaves it out",
            ]
            raise JobError(f"{what} at step {event.step}; {before}.{saved}", row.cause.ways_out if row.cause else ways)

    def _save_position(self, event: LossEvent, row: StepRow) -> str:
        """Writes the samples of the step to the folder of the run. Returns a sentence, or ""."""
        folder = self._reporter.folder
        if folder is None or not self._reporter.begun:
            return ""
        with suppress(OSError):  # a full disk must not hide the original problem
            where = self._loader.where(row.positions)
            path = write_bad_batch(folder.path, where, loss=event.loss, step=event.step, seed=self._settings.seed)
            return f" Its data is named in {path}."
        return ""
