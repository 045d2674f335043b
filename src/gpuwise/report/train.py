"""A TrainResult as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from gpuwise.report.parts import grid, notes, percent, rate, strategy_words
from gpuwise.units import format_bytes, format_duration

if TYPE_CHECKING:
    from gpuwise.runtime import TrainResult


def train_report(result: TrainResult) -> Group:
    """How it went: loss, pace, and the forecast next to what was measured."""
    step = result.step_time
    rows = [
        ("loss", f"{result.first_loss:.4g} at first, {result.last_loss:.4g} at the end"),
        ("pace", f"{rate(result.samples_per_s, 'samples')}, {result.steps:,} steps in "
         f"{format_duration(result.wall_s)}"),
        ("step", f"{format_duration(step.median_s)} measured "
         f"({format_duration(step.low_s)} to {format_duration(step.high_s)})"),
    ]  # fmt: skip
    if result.forecast is not None:
        check = result.forecast
        inside = "inside" if check.inside else "outside"
        rows.append(("forecast", f"{format_duration(check.forecast_s)} ({format_duration(check.low_s)} to "
                     f"{format_duration(check.high_s)}): {check.error:+.0%}, {inside} its interval"))  # fmt: skip
    if result.peak_memory_bytes is not None:
        rows.append(("memory", f"{format_bytes(result.peak_memory_bytes)} at most, above what the process had before"))
    if result.data_share >= 0.005:
        rows.append(("data", f"{percent(result.data_share)} of the time went into waiting for it"))
    rows += [(name, f"{value:.4g}") for name, value in result.metrics.items()]
    if result.log_path is not None:
        rows.append(("log", result.log_path))
    how = "interrupted" if result.interrupted else "trained"
    parts: list[RenderableType] = [
        Text(f"{result.job} {how} on {result.device}: {strategy_words(result.strategy)}, {result.samples:,} samples",
             style="bold"),
        Text(""),
        grid(rows),
    ]  # fmt: skip
    parts += notes("notes", result.notes)
    return Group(*parts)
