"""The account of a run: what displays and curves show, and what it comes to in the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from gpuwise.atomic import written_whole
from gpuwise.errors import GpuwiseError
from gpuwise.report.run_page import run_page
from gpuwise.results.training import ForecastCheck, MemoryCheck, TrainResult
from gpuwise.runtime.run.equipment import Equipment
from gpuwise.runtime.show import LastCheckpoint, ProgressUpdate, read_log

SLOW_DATA_SHARE = 0.2  # of the wall time: above it the user is told that data loading holds the run up
# On a CPU the process is measured, with the code of its libraries and the copy a checkpoint is written from: only of large
# steps does that tell of the step itself.
TELLING_BYTES = 2**30
HOUR_S = 3600.0


def update(its: Equipment, loss: float) -> ProgressUpdate:
    """The run as it is now."""
    meter, checkpoints, forecast = its.meter, its.checkpoints, its.forecast
    last = checkpoints.last if checkpoints is not None else None
    return ProgressUpdate(
        step=meter.step,
        steps=its.steps,
        samples=meter.samples,
        loss=loss,
        step_time_s=meter.recent_step_time_s,
        samples_per_s=meter.steps_per_s * its.strategy.global_batch,
        remaining_s=meter.remaining_s,
        learning_rate=its.rate.value,
        mfu=mfu(its, meter.recent_step_time_s),
        memory_bytes=its.memory_bytes,
        memory_capacity_bytes=forecast.memory.capacity_bytes if forecast else None,
        data_share=meter.data_share,
        usd_spent=usd(its, its.spent_s),
        usd_left=usd(its, meter.remaining_s),
        forecast=forecast.step_time_s if forecast else None,
        checkpoint=None if last is None else LastCheckpoint(last[0], meter.now_s - last[1]),
        checkpoint_problem=checkpoints.problem if checkpoints is not None else None,
        metrics=its.evaluations.metrics,
    )


def scalars(its: Equipment, parts: Mapping[str, float]) -> dict[str, float]:
    """What curves are drawn of besides the log. parts: named numbers that the loss came with."""
    meter = its.meter
    found = {
        "loss": its.good_loss,
        "learning_rate": its.rate.value,
        "step_time_s": meter.step_time_s,
        "samples_per_s": meter.steps_per_s * its.strategy.global_batch,
        "memory_bytes": its.memory_bytes,
        "mfu": mfu(its, meter.step_time_s),
    }
    found |= {f"loss/{name}": value for name, value in parts.items()}
    return {name: float(value) for name, value in found.items() if value is not None}


def mfu(its: Equipment, step_time_s: float) -> float | None:
    """Model operations against the device's peak, from those that the forecast counted."""
    forecast = its.forecast
    if forecast is None or forecast.mfu is None or step_time_s <= 0:
        return None
    return forecast.mfu * forecast.step_time_s.value / step_time_s


def usd(its: Equipment, seconds: float) -> float | None:
    price = its.settings.usd_per_hour
    return None if price is None else price * seconds / HOUR_S


