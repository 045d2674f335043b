"""A ScalingCurve as text."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from gpuwise.plan.scaling.curve import ScalingCurve, ScalingPoint
from gpuwise.report.forecast import scale_of, unit_of
from gpuwise.report.parts import COUNTED, UNKNOWN, TextTable, columns, indented, notes, number, percent, rate, strategy_words
from gpuwise.strategy import Mesh
from gpuwise.units import format_bytes, format_duration, format_usd


def scaling_report(curve: ScalingCurve) -> Group:
    """A table with one row for each number of devices, then where more of them stop paying."""
    parts: list[RenderableType] = [Text(title(curve), style="bold"), Text(""), _table(curve)]
    if any(point.forecast.memory.counted_only for point in curve.points):
        parts.append(Text(f"{COUNTED} tensors are counted, without fragments; gpuwise forecast replays them", style="dim"))
    parts += [Text(""), indented(curve.conclusion), *notes("assumed", curve.assumptions)]
    parts += notes("warnings", curve.warnings)
    return Group(*parts)


def title(curve: ScalingCurve) -> str:
    """'llama3-8b on 8 to 512 x h100-80gb-sxm: amp-bf16, micro-batch 1 on each'"""
    first, last = curve.points[0], curve.points[-1]
    words = strategy_words(last.forecast.strategy.but(mesh=Mesh()))
    if curve.global_batch is not None:
        words = f"global batch {curve.global_batch:,}; on {last.devices:,} {words}"
    devices = f"{first.devices:,} to {last.devices:,}" if first is not last else f"{last.devices:,}"
    return f"{curve.job} on {devices} x {curve.device}: {words}"


def _table(curve: ScalingCurve) -> TextTable:
    points = curve.points
    costs = [point.forecast.usd_per_million for point in points if point.forecast.usd_per_million is not None]
    many, word = scale_of(min(costs) / 1e6) if costs else (1e6, "")
    cost = f"a {word} {unit_of(points[0].forecast)}"
    groups = [["devices", "mesh"], ["step time"], ["throughput", "a device"], ["efficiency", "communication"], ["memory", ""]]
    if any(point.forecast.strategy.accumulation > 1 for point in points):
        groups[1].append("micro-batches")
    if any(point.bubble for point in points):
        groups[3].append("bubble")
    if costs:
        groups.insert(4, [cost])
    headers = [header for group in groups for header in group]
    rows = [_cells(point) | {cost: _cost(point, many)} for point in points]
    right = [header for header in headers if header not in ("devices", "mesh", "")]
    return columns(headers, [[row[header] for header in headers] for row in rows], right=right, narrow=groups)


def _cells(point: ScalingPoint) -> dict[str, str]:
    forecast = point.forecast
    mesh = forecast.strategy.mesh
    return {
        "devices": f"{point.devices:,}",
        "mesh": str(mesh) if mesh.devices > 1 else "",
        "micro-batches": f"{forecast.strategy.accumulation:,}",
        "step time": format_duration(forecast.step_time_s.value),
        "throughput": rate(forecast.throughput, forecast.throughput_unit),
        "a device": number(forecast.throughput_per_device),
        "efficiency": UNKNOWN if point.efficiency is None else percent(point.efficiency),
        "communication": percent(point.communication),
        "bubble": percent(point.bubble),
        "memory": (COUNTED if forecast.memory.counted_only else "") + format_bytes(forecast.memory.device_bytes),
        "": "DOES NOT FIT" if point.fits is False else "",
    }


def _cost(point: ScalingPoint, many: float) -> str:
    usd = point.forecast.usd_per_million
    return UNKNOWN if usd is None or point.fits is False else format_usd(usd / 1e6 * many)
