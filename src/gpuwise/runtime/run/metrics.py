"""The figures of a run as it is now: for its display, and for its curves."""

from __future__ import annotations

from gpuwise.runtime.run.parts import RunParts
from gpuwise.runtime.show import LastCheckpoint, ProgressUpdate

HOUR_S = 3600.0


def progress(run: RunParts) -> ProgressUpdate:
    meter, forecast, checkpoints = run.meter, run.forecast, run.checkpoints.manager
    last = checkpoints.last if checkpoints is not None else None
    return ProgressUpdate(
        step=meter.step,
        steps=meter.steps,
        samples=meter.samples,
        loss=run.losses.loss,
        step_time_s=meter.recent_step_time_s,
        samples_per_s=meter.samples_per_s,
        remaining_s=meter.remaining_s,
        learning_rate=run.stepper.rate.value,
        mfu=mfu(run, meter.recent_step_time_s),
        memory_bytes=run.health.memory_bytes,
        memory_capacity_bytes=forecast.memory.capacity_bytes if forecast else None,
        data_share=meter.data_share,
        usd_spent=usd(run, meter.spent_s),
        usd_left=usd(run, meter.remaining_s),
        forecast=forecast.step_time_s if forecast else None,
        checkpoint=None if last is None else LastCheckpoint(last[0], meter.now_s - last[1]),
        checkpoint_problem=checkpoints.problem if checkpoints is not None else None,
        metrics=run.evaluations.metrics,
        slowest=None if run.rank_reporter is None else run.rank_reporter.slowest(),
    )


def scalars(run: RunParts) -> dict[str, float]:
    """What curves are drawn of besides the log."""
    meter = run.meter
    values = {
        "loss": run.losses.loss,
        "learning_rate": run.stepper.rate.value,
        "step_time_s": meter.step_time_s,
        "samples_per_s": meter.samples_per_s,
        "memory_bytes": run.health.memory_bytes,
        "mfu": mfu(run, meter.step_time_s),
    }
    values |= {f"loss/{name}": value for name, value in run.losses.parts.items()}
    return {name: float(value) for name, value in values.items() if value is not None}


def mfu(run: RunParts, step_time_s: float) -> float | None:
    """Model operations against the device's peak, from those that the forecast counted."""
    forecast = run.forecast
    if forecast is None or forecast.mfu is None or step_time_s <= 0:
        return None
    return forecast.mfu * forecast.step_time_s.value / step_time_s


def usd(run: RunParts, seconds: float) -> float | None:
    """What the machine costs for so long; None where its price is not known."""
    price = run.settings.usd_per_hour
    return None if price is None else price * seconds / HOUR_S
