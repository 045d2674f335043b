"""Training: a run from its first step to its last, or to where it is stopped. One step a turn; looks around now and then."""

from __future__ import annotations

import atexit
import math
import weakref
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gpuwise.cost.forecast import Forecast
from gpuwise.errors import GpuwiseError, InputError, JobError
from gpuwise.job import Job
from gpuwise.results.training import TrainResult
from gpuwise.runtime.checkpoint import export_weights
from gpuwise.runtime.interruption import ReadGivenUp, StopRequest
from gpuwise.runtime.run import account
from gpuwise.runtime.run.equipment import Equipment
from gpuwise.runtime.run.evaluation import evaluate
from gpuwise.runtime.run.exporting import export_checkpoint
from gpuwise.runtime.run.settings import TrainSettings
from gpuwise.runtime.run.stepping import Stepper
from gpuwise.strategy import Strategy
from gpuwise.units import format_duration

LOOK_EVERY_S = 0.25  # between steps the loop looks at the clock alone; this often it looks around

# A loop that was left and is still referred to (in a notebook) ends with its process, while that still can save.
_running: weakref.WeakSet[Generator[Any, None, None]] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    for steps in list(_running):
        steps.close()


class TrainedStep(NamedTuple):
    """What iterating gives after each step. loss: the latest that is known, on a GPU of up to four steps before; parts: the
    named numbers that it came with."""

    step: int
    steps: int
    samples: int
    loss: float
    learning_rate: float
    parts: Mapping[str, float] = {}


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

    def __init__(
        self,
        job: Job,
        strategy: Strategy,
        settings: TrainSettings | None = None,
        *,
        device: str | torch.device = "cpu",
        forecast: Forecast | None = None,
        plan: Mapping[str, Any] | None = None,
        notes: Sequence[str] = (),
    ):
        self.job, self.strategy, self.settings = job, strategy, settings or TrainSettings()
        self.device, self.forecast, self._plan, self._notes = torch.device(device), forecast, plan, notes
        self.step = self.steps = 0
        self.result: TrainResult | None = None
        self._model: torch.nn.Module | None = None

    @property
    def model(self) -> torch.nn.Module:
        """As it is now; averages are put in its place by evaluations and exports alone.

        Raises InputError before the run has begun.
        """
        if self._model is None:
            raise InputError("the run has not begun: there is no model yet.", ["run() it, or take a step: for step in ..."])
        return self._model

    def run(self) -> TrainResult:
        """All of it. Returns what came of it."""
        for _ in self:
            pass
        assert self.result is not None
        return self.result

    def export(self, path: Path) -> Path:
        """Writes the plain weights as they are now, averages in place of parameters where the job keeps them, as a
        safetensors file for transformers, timm and whatever else reads those; before the first step, those of the newest
        checkpoint in the run's folder. Returns its path. Raises InputError, and JobError where the weights are not finite."""
        if self._model is None and self.settings.folder is not None:
            return export_checkpoint(self.job, self.settings.folder, path)
        model, average = self.model, self._with.program.average
        if problem := self._with.not_finite():
            raise JobError(
                f"the weights of {self.job.name or 'the job'} are not exported: {problem}.",
                ["a checkpoint from before, if the run has a folder", "a lower learning rate in the Job"],
            )
        with average.in_place() if average is not None else nullcontext():
            return export_weights(model, path)

    def __iter__(self) -> Iterator[TrainedStep]:
        steps = self._steps()
        _running.add(steps)
        return steps

    def _steps(self) -> Generator[TrainedStep, None, None]:
        self._model = None
        with ExitStack() as stack:
            stack.push(self._failed)  # left last: the log has its end by then
            self._with = Equipment(
                self.job,
                self.strategy,
                self.settings,
                self.device,
                forecast=self.forecast,
                plan=self._plan,
                notes=self._notes,
                stack=stack,
            )
            self._model = self._with.program.model
            self._stepper = Stepper(self._with)
            self.step, self.steps = self._with.start, self._with.steps
            try:
                yield from self._loop()
            except GeneratorExit:
                if self.step < self.steps:
                    self._with.stopped = "the loop was left"
                self._finish()
                raise
            self._finish()

    def _failed(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """A run that failed leaves its page, too."""
        if isinstance(error, GpuwiseError) and self._model is not None:
            account.write_page(self._with)

    def _loop(self) -> Iterator[TrainedStep]:
        """Steps until the last one, or until something ends the run."""
        its, meter, stepper = self._with, self._with.meter, self._stepper
        look_s = -math.inf
        if self.step >= its.evaluations.due_at:  # the run was stopped before it
            self._evaluate()
        meter.fetch()
        for self.step in range(its.start + 1, its.steps + 1):
            try:
                stepper.take(self.step)
            except ReadGivenUp as given_up:
                return self._without_data(given_up)
            its.stall.beat("caller")
            meter.leave()
            yield TrainedStep(self.step, its.steps, meter.samples, stepper.loss, its.rate.value, stepper.parts)
            meter.back()
            now_s = meter.now_s
            if now_s >= look_s or its.stop.pending or now_s >= its.stop.look_s or self.step >= its.evaluations.due_at:
                if self._look_around():
                    return
                look_s = now_s + LOOK_EVERY_S
                if its.checkpoints is not None:
                    look_s = min(look_s, its.checkpoints.due_s)
                meter.fetch()
        stepper.settle()

    def _look_around(self) -> bool:
        """Display, evaluation, checkpoint, stop. Returns whether the run ends here."""
        its, meter, last = self._with, self._with.meter, self.step == self._with.steps
        its.stall.beat()
        its.look()
        if its.settings.writers:
            its.writers.scalars(meter.step, account.scalars(its, self._stepper.parts))
        evaluates = not last and self.step >= its.evaluations.due_at
        next_s = meter.recent_step_time_s + (its.evaluation_s if evaluates else 0.0)
        request = its.stop.check(meter.now_s, next_s, its.checkpoints.save_s if its.checkpoints else 0.0)
        for note in its.stop.take_notes():
            its.tell(note, "notice")
        if evaluates and request is None:
            self._evaluate()
        if its.shown.due(meter.now_s) or last or request:
            its.shown.show(account.update(its, self._stepper.loss))
        if request is not None:
            self._end_by(request)
        elif its.evaluations.over and not last:
            its.stopped = "early stop"
        elif its.checkpoints is not None and not last and meter.now_s >= its.checkpoints.due_s:
            self._stepper.settle()
            its.save(self.step)
        return its.stopped is not None

    def _without_data(self, given_up: ReadGivenUp) -> None:
        """The run is to end, and the data of its next step does not come: it ends as it was after the step before."""
        its = self._with
        waits = its.loader.waits_for()
        self.step -= 1
        for note in its.stop.take_notes():
            its.tell(note, "notice")
        text = (
            f"the data of step {self.step + 1} had not come for {format_duration(given_up.silent_s)}"
            + (f" from {waits}" if waits else "")
            + "; the run ends without it."
        )
        its.notes.append(text)
        its.tell(text, "data")
        self._end_by(given_up.request)

    def _end_by(self, request: StopRequest) -> None:
        its = self._with
        its.request, its.stopped = request, request.text
        its.log.write("interrupted", {"step": self.step, "kind": request.kind, "why": request.text})

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
        try:
            best = its.evaluations.seen(self.step, metrics)
        except InputError:  # a metric that is not there: known now, and no reason to lose what was trained
            if its.checkpoints is not None and its.begun:
                self._stepper.settle()
                its.save_last(self.step)
            raise
        if best and its.checkpoints is not None:
            self._stepper.settle()
            its.save(self.step, best=True)

    def _finish(self) -> None:
        """The last evaluation and checkpoint, and what came of it all."""
        its = self._with
        self._stepper.settle()
        self._stepper.end()
        if its.stopped is None and its.evaluations.done_at != self.step:
            self._evaluate()
        its.stall.beat("end")
        if its.checkpoints is not None and its.begun and (its.request is None or its.request.save):
            its.save_last(self.step)
        self.result = account.conclude(its, self._stepper.loss, self._stepper.parts)
