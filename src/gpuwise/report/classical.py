"""A FitForecast as text: the verdict, the figures, the sizes that were fitted."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from gpuwise.report.parts import UNKNOWN, columns, grid, heading, memory_of, notes, span
from gpuwise.results.fits import FitForecast
from gpuwise.units import format_bytes, format_duration


def classical_report(result: FitForecast) -> Group:
    """The verdict first, then what it rests on."""
    parts: list[RenderableType] = [
        Text(f"{result.job}: {result.estimator} on {result.samples:,} rows, {result.machine}", style="bold"),
        Text(f"\n{result.cpu_enough.text}"),
        Text(""),
        grid(_figures(result)),
    ]
    parts += notes("why", [note.text for note in result.cpu_enough.notes[1:]])
    headers = (*_HEADERS[:1], "rounds", *_HEADERS[1:]) if result.few_rounds else _HEADERS
    parts += [heading("fits on parts of the rows"), columns(headers, _rows(result), right=headers)]
    parts += notes("mind", result.notes)
    return Group(*parts)


_HEADERS = ("rows", "time", "processors", "peak memory")


def _figures(result: FitForecast) -> list[tuple[str, str, str]]:
    time, memory = result.time_s, result.memory_bytes
    source = "measured here" if result.measured else "extrapolated"
    figures = [("time", format_duration(time.value) + ("" if result.measured else f" {span(time, format_duration)}"), source)]
    if memory is not None:
        interval = "" if result.measured else f" {span(memory, format_bytes)}"
        figures.append(("memory", memory_of(memory.value, result.capacity_bytes) + interval, source))
    figures.append(("processors", f"{result.cores:.1f} busy", "measured here"))
    return figures


def _rows(result: FitForecast) -> list[list[str]]:
    """A fit each, by rows; with its rounds where some fits had few."""
    return [
        [
            f"{fit.samples:,}",
            *([UNKNOWN if fit.rounds is None else f"{fit.rounds:,}"] if result.few_rounds else []),
            format_duration(fit.seconds),
            f"{fit.cpu_s / fit.seconds:.1f}",
            UNKNOWN if fit.peak_bytes is None else format_bytes(fit.peak_bytes),
        ]
        for fit in sorted((*result.fits, *result.few_rounds), key=lambda fit: (fit.samples, fit.whole))
    ]
