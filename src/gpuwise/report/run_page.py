"""A run as a page that stands alone, from the records of its log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from statistics import median

from gpuwise.errors import GpuwiseError
from gpuwise.report.html import bullets, page, table
from gpuwise.report.parts import number as digits
from gpuwise.report.parts import percent, strategy_words
from gpuwise.report.plain import Record, number, part, texts
from gpuwise.report.run_curves import curves, failed, interval, record_words
from gpuwise.report.run_records import lasting, latest
from gpuwise.report.svg_chart import STYLE
from gpuwise.strategy import Strategy
from gpuwise.units import format_bytes, format_count, format_duration, format_usd

_EVENTS = ("event", "interrupted", "resumed", "error")  # kinds of records
_MOST_EVENTS = 200  # the latest of them
_STYLE = (
    STYLE
    + """
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9em, 1fr)); gap: .8em; margin: 1.2em 0 }
.tiles div { background: var(--panel); border-radius: 8px; padding: .5em .9em } .tiles b { display: block; font-size: 1.25em }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26em, 100%), 1fr)); gap: .9em;
           margin-top: .9em }"""
)


def run_page(records: Sequence[Record]) -> str:
    """Where the run stands, what was forecast against what was measured, its curves, and what happened on the way.

    records: as gpuwise.runtime.show.read_log gives them, also of a run that is still going or was killed. What a record
    lacks, or has in another form, is left out.
    """
    header, steps = latest(records, "header"), lasting(records, "step")
    job = str(header.get("job") or "the job")
    body = [
        f"<h1>{escape(job)}</h1>",
        f'<p class="dim">{escape(_setting(header))}</p>',
        f"<p>{escape(_stand(records, steps))}</p>",
        _tiles(records, steps),
    ]
    if rows := _checked(records, steps):
        body += [
            "<h2>Forecast and measured</h2>",
            table(("", "forecast", "measured", "error"), rows, right=("forecast", "measured", "error")),
            '<p class="dim">An error is of the forecast, as a share of what was measured.</p>',
        ]
    if figures := curves(records, steps):
        body += [
            "<h2>Curves</h2>",
            '<p class="dim">Green ticks are checkpoints, dashed lines interruptions and resumes, '
            "triangles what needs a look; pointing at one tells more.</p>",
            figures,
        ]
    if rows := _events(records):
        body += ["<h2>What happened</h2>", table(("time (UTC)", "step", ""), rows, right=("step",))]
    if lines := _notes(records):
        body += ["<h2>Notes</h2>", bullets(lines)]
    return page(f"{job}: a run of gpuwise", body, style=_STYLE)


def _setting(header: Record) -> str:
    """Job, device, strategy, seed and versions, as far as they are known."""
    parameters, threads, seed = (number(header, name) for name in ("parameters", "threads", "seed"))
    versions = " ".join(f"{name} {version}" for name, version in part(header, "versions").items())
    facts = [
        f"{format_count(parameters)} parameters" if parameters else "",
        str(header.get("device") or ""),
        f"{threads:.0f} threads" if threads else "",
        _strategy(header),
        f"seed {seed:.0f}" if seed is not None else "",
        versions,
        f"started {_time(header)} UTC" if _time(header) else "",
    ]
    return " · ".join(word for word in facts if word)


def _strategy(header: Record) -> str:
    try:
        return strategy_words(Strategy.from_dict(dict(part(header, "strategy"))))
    except (GpuwiseError, TypeError):  # of another version
        return ""


def _stand(records: Sequence[Record], steps: Sequence[Record]) -> str:
    """How the latest run ended, in a sentence."""
    ends = [record for record in records if record.get("record") in ("header", "resumed", "interrupted", "error", "summary")]
    last = ends[-1] if ends else {}
    step = max((number(record, "step") or 0 for record in steps), default=0)
    of = number(latest(records, "header"), "steps")
    far = f"step {step:,.0f}" + (f" of {of:,.0f}" if of else "")
    kind = last.get("record")
    if kind == "summary":
        how, reason = str(last.get("stopped") or "ended"), last.get("stop_reason")
        return f"{_capital(how)} at {far}" + (f": {reason}." if isinstance(reason, str) else ".")
    if kind == "error":
        return f"Failed after {far}: {record_words(last)}"
    if kind == "interrupted":
        return f"{_capital(record_words(last))} after {far}."
    return f"At {far}; the log has no end: the run is still going, or was killed."


def _tiles(records: Sequence[Record], steps: Sequence[Record]) -> str:
    summary = latest(records, "summary")
    trained_s, waited_s = _time_of(steps)
    losses = [value for record in steps if (value := number(record, "loss")) is not None]
    pace, mfu, share = (number(summary, name) for name in ("samples_per_s", "mfu", "data_share"))
    if pace is None and trained_s:
        pace = sum(_samples(record) for record in steps) / trained_s
    if share is None and trained_s:
        share = waited_s / trained_s
    saved = [record for record in lasting(records, "checkpoint") if not failed(record)]
    metrics = part(summary, "metrics") or part(latest(records, "evaluation"), "metrics")
    figures = [
        ("loss", f"{losses[-1]:.4g}" if losses else ""),
        ("training", format_duration(trained_s) if trained_s else ""),
        ("samples/s", digits(pace) if pace else ""),
        ("MFU", percent(mfu) if mfu is not None else ""),
        ("waiting for data", percent(share) if share is not None else ""),
        ("checkpoints", f"{len(saved):,}" if saved else ""),
        *((name, f"{value:.4g}") for name in metrics if (value := number(metrics, name)) is not None),
    ]
    tiles = "".join(f"<div>{escape(name)}<b>{escape(value)}</b></div>" for name, value in figures if value)
    return f'<div class="tiles">{tiles}</div>'


def _checked(records: Sequence[Record], steps: Sequence[Record]) -> list[list[str]]:
    """Rows of what was forecast and measured: step time, memory, duration and cost, as far as both are known."""
    header, summary = latest(records, "header"), latest(records, "summary")
    forecast, memory = part(header, "forecast"), part(summary, "memory_check")
    expected, rows = interval(part(forecast, "step_time_s")), []

    def row(
        name: str, forecast_value: float | None, measured: float | None, show: Callable[[float], str], span: str = ""
    ) -> None:
        if forecast_value is not None and measured is not None and measured > 0:
            rows.append([name, show(forecast_value) + span, show(measured), f"{100 * (forecast_value / measured - 1):+.1f} %"])

    if expected is not None and steps:
        times = [value for record in steps if (value := number(record, "step_time_s")) is not None]
        step_time_s = number(part(summary, "step_time"), "median_s") or (median(times) if times else None)
        row(
            "step time",
            expected.value,
            step_time_s,
            format_duration,
            f" ({format_duration(expected.low)} to {format_duration(expected.high)})",
        )
    row("peak memory", number(memory, "forecast_bytes"), number(memory, "measured_bytes"), format_bytes)
    if expected is not None and steps:
        expected_s, (trained_s, _) = expected.value * sum(number(record, "steps") or 1 for record in steps), _time_of(steps)
        row("training time", expected_s, trained_s, format_duration)
        rate = number(forecast, "usd_per_hour") or number(part(header, "settings"), "usd_per_hour")
        if rate is not None:
            row("cost", rate * expected_s / 3600, number(summary, "usd") or rate * trained_s / 3600, format_usd)
    return rows


def _events(records: Sequence[Record]) -> list[list[str]]:
    """Time, step and sentence of all that is not everyday, oldest first. Notes stand in a list of their own."""
    notes = set(_notes(records))
    events = [record for record in records if record.get("record") in _EVENTS and record_words(record) not in notes]
    return [[_time(record), _step(record), record_words(record)] for record in events[-_MOST_EVENTS:]]


def _step(record: Record) -> str:
    step = number(record, "step")
    return "" if step is None else f"{step:,.0f}"


def _time_of(steps: Sequence[Record]) -> tuple[float, float]:
    """Seconds that step records account for, and those of them spent waiting for data."""
    waited = [(number(record, "data_s") or 0.0) * (number(record, "steps") or 1) for record in steps]
    worked = [(number(record, "step_time_s") or 0.0) * (number(record, "steps") or 1) for record in steps]
    return sum(worked) + sum(waited), sum(waited)


def _samples(record: Record) -> float:
    """Of the steps of a record: a run's steps have equally many."""
    step, samples = number(record, "step"), number(record, "samples")
    return samples / step * (number(record, "steps") or 1) if step and samples else 0.0


def _time(record: Record) -> str:
    """'2026-03-01 12:00:05'"""
    return str(record.get("time") or "")[:19].replace("T", " ")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _notes(records: Sequence[Record]) -> list[str]:
    return texts(latest(records, "summary"), "notes")
