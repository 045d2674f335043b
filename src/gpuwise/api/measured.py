"""A step that `validate` has measured on this machine is forecast as it was measured."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from importlib import metadata

from gpuwise.api import history
from gpuwise.cost.calibration import PROVENANCE
from gpuwise.cost.forecast import Forecast, Interval
from gpuwise.hardware.types import Chip
from gpuwise.notes.step import measured_here
from gpuwise.results.validation import METHOD
from gpuwise.strategy import Strategy
from gpuwise.trace import Trace
from gpuwise.trace.digest import digest

# A machine differs from day to day by more than the steps of one run differ among themselves.
LEAST_SPREAD = 0.05
LATEST = 10  # measurements of a configuration that are looked at


def as_last_measured(forecast: Forecast, trace: Trace, strategy: Strategy, chip: Chip) -> Forecast:
    """The forecast with its time as last measured, where this configuration was measured on this machine; else as it is.

    Only what the same PyTorch ran with the same number of threads counts; and what ran while the machine was busy with
    something else only where there is nothing better.
    """
    if strategy.mesh.devices != 1 or not forecast.step_time_s.value or not os.path.exists(history.path()):
        return forecast
    name = digest(trace, strategy)
    entries = [entry for entry in history.entries(name) if entry.digest == name]
    if not entries:
        return forecast
    machine, version = machine_key(), torch_version()
    entries = [
        entry
        for entry in entries
        if (entry.machine, entry.chip, entry.torch, entry.method) == (machine, chip.id, version, METHOD)
        and _same_threads(entry)
    ][-LATEST:]
    quiet = [entry for entry in entries if not entry.disturbed]
    return preferring(forecast, quiet or entries) if entries else forecast


def preferring(forecast: Forecast, entries: list[history.HistoryEntry]) -> Forecast:
    """The forecast with the time of the last of these entries. Its interval spans what all of them found."""
    latest, model_s = entries[-1], forecast.step_time_s.value
    value = latest.median_s
    low = min(value * (1 - LEAST_SPREAD), *(entry.low_s for entry in entries))
    high = max(value * (1 + LEAST_SPREAD), *(entry.high_s for entry in entries))
    if latest.disturbed:  # how long it takes on a free machine is not known: what the model says stays possible
        low, high = min(low, forecast.step_time_s.low), max(high, forecast.step_time_s.high)
    factor, words = value / model_s, PROVENANCE["machine"]
    note = measured_here(
        date=latest.date[:10], measured_s=value, steps=latest.steps, model_s=model_s, disturbed=bool(latest.disturbed)
    )
    return replace(
        forecast,
        step_time_s=Interval(value, low, high),
        throughput=forecast.throughput / factor,
        mfu=None if forecast.mfu is None else forecast.mfu / factor,
        energy_j=None if forecast.energy_j is None else forecast.energy_j * factor,
        provenance={**forecast.provenance, "step_time_s": words},
        rests_on={words: 1.0},
        measured={"date": latest.date, "steps": latest.steps, "model_s": model_s},
        assumption_notes=(*forecast.assumption_notes, note),
    )


def machine_key() -> str:
    """This machine's hardware, as a short text that stays the same after a restart."""
    from gpuwise.hardware import detect

    return detect.machine_key(detect.detect())


def torch_version() -> str:
    """Of the PyTorch installed, without importing it; "" without one. What the history is kept and matched by: its own
    torch.__version__ says more in some wheels (2.11.0+cu130 of 2.11.0)."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""


def _same_threads(entry: history.HistoryEntry) -> bool:
    """Whether a step would run on as many threads now. Where PyTorch is not loaded, the setting it would obey is asked."""
    torch = sys.modules.get("torch")
    if torch is not None:
        return bool(torch.get_num_threads() == entry.threads)
    return os.environ.get("OMP_NUM_THREADS", "") == entry.openmp
