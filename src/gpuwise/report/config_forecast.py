"""The forecast of another trainer's file as text."""

from __future__ import annotations

from rich.console import Group

from gpuwise.export.alternatives import Alternative
from gpuwise.export.types import ConfigForecast
from gpuwise.report.forecast import forecast_report
from gpuwise.report.parts import notes, percent
from gpuwise.units import format_bytes


def config_forecast_report(result: ConfigForecast) -> Group:
    """The forecast, and what would be cheaper or fit."""
    fits = result.forecast.memory.fits is not False
    title = "cheaper on the same devices" if fits else "fits on the same devices"
    return Group(forecast_report(result.forecast), *notes(title, [alternative_words(one) for one in result.cheaper]))


def alternative_words(one: Alternative) -> str:
    """'no recomputation: 12 % less time and money a sample, in 30 GiB of each device: recompute = "none"'"""
    change = "more" if one.saved < 0 else "less"
    changed = "; the arithmetic of the training changes" if one.changes_training else ""
    return (
        f"{one.words}: {percent(abs(one.saved))} {change} time and money a sample, in {format_bytes(one.device_bytes)} of each "
        f"device{changed}: {one.keys or one.flags}"
    )