def conclude(its: Equipment, loss: float, parts: Mapping[str, float]) -> TrainResult:
    """What came of the run, told to the display, the log, the writers and the report."""
    meter, forecast, strategy = its.meter, its.forecast, its.strategy
    if meter.data_share > SLOW_DATA_SHARE:
        delivered = meter.steps_per_s * strategy.global_batch / meter.data_share
        its.notes.append(
            _said(
                its,
                f"{meter.data_share:.0%} of the time went into waiting for data, which came at "
                f"{delivered:.3g} samples a second; a forecast leaves that out unless "
                "--loader-samples-per-s says so.",
            )
        )
    if its.request is not None and its.request.note:
        its.notes.append(_said(its, its.request.note))
    if its.log.problem:
        its.notes.append(_said(its, its.log.problem))
    unsaved = tuple(_unsaved(its))
    its.program.model.eval()
    step_time, peak_bytes = meter.step_time, its.peak_memory_bytes()
    result = TrainResult(
        job=its.job.name,
        host=its.settings.host,
        device=str(its.program.device),
        strategy=strategy,
        steps=meter.step,
        samples=meter.samples,
        first_loss=its.first_loss,
        last_loss=loss,
        loss_parts=dict(parts),
        step_time=step_time,
        samples_per_s=meter.steps_per_s * strategy.global_batch,
        data_share=meter.data_share,
        wall_s=its.spent_s,
        peak_memory_bytes=peak_bytes,
        metrics=dict(its.evaluations.metrics),
        stopped=_kind(its),
        stop_reason=its.stopped,
        synthetic=its.loader.synthetic,
        notes=tuple(its.notes),
        forecast=None
        if forecast is None or not step_time.steps
        else ForecastCheck(
            forecast.step_time_s.value,
            forecast.step_time_s.low,
            forecast.step_time_s.high,
            step_time.median_s,
            available=1.0 if its.neighbours is None else its.neighbours.available(),
        ),
        memory_check=_memory_check(its, peak_bytes),
        log_path=None if its.log.path is None or not its.begun else str(its.log.path),
        run_folder=None if its.folder is None or not its.begun else str(its.folder.path),
        resumed_from=its.start or None,
        checkpoints=None if its.checkpoints is None else its.checkpoints.told(),
        best=its.evaluations.best,
        usd=usd(its, its.spent_s),
        skipped_steps=its.watch.nonfinite,
        spikes=its.watch.spikes,
        mfu=mfu(its, step_time.median_s),
        learning_rate=its.rate.value,
        model=its.program.model,
        unsaved=unsaved,
        job_argument=its.settings.job_argument,
    )
    its.log.write("summary", result.to_dict())
    problem = _write_report(its)
    if problem is None:
        return result
    return replace(result, notes=(*result.notes, _said(its, problem)), unsaved=(*unsaved, problem))


def _unsaved(its: Equipment) -> Iterator[str]:
    """What of the run is not on the disk, though it was to be: its last checkpoint, its log."""
    checkpoints, step = its.checkpoints, its.meter.step
    saves = its.request is None or its.request.save  # else there was no time for it, which is said elsewhere
    if checkpoints is not None and its.begun and saves and (checkpoints.last is None or checkpoints.last[0] != step):
        yield checkpoints.problem or f"no checkpoint of step {step}."
    if its.log.problem:
        yield its.log.problem


def _kind(its: Equipment) -> str:
    """How the run ended."""
    if its.stopped is None:
        return "finished"
    if its.stopped == "early stop":
        return "early stop"
    return "time limit" if its.request is not None and its.request.kind == "time limit" else "interrupted"


def write_page(its: Equipment) -> str | None:
    """The run on one page, from its log. Returns a sentence where it could not."""
    if its.folder is None or not its.begun or its.log.path is None:
        return None
    try:
        with written_whole(its.folder.report) as file:
            file.write(run_page(read_log(its.log.path)).encode())
    except OSError as error:
        return f"the report of the run could not be written: {error.strerror or error}."
    except GpuwiseError as error:  # of a log that is none any more
        return f"the report of the run could not be written: {error.what}"
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return f"the report of the run could not be written: the log {its.log.path} has records that make no sense."
    return None


def _write_report(its: Equipment) -> str | None:
    """The run's page, then in run.json how it ended: a run that is killed before that is concluded when it is continued.

    Returns a sentence where it could not.
    """
    if its.folder is None or not its.begun or its.log.path is None:
        return None
    if problem := write_page(its):
        return problem
    try:
        its.folder.write_identity({**its.identity, "ended": _kind(its)})
    except OSError as error:
        return f"how the run ended could not be noted: {error.strerror or error}."
    return None


def _memory_check(its: Equipment, peak_bytes: int | None) -> MemoryCheck | None:
    if its.forecast is None or peak_bytes is None:
        return None
    expected_bytes = its.forecast.memory.peak_allocated_bytes
    if its.program.device.type == "cpu" and expected_bytes < TELLING_BYTES:
        return None
    return MemoryCheck(expected_bytes, peak_bytes)


def _said(its: Equipment, note: str) -> str:
    its.shown.note(note)
    return note
