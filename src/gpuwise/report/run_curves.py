"""The curves of a run's page: what its log says over steps, next to what was forecast."""

from __future__ import annotations

from collections.abc import Sequence

from gpuwise.cost.forecast import Interval
from gpuwise.report.parts import number as digits
from gpuwise.report.plain import Record, number, part
from gpuwise.report.run_records import lasting, latest
from gpuwise.report.svg_chart import Chart, Mark, Point
from gpuwise.units import format_bytes, format_duration

_LOSS_WIDTH = 1120.0


_TROUBLE = ("spike", "nonfinite", "stall", "evaluation failed")  # kinds of events that are marked


def curves(records: Sequence[Record], steps: Sequence[Record]) -> str:
    """The figures as HTML; the loss first and widest. Empty where no step was logged.

    steps: the step records that the run rests on (`lasting`).
    """
    reach = [at for record in steps if (at := number(record, "step")) is not None]
    if not reach:
        return ""
    ends, marked = (min(reach), max(reach)), marks(records)
    first, *rest = [chart.svg(marked, ends) for chart in _charts(records, steps)] or [""]
    return f'{first}\n<div class="figures">\n' + "\n".join(rest) + "\n</div>"


def _charts(records: Sequence[Record], steps: Sequence[Record]) -> list[Chart]:
    header, summary = latest(records, "header"), latest(records, "summary")
    step_time = interval(part(part(header, "forecast"), "step_time_s"))
    memory = number(part(summary, "memory_check"), "forecast_bytes")
    if memory is None and not str(header.get("device", "cpu")).startswith("cpu"):  # a CPU's process holds much beside the step
        memory = number(part(part(header, "forecast"), "memory"), "peak_allocated_bytes")
    peak = max((point[1] for point in _points(steps, "memory_bytes")), default=1.0)
    charts = [
        Chart(
            "loss",
            _points(steps, "loss"),
            _short,
            logarithmic=True,
            width=_LOSS_WIDTH,
            note="a thin line of all values, a thick one of their mean",
        ),
        Chart(
            "step time",
            _points(steps, "step_time_s"),
            format_duration,
            expected=step_time,
            clipped=True,
            note="and its forecast, in the band it should lie in" if step_time else "",
        ),
        Chart("samples/s", _points(steps, "samples_per_s"), digits, clipped=True, note="waiting for data counted"),
        Chart(
            "memory",
            _points(steps, "memory_bytes"),
            format_bytes,
            unit=1024.0 ** _thousands(peak),
            smoothed=False,
            from_zero=True,
            expected=Interval(memory, memory, memory) if memory else None,
            note="and its forecast" if memory else "",
        ),
        Chart("learning rate", _points(steps, "learning_rate"), _short, smoothed=False),
        Chart("gradient norm", _points(steps, "grad_norm"), _short, logarithmic=True),
    ]
    evaluations = [{**record, **part(record, "metrics")} for record in lasting(records, "evaluation")]
    names = dict.fromkeys(name for record in evaluations for name in part(record, "metrics"))
    charts += [Chart(name, _points(evaluations, name), _short, smoothed=False, note="by the job's evaluate") for name in names]
    return [chart for chart in charts if chart.points]


def _points(records: Sequence[Record], name: str) -> list[Point]:
    pairs = [(number(record, "step"), number(record, name)) for record in records]
    return [(step, value) for step, value in pairs if step is not None and value is not None]


def marks(records: Sequence[Record]) -> list[Mark]:
    """What happened at which step: checkpoints, resumes and interruptions, and trouble (spikes, skipped steps, stalls)."""
    marked = []
    for record in records:
        kind, step = record.get("record"), number(record, "step")
        if step is None or kind not in ("checkpoint", "resumed", "interrupted", "event"):
            continue
        if kind == "event" and record.get("kind") not in _TROUBLE:
            continue
        shape = {"checkpoint": "saved", "resumed": "resumed", "interrupted": "resumed"}.get(str(kind), "trouble")
        marked.append(Mark(step, "trouble" if failed(record) else shape, f"step {step:,.0f}: {record_words(record)}"))
    return marked


def record_words(record: Record) -> str:
    """A checkpoint, resumed, interrupted, event or error record in words."""
    if failed(record):
        return f"checkpoint not saved: {record['failed']}"
    for name in ("text", "message"):
        if isinstance(record.get(name), str):
            return str(record[name])
    kind = str(record.get("record"))
    why = record.get("why")
    words = {"checkpoint": "checkpoint saved", "interrupted": "interrupted at once" if record.get("at_once") else "interrupted"}
    return words.get(kind, kind) + (f" ({why})" if isinstance(why, str) else "")


def failed(record: Record) -> bool:
    """Whether a checkpoint record is of one that was not saved."""
    return record.get("record") == "checkpoint" and isinstance(record.get("failed"), str)


def interval(values: Record) -> Interval | None:
    """{value, low, high}; None where one of them is missing or they are out of order."""
    value, low, high = (number(values, name) for name in ("value", "low", "high"))
    if value is None or low is None or high is None or not low <= value <= high:
        return None
    return Interval(value, low, high)


def _short(value: float) -> str:
    return f"{value:.3g}"


def _thousands(value: float) -> int:
    return max(0, (int(value).bit_length() - 1) // 10)
