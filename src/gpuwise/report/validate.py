"""A Validation as text: a table of all jobs, or all about a single one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from gpuwise.report.parts import UNKNOWN, columns, grid, heading, notes, number, rate, shares, span, strategy_words
from gpuwise.step_settings import job_word
from gpuwise.strategy import Strategy
from gpuwise.units import format_bytes, format_duration

if TYPE_CHECKING:
    from gpuwise.results.validation import MeasuredRank, Trial, Validation

HEADERS = (
    "job",
    "batch",
    "measured",
    "p10 to p90",
    "forecast",
    "interval",
    "error",
    "inside",
    "memory",
    "expected",
    "off by",
    "rests on",
)
RIGHT = ("batch", "measured", "forecast", "error", "memory", "expected", "off by")
_FOLDED = (
    ("job", "batch", "rests on"),
    ("measured", "p10 to p90"),
    ("forecast", "interval"),
    ("error", "inside"),
    ("memory", "expected", "off by"),
)
RANK_HEADERS = ("rank", "step time", "peak memory")
MOST_RANKS = 8  # that a report lists
_REST = "activations and temporaries"


def validate_report(result: Validation) -> Group:
    """One table for several jobs, the details of a single one."""
    if not result.trials:
        return Group(Text("nothing was measured."))
    if len(result.trials) == 1:
        return _details(result.trials[0], result)
    parts: list[RenderableType] = [
        Text(f"{len(result.trials)} jobs on {result.machine}", style="bold"),
        Text(""),
        columns(HEADERS, [row(trial) for trial in result.trials], right=RIGHT, narrow=_FOLDED),
        heading("over all"),
        grid(overall(result)),
    ]
    parts += notes("without a measurement", [f"{t.job}: {ending(t)}" for t in result.trials if t.measured is None])
    return Group(*parts, *notes("notes", remarks(result)))


def row(trial: Trial) -> list[str]:
    """The cells of HEADERS."""
    batch = UNKNOWN if trial.forecast is None else f"{_strategy(trial).global_batch:,}"
    expected, measured = trial.expected, trial.measured
    predicted = UNKNOWN if trial.forecast is None else format_bytes(trial.forecast["memory"]["peak_allocated_bytes"])
    source = UNKNOWN if trial.forecast is None else str(trial.forecast["provenance"]["step_time_s"])
    return [
        trial.job,
        batch,
        trial.outcome if measured is None else format_duration(measured.step.median_s),
        "" if measured is None else f"{format_duration(measured.step.low_s)} to {format_duration(measured.step.high_s)}",
        UNKNOWN if expected is None else format_duration(expected.value),
        "" if expected is None else f"{format_duration(expected.low)} to {format_duration(expected.high)}",
        signed(trial.error),
        yes_no(trial.inside),
        UNKNOWN if measured is None or measured.memory_bytes is None else format_bytes(measured.memory_bytes),
        predicted,
        signed(trial.memory_error, digits=2),
        source,
    ]


def overall(result: Validation) -> list[tuple[str, str]]:
    """Errors over all jobs that were measured."""
    summary = result.summary
    rows = [
        ("step time", f"{_share(summary['median_error'])} median error, {_share(summary['worst_error'])} at worst"),
        ("intervals", f"{summary['inside']} of {summary['measured']} measured steps lie inside"),
        (
            "memory",
            f"{_share(summary['median_memory_error'], 2)} median error, {_share(summary['worst_memory_error'], 2)} at worst",
        ),
    ]
    if summary["out_of_memory"]:
        foreseen = sum(trial.foreseen is True for trial in result.trials)
        rows.append(("out of memory", f"{summary['out_of_memory']}, {foreseen} of them forecast not to fit"))
    if summary["failed"]:
        rows.append(("failed", str(summary["failed"])))
    return rows


def remarks(result: Validation) -> list[str]:
    """The notes beside the figures."""
    lines = [*result.notes, *(f"{trial.job}: {words}" for trial in result.trials for words in trial.disturbed)]
    if result.interrupted:
        lines.append("interrupted: what was not done is left out")
    if result.history:
        job = job_word(result.trials[0].job if len(result.trials) == 1 else "")
        taken = f"`gpuwise forecast {job} --on here` gives what was measured from now on"
        if any(trial.disturbed for trial in result.trials):
            taken += ", a time of a busy machine only where it is shorter than forecast"
        forecasts = "" if result.suite else f": {taken}"
        lines.append(f"kept in {result.history}{forecasts}")
    return lines


def ending(trial: Trial) -> str:
    """Why nothing was measured, whether that was foreseen, and what can be done."""
    foreseen = {True: "as was forecast; ", False: "though it was forecast to fit; ", None: ""}[trial.foreseen]
    ways = f" Try: {'; '.join(trial.ways_out)}." if trial.ways_out else ""
    message = f"{trial.message.rstrip('.')}." if trial.message else ""
    return f"{trial.outcome}, {foreseen}{message}{ways}" if message else trial.outcome


def _details(trial: Trial, result: Validation) -> Group:
    strategy = f": {strategy_words(_strategy(trial))}" if trial.forecast is not None else ""
    parts: list[RenderableType] = [Text(f"{trial.job} on {result.machine}{strategy}", style="bold"), Text("")]
    if trial.measured is None:
        parts.append(Text(ending(trial)))
    if trial.expected is not None:
        parts.append(columns(("", "measured", "forecast", "error"), compared(trial), right=("measured", "forecast", "error")))
    if trial.forecast is not None and trial.measured is not None:
        if rows := memory_rows(trial):
            headers = ("", "measured", "forecast")
            parts += [heading("memory at the peak"), columns(headers, rows, right=headers[1:])]
        if trial.measured.ranks:
            parts += [heading("of each rank"), columns(RANK_HEADERS, rank_rows(trial.measured.ranks), right=RANK_HEADERS)]
        if trial.measured.shares:
            parts += [heading("the measured step spends its time on"), shares(trial.measured.shares)]
        parts += [heading("the forecast is bound by"), shares(trial.forecast["bound"])]
        parts += notes("assumed", trial.forecast["assumptions"])
        parts += notes("warnings", trial.forecast["warnings"])
    return Group(*parts, *notes("notes", remarks(result)))


def compared(trial: Trial) -> list[list[str]]:
    """Step time, throughput and memory: measured, forecast, error."""
    expected, measured, forecast = trial.expected, trial.measured, trial.forecast
    assert expected is not None
    assert forecast is not None
    unit, memory = forecast["throughput"]["unit"], forecast["memory"]
    step = UNKNOWN if measured is None else format_duration(measured.step.median_s)
    several = measured is not None and bool(measured.ranks)
    of_step, of_memory = (
        ("step time of the slowest rank", "peak memory of the largest") if several else ("step time", "peak memory")
    )
    rows = [[of_step, step, format_duration(expected.value), signed(trial.error)]]
    if measured is not None:
        inside = "inside" if trial.inside else "OUTSIDE"
        spread = f"{format_duration(measured.step.low_s)} to {format_duration(measured.step.high_s)}"
        rows.append(
            [f"  spread of {measured.step.rounds:,} steps, 90 % interval", spread, span(expected, format_duration), inside]
        )
    done = UNKNOWN if trial.throughput is None else number(trial.throughput)
    rows.append(["throughput", done, rate(forecast["throughput"]["value"], unit), ""])
    peak = UNKNOWN if measured is None or measured.memory_bytes is None else format_bytes(measured.memory_bytes)
    rows.append([of_memory, peak, format_bytes(memory["peak_allocated_bytes"]), signed(trial.memory_error, digits=2)])
    for name, words in (("reserved_bytes", "  reserved"), ("device_bytes", "  of the device")):
        value = getattr(measured, name, None)
        if value is not None:
            predicted = memory["peak_reserved_bytes" if name == "reserved_bytes" else name]
            rows.append([words, format_bytes(value), format_bytes(predicted), signed(predicted / value - 1)])
    rows.append(
        [
            "fits",
            {True: "no", False: ""}[trial.outcome == "out of memory"] or yes_no(measured is not None),
            yes_no(memory["fits"]),
            "",
        ]
    )
    return [*rows, ["time rests on", "", forecast["provenance"]["step_time_s"], ""]]


def rank_rows(ranks: Sequence[MeasuredRank]) -> list[list[str]]:
    """Every rank; of many rank 0, the slowest and the one that needs most."""
    if len(ranks) > MOST_RANKS:
        slowest, largest = max(ranks, key=lambda r: r.median_s), max(ranks, key=lambda r: r.memory_bytes or 0)
        ranks = sorted({ranks[0], slowest, largest}, key=lambda r: r.rank)
    return [
        [f"{r.rank}", format_duration(r.median_s), UNKNOWN if r.memory_bytes is None else format_bytes(r.memory_bytes)]
        for r in ranks
    ]


def memory_rows(trial: Trial) -> list[list[str]]:
    """By category; those of the forecast that no measurement tells apart are added up."""
    assert trial.forecast is not None
    assert trial.measured is not None
    measured, predicted = dict(trial.measured.by_category), dict(trial.forecast["memory"]["by_category"])
    rest = next((name for name in measured if name in (_REST, "all else")), "")
    if not rest:
        return []
    same = {name: predicted.pop(name, 0) for name in measured if name != rest}
    rows = [(name, measured[name], value) for name, value in same.items() if measured[name] or value]
    rows.append((rest, measured[rest], sum(predicted.values())))
    return [[name.replace("_", " "), format_bytes(here), format_bytes(there)] for name, here, there in rows]


def signed(value: float | None, *, digits: int = 1) -> str:
    """'+3.1 %'"""
    return UNKNOWN if value is None else f"{100 * value:+.{digits}f} %"


def yes_no(value: bool | None) -> str:
    return {True: "yes", False: "no", None: UNKNOWN}[value]


def _share(value: float | None, digits: int = 1) -> str:
    return UNKNOWN if value is None else f"{100 * value:.{digits}f} %"


def _strategy(trial: Trial) -> Strategy:
    assert trial.forecast is not None
    return Strategy.from_dict(trial.forecast["strategy"])
