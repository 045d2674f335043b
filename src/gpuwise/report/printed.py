"""Results as text and as one line, for Python's `str` and `repr`."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from io import StringIO
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType

from gpuwise.report.parts import rate, strategy_words
from gpuwise.units import format_bytes, format_duration, format_usd

if TYPE_CHECKING:
    from gpuwise.cost.forecast import Forecast
    from gpuwise.cost.single_kernel import KernelForecast
    from gpuwise.plan.compare import Comparison
    from gpuwise.plan.fit.types import FitResult
    from gpuwise.plan.plan_result import PlanResult
    from gpuwise.plan.types import Plan
    from gpuwise.results.measurement import MachineMeasurement
    from gpuwise.results.training import TrainResult
    from gpuwise.serving.check import ServeCheck

WIDTH = 160  # columns where no terminal and no $COLUMNS says how many
# By the name of a result's class: the module beside this one and its function. Loaded when it is printed.
_REPORTS = {
    "Forecast": "forecast",
    "FitResult": "fit",
    "Comparison": "compare",
    "ScalingCurve": "scaling",
    "PlanResult": "plan",
    "TrainResult": "train",
    "MachineMeasurement": "measure",
    "Validation": "validate",
    "Installation": "doctor",
    "FitForecast": "classical",
    "ServingForecast": "serving",
    "ServeCheck": "serve_check",
    "Exported": "export",
    "ConfigForecast": "config_forecast",
}


def as_text(result: object) -> str:
    """The report of the command line, without colour; one line where a result has none of its own."""
    name = _REPORTS.get(type(result).__name__)
    if name is None:
        return as_line(result)
    return plain_text(getattr(import_module(f"gpuwise.report.{name}"), f"{name}_report")(result))


def plain_text(report: RenderableType) -> str:
    """A report without colour and without blanks at the ends of lines, to which tables are padded."""
    text = StringIO()
    Console(file=text, width=None if "COLUMNS" in os.environ else WIDTH, highlight=False, color_system=None).print(report)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def as_line(result: object) -> str:
    """'<Forecast gpt2 on t4: 160 ms a step, 3.2 GiB of 14.8 GiB, fits>'"""
    name = type(result).__name__
    return f"<{name} {' '.join(_LINES[name](result).split())}>"


def _devices(device: str, count: float) -> str:
    return device if count == 1 else f"{count:g} x {device}"


def _fits(fits: bool | None) -> str:
    return {True: ", fits", False: ", does not fit", None: ""}[fits]


def _forecast(forecast: Forecast) -> str:
    memory = forecast.memory
    of = "" if memory.capacity_bytes is None else f" of {format_bytes(memory.capacity_bytes)}"
    return (
        f"{forecast.job} on {_devices(forecast.device, forecast.count)}: {strategy_words(forecast.strategy)}, "
        f"{format_duration(forecast.step_time_s.value)} a step, {rate(forecast.throughput, forecast.throughput_unit)}, "
        f"{format_bytes(memory.device_bytes)}{of}{_fits(memory.fits)}"
    )


def _fit(result: FitResult) -> str:
    most = result.largest_micro_batch
    what = "does not fit" if most is None else f"fits up to micro-batch {most:,}"
    return f"{result.job} on {_devices(result.device, result.count)}: {what}"


def _compare(result: Comparison) -> str:
    rows = (f"{row.device} {'-' if row.speedup is None else f'{row.speedup:.3g}x'}" for row in result.rows)
    return f"{result.job}: {', '.join(rows)}"


def _plan(plan: Plan) -> str:
    return (
        f"{plan.rank}: {plan.job} on {_devices(plan.device, plan.count)} of {plan.offer.provider}, {plan.offer.terms}: "
        f"{strategy_words(plan.strategy)}, {format_duration(plan.hours * 3600)}, {format_usd(plan.usd.value)}"
    )


def _plans(result: PlanResult) -> str:
    return f"{len(result.plans)} plans of {result.considered:,} offers; best: {_plan(result.best)}"


def _train(result: TrainResult) -> str:
    return (
        f"{result.job} on {result.device}: {result.stopped} after {result.steps:,} steps, "
        f"loss {result.first_loss:.4g} to {result.last_loss:.4g}, {result.samples_per_s:,.3g} samples/s"
    )


def _measure(result: MachineMeasurement) -> str:
    state = "" if result.complete else ", incomplete"
    return f"{result.machine}: {len(result.rows)} rows, {len(result.peaks)} peaks, {result.taken[:10]}{state}"


def _kernel(kernel: KernelForecast) -> str:
    interval = f"({format_duration(kernel.time_s.low)} to {format_duration(kernel.time_s.high)})"
    return f"{kernel.kernel} {kernel.dtype} on {kernel.device}: {format_duration(kernel.time_s.value)} {interval}"


def _serve_check(check: ServeCheck) -> str:
    answered = f"{check.job} on {check.device}: {check.counts.answered:,} of {check.counts.sent:,} requests answered"
    median = check.latency["latency_s"][50] if "latency_s" in check.latency else None
    if median is None or median.measured is None:
        return answered
    return f"{answered}, median latency {format_duration(median.measured)}, forecast {format_duration(median.forecast.value)}"


_LINES: dict[str, Callable[[Any], str]] = {
    "Forecast": _forecast,
    "FitResult": _fit,
    "Comparison": _compare,
    "ScalingCurve": lambda curve: f"{curve.job} on {curve.points[-1].devices:,} x {curve.device}: {curve.conclusion}",
    "Plan": _plan,
    "PlanResult": _plans,
    "TrainResult": _train,
    "Exported": lambda result: f"{result.job} for {result.peer}: {result.file}, run by {result.command}",
    "ConfigForecast": lambda result: f"{result.config.file} ({result.config.target}): {_forecast(result.forecast)}",
    "MachineMeasurement": _measure,
    "Validation": lambda result: f"{len(result.trials)} trials on {result.machine}, {result.taken[:10]}",
    "FitForecast": lambda result: f"{result.job} on {result.machine}: {result.cpu_enough.text}",
    "ServeCheck": _serve_check,
    "Installation": lambda result: f"gpuwise {result.versions['gpuwise']} on {result.machine}",
    "KernelForecast": _kernel,
    "ServingForecast": lambda result: (
        f"{result.job} at {result.rate_per_s:g}/s: {_devices(result.rows[0].device, result.rows[0].replicas)}"
    ),
    "Roofline": lambda result: f"{result.job} on {result.device}: {len(result.points)} points by {result.by}",
    "Timeline": lambda result: f"{result.job} on {result.device}: peak of {format_bytes(result.peak.peak_bytes)}",
    "StepTimeline": lambda result: f"{result.job} on {result.device}: {format_duration(result.whole_s)}, {result.remark}",
    "Chip": lambda chip: f"{chip.id}: {chip.kind}" + (f", {format_bytes(chip.memory_bytes)}" if chip.memory_bytes else ""),
    "Offer": lambda o: f"{o.count:g} x {o.chip_id} of {o.provider} {o.instance}, {o.terms}, {format_usd(o.usd_per_hour)}/h",
}
