"""Replaces the forecast step time by the one that `validate` measured on this machine."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from importlib import metadata

from gpuwise.api import history
from gpuwise.cost.calibration import PROVENANCE
from gpuwise.cost.forecast import Forecast, Interval
from gpuwise.hardware.types import Chip
from gpuwise.notes.step import measured_here, measured_on_busy_machine
from gpuwise.results.validation import METHOD
from gpuwise.strategy import Strategy
from gpuwise.trace import Trace
from gpuwise.trace.digest import digest

# A machine varies more from day to day than the steps of one run vary.
LEAST_SPREAD = 0.05
LATEST = 10  # latest measurements of a configuration that are considered


def as_last_measured(forecast: Forecast, trace: Trace, strategy: Strategy, chip: Chip) -> Forecast:
    """The forecast with the last measured time, if this configuration was measured on this machine; else unchanged.

    Only runs of the same PyTorch with the same number of threads count. A forecast is of a free machine: a run on a busy one
    counts only if there is no better one and it was faster than the model says, as others can only have slowed it down.
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
        and _same_threads(entry, chip)
    ][-LATEST:]
    quiet = [entry for entry in entries if not entry.disturbed]
    if not entries:
        return forecast
    if not quiet and (latest := entries[-1]).median_s >= forecast.step_time_s.value:
        note = measured_on_busy_machine(date=latest.date[:10], measured_s=latest.median_s)
        return replace(forecast, assumption_notes=(*forecast.assumption_notes, note))
    return preferring(forecast, quiet or entries)


def preferring(forecast: Forecast, entries: list[history.HistoryEntry]) -> Forecast:
    """The forecast with the time of the last entry. Its interval spans the times of all entries."""
    latest, model_s = entries[-1], forecast.step_time_s.value
    value = latest.median_s
    low = min(value * (1 - LEAST_SPREAD), *(entry.low_s for entry in entries))
    high = max(value * (1 + LEAST_SPREAD), *(entry.high_s for entry in entries))
    if latest.disturbed:  # the time on a free machine is unknown, so the interval keeps the model's forecast
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
    """A short text that identifies this machine's hardware, also after a restart."""
    from gpuwise.hardware import detect

    return detect.machine_key(detect.detect())


def torch_version() -> str:
    """The version of the installed PyTorch, without importing it; "" without one.

    The history is stored and matched by this version; torch.__version__ is longer in some wheels (2.11.0+cu130 for 2.11.0).
    """
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""


def _same_threads(entry: history.HistoryEntry, chip: Chip) -> bool:
    """Whether a step would run on the same number of threads now. Without PyTorch loaded, its settings decide.

    chip: as the step has it: of a CPU no more cores than the step has threads.
    """
    if chip.kind == "cpu" and entry.threads > (chip.sm_count or entry.threads):
        return False
    torch = sys.modules.get("torch")
    if torch is not None:
        return bool(torch.get_num_threads() == entry.threads)
    return os.environ.get("OMP_NUM_THREADS", "") == entry.openmp
