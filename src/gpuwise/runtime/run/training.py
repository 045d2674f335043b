"""Training: a run from its first step to its last, or to where it is stopped. One step a turn; looks around now and then."""

from __future__ import annotations

import atexit
import math
import weakref
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gpuwise.cost.forecast import Forecast
from gpuwise.errors import GpuwiseError, JobError
from gpuwise.job import Job
from gpuwise.runtime.checkpoint import export_weights
from gpuwise.runtime.failure import job_failure
from gpuwise.runtime.health import LossEvent, write_bad_batch
from gpuwise.runtime.run.equipment import Equipment
from gpuwise.runtime.run.evaluation import evaluate
from gpuwise.runtime.run.losses import DeviceLosses
from gpuwise.runtime.run.result import TrainResult
from gpuwise.runtime.run.settings import TrainSettings
from gpuwise.strategy import Strategy

NAMED = 5  # parameters that a note names
LOOK_EVERY_S = 0.25  # between steps the loop looks at the clock alone; this often it looks around


# A loop that was left and is still referred to (in a notebook) ends with its process, while that still can save.
_running: weakref.WeakSet[Generator[Any, None, None]] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    for steps in list(_running):
        steps.close()


class TrainedStep(NamedTuple):
    """What iterating gives after each step. loss: the latest that is known, on a GPU of up to four steps before."""

    step: int
    steps: int
    samples: int
    loss: float
    learning_rate: float


class _Row(NamedTuple):
    """What the log has of a step beside its loss."""

    now_s: float
    step: int
    learning_rate: float
    step_time_s: float
    data_s: float
    gradient_norm: float | None


