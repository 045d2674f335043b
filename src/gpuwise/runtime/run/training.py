"""Training: a run from its first step to its last, or to where it is stopped. One step a turn; now and then it looks around."""

from __future__ import annotations

import atexit
import math
import weakref
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import NamedTuple

import torch

from gpuwise.cost.forecast import Forecast
from gpuwise.errors import GpuwiseError, InputError, JobError, UnsupportedError
from gpuwise.job import Job
from gpuwise.notes import Note
from gpuwise.notes.data import data_did_not_come
from gpuwise.results.training import TrainResult
from gpuwise.runs.attempt import Attempt
from gpuwise.runtime.checkpoint import export_weights
from gpuwise.runtime.interruption import ReadGivenUp, StopRequest
from gpuwise.runtime.ranks import ALONE_IN_RUN, RunRanks
from gpuwise.runtime.ranks.comparison import check_same_end
from gpuwise.runtime.run import metrics
from gpuwise.runtime.run.exporting import export_checkpoint
from gpuwise.runtime.run.parts import RunParts, start_run
from gpuwise.runtime.run.settings import TrainSettings
from gpuwise.runtime.run.summary import Ending, conclude, write_page
from gpuwise.strategy import Strategy

LOOK_EVERY_S = 0.25  # between steps the loop looks at the clock alone; this often it looks around

# A loop that was left and is still referred to (in a notebook) ends with its process, while that still can save.
_running: weakref.WeakSet[Generator[TrainedStep, None, None]] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    for steps in list(_running):
        steps.close()


class TrainedStep(NamedTuple):
    """The item that an iteration over Training yields after each step.

    Attributes:
        step: optimizer steps so far.
        steps: optimizer steps of the whole run.
        samples: samples so far.
        loss: latest known loss; on a GPU up to four steps old.
        learning_rate: learning rate of the step.
        parts: named parts of the loss.
    """

    step: int
    steps: int
    samples: int
    loss: float
    learning_rate: float
    parts: Mapping[str, float] = {}


