"""A Forecast as text."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from gpuwise.cost.forecast import Forecast, WholeRun
from gpuwise.report.answer import answer_report
from gpuwise.report.parts import (
    UNKNOWN,
    bars,
    grid,
    heading,
    indented,
    memory_of,
    notes,
    number,
    percent,
    rate,
    shares,
    span,
    strategy_words,
)
from gpuwise.units import counted, format_bytes, format_count, format_duration, format_flops, format_usd

TOP_MODULES = 10


def forecast_report(forecast: Forecast) -> Group:
    """Time, throughput, memory by category, the bound with its reason, the sources of the figures, and every guess."""
    memory = forecast.memory
    parts: list[RenderableType] = [title(forecast), Text(""), grid(figures(forecast))]
    parts += [
        heading(
            f"memory at the peak: {format_bytes(memory.peak_allocated_bytes)} allocated, "
            f"{format_bytes(memory.peak_reserved_bytes)} reserved"
        ),
        bars(memory.by_category, format_bytes),
    ]
    if forecast.step_shares:
        parts += [
            heading(f"a step of {format_duration(forecast.step_time_s.value)}"),
            bars(forecast.breakdown, format_duration),
        ]
    parts += [heading("the step is bound by"), shares(forecast.bound)]
    if forecast.why:
        parts.append(indented(forecast.why))
    if len(forecast.rests_on) > 1:
        parts += [heading("figures behind the time of its kernels"), shares(forecast.rests_on)]
    if forecast.top_modules:
        parts += [heading("modules that take most of it"), shares(dict(forecast.top_modules[:TOP_MODULES]))]
    parts += notes("assumed", forecast.assumptions)
    parts += notes("warnings", forecast.warnings)
    if forecast.fits_with is not None:
        parts += answer_report(forecast.fits_with)
    return Group(*parts)


def title(forecast: Forecast) -> Text:
    device = forecast.device + (f" x {forecast.count}" if forecast.count > 1 else "")
    return Text.assemble(
        (f"{forecast.job} on {device}", "bold"),
        f": {strategy_words(forecast.strategy)}, {counted(forecast.strategy.global_batch, 'sample')} a step",
    )


def figures(forecast: Forecast) -> list[tuple[str, str, str]]:
    """Label, value and provenance."""
    provenance = forecast.provenance
    basis = provenance.get("step_time_s", "") if forecast.measured is None else f"this very step, {provenance['step_time_s']}"
    energy = UNKNOWN if forecast.energy_j is None else f"{number(forecast.energy_j)} J a step"
    return [
        (
            "step time",
            f"{format_duration(forecast.step_time_s.value)}  {span(forecast.step_time_s, format_duration)}",
            basis,
        ),
        ("throughput", rate(forecast.throughput, forecast.throughput_unit), ""),
        (
            "memory",
            f"{memory_of(forecast.memory.device_bytes, forecast.memory.capacity_bytes)}  {fits_words(forecast)}",
            provenance.get("memory", ""),
        ),
        ("arithmetic", format_flops(forecast.flops_per_step) + " a step", ""),
        ("mfu", UNKNOWN if forecast.mfu is None else percent(forecast.mfu), ""),
        ("energy", energy, provenance.get("energy_j", "")),
        ("price", price_words(forecast), ""),
        *([] if forecast.run is None else [("whole run", run_words(forecast.run), "")]),
    ]


def run_words(run: WholeRun) -> str:
    """'19,532 steps in 4.2 days (3.3 days to 5.8 days), $41.10 ($32.2 to $56)'"""

    def hours(value: float) -> str:
        return format_duration(value * 3600)

    money = "" if run.usd is None else f", {format_usd(run.usd.value)} {span(run.usd, format_usd)}"
    return f"{format_count(run.samples)} samples, {run.steps:,} steps: {hours(run.hours.value)} {span(run.hours, hours)}{money}"


def fits_words(forecast: Forecast) -> str:
    """'fits', 'DOES NOT FIT', or '' where the capacity is unknown."""
    return {True: "fits", False: "DOES NOT FIT", None: ""}[forecast.memory.fits]


def price_words(forecast: Forecast) -> str:
    """The price of the device, and of as many units of throughput as cost cents or more."""
    if forecast.usd_per_hour is None:
        return UNKNOWN
    hour = f"{format_usd(forecast.usd_per_hour)}/h"
    if forecast.throughput <= 0:
        return hour
    unit, each = unit_of(forecast), forecast.usd_per_hour / 3600 / forecast.throughput
    many, word = scale_of(each)
    read = " read" if forecast.strategy.mode == "infer" and unit == "tokens" else ""  # none is written
    return f"{hour}, {format_usd(each * many)} a {word} {unit}{read}"


def unit_of(forecast: Forecast) -> str:
    """What throughput counts: 'tokens', 'images' or 'samples'."""
    return forecast.throughput_unit.removesuffix("/s")


def scale_of(usd: float) -> tuple[float, str]:
    """How many units cost ten cents or more, at so many dollars each, as a number and a word."""
    return next(((many, word) for many, word in _MANY if usd * many >= 0.1), _MANY[-1])


_MANY = ((1e6, "million"), (1e9, "billion"), (1e12, "trillion"))