class Training:
    """A job's run under a strategy, on one device of this machine.

        training = Training(job, strategy, TrainSettings(epochs=3, folder=Path("runs/digits")))
        for step in training: ...        # or training.run()
        training.result

    Leaving the loop early ends the run as a stop signal would: saved, where it has a folder, and ready to be continued.

    Arguments:
        forecast: of this strategy on this device, to be shown next to what is measured. plan: that is
            carried out, to be kept with the run. notes: sentences to begin with.

    Attributes, once it has begun: step, steps, model. Afterwards: result.

    Raises JobError when the job's own code fails, its data is too short or its loss is no longer a finite number;
    InputError for settings that make no sense, or a folder that is another run's; UnsupportedError for several devices.
    """

    def __init__(self, job: Job, strategy: Strategy, settings: TrainSettings | None = None, *,
                 device: str | torch.device = "cpu", forecast: Forecast | None = None,
                 plan: Mapping[str, Any] | None = None, notes: Sequence[str] = ()):  # fmt: skip
        self.job, self.strategy, self.settings = job, strategy, settings or TrainSettings()
        self.device, self.forecast, self._plan, self._notes = torch.device(device), forecast, plan, notes
        self.step = self.steps = 0
        self.result: TrainResult | None = None
        self._loss = math.nan

    @property
    def model(self) -> torch.nn.Module:
        """As it is now; averages are put in its place by evaluations and exports alone."""
        return self._with.program.model

    def run(self) -> TrainResult:
        """All of it. Returns what came of it."""
        for _ in self:
            pass
        assert self.result is not None
        return self.result

    def export(self, path: Path) -> Path:
        """Writes the plain weights as they are now, averages in place of parameters where the job keeps them, as a
        safetensors file for transformers, timm and whatever else reads those. Returns its path. Raises InputError."""
        average = self._with.program.average
        with average.in_place() if average is not None else nullcontext():
            return export_weights(self.model, path)

    def __iter__(self) -> Iterator[TrainedStep]:
        steps = self._steps()
        _running.add(steps)
        return steps

    def _steps(self) -> Generator[TrainedStep, None, None]:
        with ExitStack() as stack:
            self._with = Equipment(self.job, self.strategy, self.settings, self.device, forecast=self.forecast,
                                   plan=self._plan, notes=self._notes, stack=stack)  # fmt: skip
            self.step, self.steps, self._loss = self._with.start, self._with.steps, self._with.good_loss
            self._device_losses: DeviceLosses[_Row] = DeviceLosses()
            # Where the loss is known before the update, a step that is no number is not taken.
            self._judges = self.device.type == "cpu" or self.settings.on_nonfinite == "skip"
            try:
                yield from self._loop()
            except GeneratorExit:
                self._with.stopped = "the loop was left"
                self._finish()
                raise
            self._finish()

    def _loop(self) -> Iterator[TrainedStep]:
        """Steps until the last one, or until something ends the run."""
        its, meter = self._with, self._with.meter
        look_s = -math.inf
        if self.step >= its.evaluations.due_at:  # the run was stopped before it
            self._evaluate()
        for self.step in range(its.start + 1, its.steps + 1):
            self._take_step()
            yield TrainedStep(self.step, its.steps, meter.samples, self._loss, its.rate.value)
            now_s = meter.now_s
            if now_s >= look_s or its.stop.pending or now_s >= its.stop.look_s or self.step >= its.evaluations.due_at:
                if self._look_around():
                    return
                look_s = now_s + LOOK_EVERY_S
                if its.keeper is not None:
                    look_s = min(look_s, its.keeper.due_s)
        for row, loss in self._device_losses.known(wait=True):
            self._know(row, loss)

    def _take_step(self) -> None:
        """Data, gradients, update."""
        its, meter, step = self._with, self._with.meter, self.step
        its.stall.beat("data")
        meter.fetch()
        try:
            micro_batches = next(its.batches)
        except Exception as error:  # the user's own code may raise anything
            if its.keeper is not None and its.begun:  # what was trained up to here is sound
                self._settle()
                its.save_last(step - 1)
            raise job_failure(error, self.job, doing=f"reading the data of step {step}",
                              part=self.job.data or self.job.batch) from error  # fmt: skip
        its.stall.beat("step")
        meter.begin()
        program = its.program
        try:
            its.rate.set(step - 1)
            loss = program.accumulate(micro_batches)
            if step == its.start + 1:
                its.notes += self._without_gradient()
            if self._judges:
                value = loss.item()
                if self._is_good(value):
                    program.update()
                else:
                    program.discard()
                    value = math.nan if math.isfinite(value) else value  # its gradients were no numbers
            else:
                program.update()
        except Exception as error:  # the user's own code may raise anything
            raise self._failed(error, micro_batches) from error
        meter.end()
        norm = program.gradient_norm
        row = _Row(meter.now_s, step, its.rate.value, meter.step_time_s, meter.data_s,
                   norm.item() if norm is not None and self._judges else None)  # fmt: skip
        if self._judges:
            self._know(row, value)
            return
        self._device_losses.put(row, loss)
        for known, value in self._device_losses.known():
            self._know(known, value)

    def _without_gradient(self) -> list[str]:
        """A sentence when parameters are trained that the loss does not depend on."""
        names = self._with.program.without_gradient()
        if not names:
            return []
        more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
        return [f"no gradient reaches {', '.join(names[:NAMED])}{more}: the loss does not depend on them, so they stay as they "
                "are; use them in the model's forward, or set requires_grad to False."]  # fmt: skip

    def _is_good(self, loss: float) -> bool:
        """Whether the update may be made. A loss scale that is too large is found, and lowered, by the update itself."""
        program = self._with.program
        if program.scaler.is_enabled():
            return True
        return math.isfinite(loss) and (self.settings.on_nonfinite == "stop" or program.gradients_are_finite())

    def _know(self, row: _Row, loss: float) -> None:
        """The loss of a step has become known."""
        its = self._with
        event = its.watch.see(row.step, loss)
        if row.step == its.start + 1 and event is None:
            its.first_step_is_done(loss)
        if math.isfinite(loss):
            its.good_loss = self._loss = loss
        samples = row.step * self.strategy.global_batch
        its.log.step(row.now_s, row.step, samples, its.epoch(samples), loss, row.learning_rate, row.step_time_s, row.data_s,
                     row.gradient_norm, its.memory_bytes)  # fmt: skip
        if event is not None:
            self._about(event)

    def _about(self, event: LossEvent) -> None:
        """A loss that is no number, or that jumped."""
        its = self._with
        if event.first:
            its.tell(event.text, event.kind, step=event.step, loss=event.loss)
        if event.kind != "nonfinite":
            return
        saved = ""
        if its.folder is not None and its.begun:
            with suppress(OSError):  # a full disk must not hide what is wrong
                path = write_bad_batch(its.folder.path, its.feed.where(), loss=event.loss, step=event.step,
                                       seed=self.settings.seed)  # fmt: skip
                saved = f" Its data is named in {path}."
        if event.ends:
            half = self.strategy.precision in ("amp-fp16", "bf16")
            before = "the first step" if math.isnan(its.good_loss) else f"the last good one was {its.good_loss:.6g}"
            raise JobError(f"the loss of {self.job.name or 'the job'} is {event.loss} at step {event.step}; {before}.{saved}",
                           ["a lower learning rate in the Job",
                            "--precision amp-bf16 or fp32" if half else "--on-nonfinite skip leaves it out"])  # fmt: skip

    def _failed(self, error: Exception, micro_batches: list[Any]) -> GpuwiseError:
        its = self._with
        return job_failure(error, self.job, doing=f"step {self.step}", part=self.job.loss,
                           memory=its.memory_view(micro_batches))  # fmt: skip

    def _look_around(self) -> bool:
        """Display, evaluation, checkpoint, stop. Returns whether the run ends here."""
        its, meter, last = self._with, self._with.meter, self.step == self._with.steps
        its.look()
        evaluates = not last and self.step >= its.evaluations.due_at
        next_s = meter.recent_step_time_s + (its.evaluation_s if evaluates else 0.0)
        request = its.stop.check(meter.now_s, next_s, its.keeper.save_s if its.keeper else 0.0)
        for note in its.stop.take_notes():
            its.tell(note, "notice")
        if evaluates and request is None:
            self._evaluate()
        if its.shown.due(meter.now_s) or last or request:
            its.shown.show(its.update(self._loss))
        if request is not None:
            its.request, its.stopped = request, request.text
            its.log.write("interrupted", {"step": self.step, "kind": request.kind, "why": request.text})
        elif its.evaluations.over and not last:
            its.stopped = "early stop"
        elif its.keeper is not None and not last and meter.now_s >= its.keeper.due_s:
            self._settle()
            its.save(self.step)
        return its.stopped is not None

    def _settle(self) -> None:
        """Waits for losses on their way: nothing is saved that may be no number."""
        for row, loss in self._device_losses.known(wait=True):
            self._know(row, loss)

    def _evaluate(self) -> None:
        """The job's metrics; the best of them is kept."""
        its = self._with
        its.stall.beat("evaluation")
        metrics, problem = its.timed(lambda: evaluate(self.job, its.program))
        its.evaluation_s = its.paused_s
        if problem:
            its.notes.append(problem)
            its.tell(problem, "evaluation failed")
        if metrics:
            its.log.write("evaluation", {"step": self.step, "metrics": metrics})
            its.writers.scalars(self.step, {f"metrics/{name}": value for name, value in metrics.items()})
        if its.evaluations.seen(self.step, metrics) and its.keeper is not None:
            self._settle()
            its.save(self.step, best=True)

    def _finish(self) -> None:
        """The last evaluation and checkpoint, and what came of it all."""
        its = self._with
        self._settle()
        if its.stopped is None and its.evaluations.done_at != self.step:
            self._evaluate()
        its.stall.beat("end")
        if its.keeper is not None and its.begun and (its.request is None or its.request.save):
            its.save_last(self.step)
        self.result = its.conclude(self._loss)
