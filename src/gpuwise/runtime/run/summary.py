"""What a run comes to: its result, its page, and how it ended in its folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from gpuwise.atomic import written_whole
from gpuwise.errors import GpuwiseError, NotSavedError
from gpuwise.notes import Note
from gpuwise.notes.data import slow_data
from gpuwise.notes.training import not_written
from gpuwise.report.run_page import run_page
from gpuwise.results.run_status import DONE, FAILED, INTERRUPTED, StopReason
from gpuwise.results.training import ForecastCheck, MemoryCheck, StepTime, TrainResult
from gpuwise.runtime.interruption import StopRequest
from gpuwise.runtime.run.metrics import mfu, usd
from gpuwise.runtime.run.parts import RunParts
from gpuwise.runtime.show import read_log

SLOW_DATA_SHARE = 0.2  # of the wall time: above it the user is told that data loading holds the run up
# On a CPU the process is measured, with the code of its libraries and the copy a checkpoint is written from: only of large
# steps does that tell of the step itself.
TELLING_BYTES = 2**30


class Ending(NamedTuple):
    """The reason why a run ended before its last step.

    Attributes:
        reason: a signal, a sentence, or "early stop"; None if the run took all its steps.
        request: the stop request; None without one.
    """

    reason: str | None = None
    request: StopRequest | None = None

    @property
    def kind(self) -> str:
        """As in TrainResult.stopped."""
        if self.reason is None:
            return "finished"
        if self.reason == "early stop":
            return "early stop"
        return "time limit" if self.request is not None and self.request.kind == "time limit" else "interrupted"

    @property
    def saves(self) -> bool:
        """Whether there is time for a last checkpoint."""
        return self.request is None or self.request.save


def conclude(run: RunParts, ending: Ending) -> TrainResult:
    """The result of a run. It is logged, and in its folder there are its page and, in run.json, how it ended."""
    meter, reporter = run.meter, run.reporter
    if meter.data_share > SLOW_DATA_SHARE:
        delivered = meter.samples_per_s / meter.data_share
        _note(run, slow_data(share=meter.data_share, samples_per_s=delivered))
    if ending.request is not None and ending.request.note:
        _note(run, ending.request.note)
    if reporter.log.problem:
        _note(run, not_written(problem=reporter.log.problem))
    result = _result(run, ending, unsaved=tuple(_unsaved(run, ending)))
    reporter.log.write("summary", result.to_dict())
    if problem := write_page(run) or _write_ending(run, ending):
        result = _with_problem(run, result, problem)
    _end_attempt(run, ending, result)
    problems = [run.attempt.problem, run.copies.finish_record(run.stop.left_s(meter.now_s))]
    for problem in filter(None, problems):
        result = _with_problem(run, result, problem)
    if problems[1]:
        _end_attempt(run, ending, result)
    return result


def _end_attempt(run: RunParts, ending: Ending, result: TrainResult) -> None:
    run.attempt.end(
        _state(run, ending),
        step=run.meter.step,
        checkpoint_step=run.checkpoints.last_step,
        exit_code=result.exit_code,
        reason=_reason(ending, result),
    )


def _with_problem(run: RunParts, result: TrainResult, problem: str) -> TrainResult:
    """The result with a file that could not be written."""
    note = not_written(problem=problem)
    _note(run, note)
    return replace(result, typed_notes=(*result.typed_notes, note), unsaved=(*result.unsaved, problem))


def _state(run: RunParts, ending: Ending) -> str:
    """As in RunStatus. Without its last checkpoint a run has failed, unless there was no time for one."""
    if ending.saves and run.checkpoints.begun and run.checkpoints.last_step != run.meter.step:
        return FAILED
    return INTERRUPTED if ending.kind in ("interrupted", "time limit") else DONE


def _reason(ending: Ending, result: TrainResult) -> StopReason | None:
    """Why the run has ended as it did; None for one that took all its steps, and is on the disk."""
    if result.unsaved:
        return StopReason(NotSavedError.code, " ".join(dict.fromkeys(result.unsaved)))
    if ending.request is not None:
        return StopReason(ending.request.kind, ending.request.text)
    return None if ending.reason is None else StopReason(ending.kind if ending.kind == "early stop" else "left", ending.reason)


def _result(run: RunParts, ending: Ending, *, unsaved: tuple[str, ...]) -> TrainResult:
    meter, program, checkpoints, reporter = run.meter, run.program, run.checkpoints, run.reporter
    program.model.eval()
    step_time, peak_bytes = meter.step_time, run.health.peak_memory_bytes()
    return TrainResult(
        job=program.job.name,
        host=run.settings.host,
        device=str(program.device),
        strategy=program.strategy,
        steps=meter.step,
        samples=meter.samples,
        first_loss=run.losses.history.first,
        last_loss=run.losses.loss,
        loss_parts=dict(run.losses.parts),
        step_time=step_time,
        samples_per_s=meter.samples_per_s,
        data_share=meter.data_share,
        wall_s=meter.spent_s,
        peak_memory_bytes=peak_bytes,
        metrics=dict(run.evaluations.metrics),
        stopped=ending.kind,
        stop_reason=ending.reason,
        synthetic=run.loader.synthetic,
        typed_notes=tuple(reporter.notes),
        forecast=_forecast_check(run, step_time),
        memory_check=_memory_check(run, peak_bytes),
        log_path=None if reporter.log.path is None or not reporter.begun else str(reporter.log.path),
        run_folder=None if reporter.folder is None or not reporter.begun else str(reporter.folder.path),
        resumed_from=meter.before or None,
        checkpoints=None if checkpoints.manager is None else {**checkpoints.manager.summary(), **run.copies.summary()},
        best=None if run.evaluations.best is None else dict(run.evaluations.best),
        usd=usd(run, meter.spent_s),
        skipped_steps=run.losses.history.watch.nonfinite,
        spikes=run.losses.history.watch.spikes,
        mfu=mfu(run, step_time.median_s),
        learning_rate=run.stepper.rate.value,
        model=program.model,
        unsaved=unsaved,
        job_argument=run.settings.job_argument,
    )


def _note(run: RunParts, note: Note) -> None:
    """Shown, and among the notes of the result."""
    run.reporter.notes.append(note)
    run.reporter.display.note(note.text)


def _unsaved(run: RunParts, ending: Ending) -> Iterator[str]:
    """What of the run is not on the disk, though it was to be: its last checkpoint, the copy of that, its log."""
    checkpoints, step = run.checkpoints.manager, run.meter.step
    # Where there was no time for the last checkpoint, a note of its own says so.
    saves = checkpoints is not None and run.checkpoints.begun and ending.saves
    if checkpoints is not None and saves and (checkpoints.last is None or checkpoints.last[0] != step):
        yield checkpoints.problem or f"no checkpoint of step {step}."
    if run.copies.problem:
        yield run.copies.problem
    if run.reporter.log.problem:
        yield run.reporter.log.problem


def write_page(run: RunParts) -> str | None:
    """The run on one page, from its log. Returns a sentence where it could not be written."""
    reporter = run.reporter
    if reporter.folder is None or not reporter.begun or reporter.log.path is None:
        return None
    try:
        with written_whole(reporter.folder.report) as file:
            file.write(run_page(read_log(reporter.log.path)).encode())
    except OSError as error:
        return f"the report of the run could not be written: {error.strerror or error}."
    except GpuwiseError as error:  # of a log that is none any more
        return f"the report of the run could not be written: {error.what}"
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return f"the report of the run could not be written: the log {reporter.log.path} has records that make no sense."
    return None


def _write_ending(run: RunParts, ending: Ending) -> str | None:
    """How the run ended, in run.json: one that is killed before that is concluded when it is continued.

    Returns a sentence where it could not be written.
    """
    reporter = run.reporter
    if reporter.folder is None or reporter.identity is None or not reporter.begun or reporter.log.path is None:
        return None
    try:
        reporter.folder.write_identity({**reporter.identity, "ended": ending.kind})
    except OSError as error:
        return f"how the run ended could not be noted: {error.strerror or error}."
    return None


def _forecast_check(run: RunParts, step_time: StepTime) -> ForecastCheck | None:
    if run.forecast is None or not step_time.steps:
        return None
    expected = run.forecast.step_time_s
    return ForecastCheck(expected.value, expected.low, expected.high, step_time.median_s, available=run.health.free_share())


def _memory_check(run: RunParts, peak_bytes: int | None) -> MemoryCheck | None:
    if run.forecast is None or peak_bytes is None:
        return None
    expected_bytes = run.forecast.memory.peak_allocated_bytes
    if run.program.device.type == "cpu" and expected_bytes < TELLING_BYTES:
        return None
    return MemoryCheck(expected_bytes, peak_bytes)
