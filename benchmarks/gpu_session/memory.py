"""Part 1, memory: what the allocator and the driver hold in 30 and more configurations, beside what was forecast."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks.gpu_session.cases import StepCase, memory_cases, toy_cases
from benchmarks.gpu_session.device_memory import first_contact, memory_of
from benchmarks.gpu_session.forecasts import forecast_of
from benchmarks.gpu_session.rows import OUT_OF_MEMORY, Row, RowFile

GIB, MIB = 2**30, 2**20
# Column of the table -> key of the forecast's memory, key of what was measured.
COLUMNS = {
    "allocated": ("peak_allocated_bytes", "allocated_bytes"),
    "reserved": ("peak_reserved_bytes", "reserved_bytes"),
    "device": ("device_bytes", "device_bytes"),
}
PHASES = ("forward", "backward", "optimizer")
NAMED = 5  # sizes that differ, of a configuration


def rows(device: str, *, toy: bool) -> list[Row]:
    cases = toy_cases() if toy else memory_cases()
    forecasts = [
        Row(f"forecast/{case.name}", partial(forecast_of, case), parallel=True, seconds=8, limit_s=150) for case in cases
    ]
    contact = [Row("contact/device", first_contact, seconds=5)] if device == "cuda" else []
    return [*forecasts, *contact, *[_step(case, device) for case in cases]]


def _step(case: StepCase, device: str) -> Row:
    compiled = case.strategy.compile
    return Row(
        f"step/{case.name}", partial(memory_of, case, device), seconds=40 if compiled else 8, limit_s=150 if compiled else 75
    )


def table(file: RowFile) -> str:
    """Errors of each configuration, then the medians, then which sizes make the differences."""
    lines = [
        f"{'forecast, GiB, and its error':<62}"
        + "".join(f"{name:>18}" for name in COLUMNS)
        + "".join(f"{name:>10}" for name in PHASES)
        + f"{'replayed':>10}"
    ]
    errors: dict[str, list[float]] = {name: [] for name in (*COLUMNS, *PHASES)}
    for name in file.configurations("step"):
        forecast, row = file.figures(f"forecast/{name}"), file.row(f"step/{name}")
        assert row is not None
        if forecast is None or row["outcome"] != "measured":
            lines.append(f"{name:<62}  {_without(file, name, forecast, row)}")
            continue
        lines.append(f"{name:<62}" + _cells(forecast, row["figures"], errors))
    for column, result in errors.items():
        if result:
            sizes = [abs(error) for error in result]
            lines.append(f"{column}: median {statistics.median(sizes):.3%}, largest {max(sizes):.3%} of {len(result)}")
    return "\n".join([*lines, *_contact(file), *_differences(file)])


def _without(file: RowFile, name: str, forecast: dict[str, Any] | None, row: dict[str, Any]) -> str:
    """Of a configuration that gave no figures."""
    if row["outcome"] == OUT_OF_MEMORY and forecast is not None:
        memory = forecast["memory"]
        return f"out of memory; the forecast: {memory['device_bytes'] / GIB:.2f} GiB, fits: {memory['fits']}"
    if forecast is None:
        answer = file.row(f"forecast/{name}") or {"outcome": "none", "said": ""}
        return f"{row['outcome']}; its forecast {answer['outcome']}: {answer['said'][:120]}"
    return f"{row['outcome']}: {row['said'][:140]}"


def _cells(forecast: dict[str, Any], measured: dict[str, Any], errors: dict[str, list[float]]) -> str:
    cells = []
    for column, (ours, theirs) in COLUMNS.items():
        value = measured.get(theirs)
        cells.append(f"{forecast['memory'][ours] / GIB:>9.3f} {_error(forecast['memory'][ours], value, errors[column]):>8}")
    phases, steps = forecast.get("phases", {}), measured.get("steps", [])
    for phase in PHASES:
        value = steps[1].get(phase) if len(steps) > 1 else None
        cells.append(f"{_error(phases.get(phase), value, errors[phase]):>10}")
    replayed = measured.get("replayed", {}).get("reserved_bytes")
    cells.append(f"{_error(replayed, measured.get('reserved_bytes'), []):>10}")
    return "".join(cells)


def _error(ours: int | None, theirs: int | None, found: list[float]) -> str:
    if not ours or not theirs:
        return "-"
    found.append(ours / theirs - 1)
    return f"{ours / theirs - 1:+.2%}"


def _contact(file: RowFile) -> list[str]:
    result = file.figures("contact/device")
    if result is None:
        return []
    used = {name: value for name, value in result["used_bytes"].items() if value is not None}
    words = ", ".join(f"{name} {value / MIB:.0f}" for name, value in used.items())
    return [f"device memory outside the allocator, MiB: {words or 'not known'}"]


def _differences(file: RowFile) -> list[str]:
    """Sizes whose number at the peak is another than was forecast, the most bytes first."""
    lines = []
    for name in file.configurations("step"):
        forecast, measured = file.figures(f"forecast/{name}") or {}, file.figures(f"step/{name}") or {}
        result = differing(forecast.get("sizes_at_peak", []), measured.get("sizes_at_peak", []))
        if result:
            words = ", ".join(f"{size:,} x {there} (forecast {ours})" for size, ours, there in result[:NAMED])
            lines.append(f"  {name}: {words}")
    return ["allocations at the peak that differ, bytes x how many:", *lines] if lines else []


def differing(forecast: Sequence[Sequence[int]], measured: Sequence[Sequence[int]]) -> list[tuple[int, int, int]]:
    """(size, forecast count, measured count) where the two differ, in order of the bytes that makes."""
    if not forecast or not measured:
        return []
    ours, theirs = ({int(size): int(count) for size, count in pairs} for pairs in (forecast, measured))
    results = [(size, ours.get(size, 0), theirs.get(size, 0)) for size in ours.keys() | theirs.keys()]
    return sorted((row for row in results if row[1] != row[2]), key=lambda row: -row[0] * abs(row[1] - row[2]))