class Training:
    """A job's run under a strategy, on one device of this machine, or of one rank among several.

        training = Training(job, strategy, TrainSettings(epochs=3, folder=Path("runs/digits")))
        for step in training: ...        # or training.run()
        training.result

    Leaving the loop early ends the run as a stop signal would: saved, where it has a folder, and ready to be continued.

    Arguments:
        forecast: of this strategy on this device, to be shown next to what is measured.
        plan: that is carried out, to be kept with the run.
        notes: what the user should know; the run adds its own.
        ranks: the ranks of the run, of which this process is one; a process alone by default.
        setup_s: seconds that its preparation took so far.

    Attributes:
        step, steps: optimizer steps done, and in all; 0 before the run begins.
        model: once it has begun.
        result: once it has ended.

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
        plan: Mapping[str, object] | None = None,
        notes: Sequence[Note] = (),
        ranks: RunRanks = ALONE_IN_RUN,
        setup_s: float = 0.0,
    ):
        self.job, self.strategy, self.settings = job, strategy, settings or TrainSettings()
        self.device, self.forecast, self._plan, self._notes = torch.device(device), forecast, plan, notes
        self._ranks, self._setup_s = ranks, setup_s
        self.step = self.steps = 0
        self.result: TrainResult | None = None
        self._run: RunParts | None = None
        self._ending = Ending()

    @property
    def model(self) -> torch.nn.Module:
        """As it is now, or as the last pass left it where another did not begin; averages are put in its place by evaluations
        and exports alone. Raises InputError before the run has begun.
        """
        return self.result.model if self._run is None and self.result is not None else self._begun.program.model

    @property
    def _begun(self) -> RunParts:
        if self._run is None:
            raise InputError("the run has not begun: there is no model yet.", ["run() it, or take a step: for step in ..."])
        return self._run

    def run(self) -> TrainResult:
        """All of it. Returns what came of it."""
        for _ in self:
            pass
        assert self.result is not None
        return self.result

    def export(self, path: Path) -> Path:
        """Writes the plain weights as they are now, averages in place of parameters where the job keeps them.

        The file is one of safetensors, for transformers, timm and other readers of those. Before the first step, and of
        several ranks, the weights are those of the newest checkpoint in the run's folder. Returns the path. Raises InputError,
        JobError where the weights are not finite, UnsupportedError for several ranks without a folder.
        """
        if (self._run is None or self._ranks.own.several) and self.settings.folder is not None:
            return export_checkpoint(self.job, self.settings.folder, path)
        if self._ranks.own.several:
            raise UnsupportedError(
                "several ranks export the weights of a checkpoint, and a run without a folder has none.",
                ["--run FOLDER", "leave out --no-run"],
            )
        run = self._begun
        if problem := run.checkpoints.state.not_finite():
            raise JobError(
                f"the weights of {self.job.name or 'the job'} are not exported: {problem}.",
                ["a checkpoint from before, if the run has a folder", "a lower learning rate in the Job"],
            )
        with run.program.average.in_place() if run.program.average is not None else nullcontext():
            return export_weights(run.program.model, path)

    def __iter__(self) -> Iterator[TrainedStep]:
        steps = self._steps()
        _running.add(steps)
        return steps

    def _steps(self) -> Generator[TrainedStep, None, None]:
        """Sets the run up, takes its steps, and concludes it, however it ends."""
        self._run, self._ending = None, Ending()
        folder = self.settings.folder if self._ranks.own.leads else None
        attempt = Attempt(folder, setup_s=self._setup_s, ranks=self._ranks.own.size)
        self._setup_s = 0.0  # a second run of this object has none of it
        with attempt.noted(), self._ranks.speaking(), ExitStack() as stack:
            stack.push(self._failed)  # left last: the log has its end by then
            self._ranks.connect()
            run = self._run = start_run(
                self.job,
                self.strategy,
                self.settings,
                self.device,
                forecast=self.forecast,
                plan=self._plan,
                notes=self._notes,
                ranks=self._ranks,
                attempt=attempt,
                stack=stack,
            )
            self._ranks.on_failure(run.note_failure)
            self.step, self.steps = run.meter.before, run.meter.steps
            try:
                yield from self._loop(run)
            except GeneratorExit:
                if self.step < self.steps:
                    self._ending = Ending("the loop was left", self._ending.request)
                    check_same_end(run.ranks, self.step)
                self._finish(run)
                raise
            self._finish(run)

    def _failed(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """A run that failed leaves its page, too."""
        if isinstance(error, GpuwiseError) and self._run is not None:
            write_page(self._run)

    def _loop(self, run: RunParts) -> Iterator[TrainedStep]:
        """Steps until the last one, or until something ends the run."""
        meter, stepper, losses, decisions, stall = run.meter, run.stepper, run.losses, run.decisions, run.health.stall
        look_s = -math.inf
        if self.step >= run.evaluations.due_at:  # the run was stopped before it
            self._evaluate(run)
        meter.fetch()
        for self.step in range(meter.before + 1, meter.steps + 1):
            try:
                stepper.take(self.step)  # data, forward, backward, update
            except ReadGivenUp as given_up:
                return self._end_without_data(run, given_up)
            stall.beat("caller")
            meter.leave()
            yield TrainedStep(self.step, meter.steps, meter.samples, losses.loss, stepper.rate.value, losses.parts)
            meter.back()
            now_s = meter.now_s
            if now_s >= look_s or decisions.due(self.step, now_s) or self.step >= run.evaluations.due_at:
                if self._look_around(run):
                    return
                look_s = min(now_s + LOOK_EVERY_S, run.checkpoints.due_s)
                meter.fetch()
        stepper.settle()

    def _look_around(self, run: RunParts) -> bool:
        """Display, evaluation, checkpoint, stop. Returns whether the run ends here."""
        meter, last = run.meter, self.step == run.meter.steps
        run.health.stall.beat()
        run.health.look()
        run.checkpoints.look()
        run.attempt.saved(run.checkpoints.last_step, step=self.step)
        run.copies.look()
        if run.settings.writers:
            run.reporter.scalars(meter.step, metrics.scalars(run))
        if run.rank_reporter is not None:
            run.rank_reporter.look()
        evaluates = not last and self.step >= run.evaluations.due_at
        request = run.decisions.stops(self.step, evaluates=evaluates)
        self._tell_notices(run)
        saved_best = evaluates and request is None and self._evaluate(run)
        if run.reporter.display.due(meter.now_s) or last or request:
            run.reporter.display.show(metrics.progress(run))
        if request is not None:
            self._end_by(run, request)
        elif run.evaluations.over and not last:
            self._ending = Ending("early stop")
        elif run.decisions.saves(self.step) and not last and not saved_best:
            run.stepper.settle()
            run.checkpoints.save(self.step)
        return self._ending.reason is not None

    def _evaluate(self, run: RunParts) -> bool:
        """The job's metrics; the best of them is kept. Returns whether the run was saved for that."""
        run.health.stall.beat("evaluation")
        values = run.evaluations.run(self.step, run.program, reporter=run.reporter, meter=run.meter, ranks=run.ranks)
        try:
            best = run.evaluations.seen(self.step, values)
        except InputError:  # a metric that is not there: known now, and no reason to lose what was trained
            if run.checkpoints.begun:
                run.stepper.settle()
                run.checkpoints.save_last(self.step)
            raise
        if best and run.checkpoints.manager is not None:
            run.stepper.settle()
            run.checkpoints.save(self.step, best=True)
            return True
        return False

    def _end_without_data(self, run: RunParts, given_up: ReadGivenUp) -> None:
        """The run is to end, and the data of its next step does not come: it ends as it was after the step before.

        Other ranks are within that step, so that theirs cannot be saved. Raises JobError then.
        """
        waits = run.loader.waits_for()
        self.step -= 1
        self._tell_notices(run)
        note = data_did_not_come(step=self.step + 1, waited_s=given_up.silent_s, source=waits or "")
        if run.ranks.several:
            raise JobError(f"{note.text.rstrip('.')}; the checkpoint before stands.", ["start again: the run goes on from it"])
        run.reporter.note(note, "data")
        self._end_by(run, given_up.request)

    def _end_by(self, run: RunParts, request: StopRequest) -> None:
        self._ending = Ending(request.text, request)
        run.reporter.log.write("interrupted", {"step": self.step, "kind": request.kind, "why": request.text})

    def _tell_notices(self, run: RunParts) -> None:
        for note in run.stop.take_notes():
            run.reporter.tell(note, "notice")

    def _finish(self, run: RunParts) -> None:
        """The last evaluation and checkpoint, and what came of it all."""
        run.stepper.end()
        if self._ending.reason is None and run.evaluations.done_at != self.step:
            self._evaluate(run)
        run.health.stall.beat("end")
        if run.checkpoints.begun and self._ending.saves:
            run.checkpoints.save_last(self.step)
            run.health.look()
        if run.settings.copy_to is not None:
            run.health.stall.beat("save")  # its copy may take as long
        run.copies.finish(run.stop.left_s(run.meter.now_s))
        self.result = conclude(run, self._ending)
        self._ranks.done()
