"""Measured figures of a chip: the table [chip] of a calibration file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from gpuwise.hardware.types import Chip
from gpuwise.results.measurement import AchievedPeak, MeasuredRow, MemoryLevel

SLOWER = ("fp64",)  # other dtypes of a CPU that are slower than fp32 are emulated


class AchievedFigures(TypedDict, total=False):
    """gpuwise.hardware.types.AchievedRates as a table, without unmeasured figures."""

    peak_flops_per_s: dict[str, float]
    memory_bandwidth_bytes_per_s: float
    host_link_bytes_per_s: float
    host_link_error: float
    all_reduce_devices: int
    all_reduce_busbw_bytes_per_s: float
    all_reduce_latency_s: float
    all_reduce_error: float
    collective_busbw_bytes_per_s: dict[str, float]
    collective_spread: list[float]


class Figures(TypedDict, total=False):
    """The table [chip].

    Attributes:
        peak_flops_per_s: measured peaks by dtype, for a CPU.
        memory_bandwidth_bytes_per_s: measured bandwidth, for a CPU.
        achieved: achieved rates of a GPU; of a CPU, those between processes.
    """

    peak_flops_per_s: dict[str, float]
    memory_bandwidth_bytes_per_s: float
    achieved: AchievedFigures


def chip_figures(
    chip: Chip, rows: Sequence[MeasuredRow], peaks: Sequence[AchievedPeak], levels: Sequence[MemoryLevel]
) -> Figures:
    """The measured figures of a chip, without unmeasured ones.

    For a CPU they are the peaks and the bandwidth, which replace the catalog's estimates, and the exchange between processes.
    A GPU has a datasheet, so its figures are the achieved rates (gpuwise.hardware.types.AchievedRates).
    """
    rates: AchievedFigures = {}
    if peaks:
        rates["peak_flops_per_s"] = {peak.dtype: _short(peak.measured) for peak in peaks}
    if levels and levels[-1].name == "memory":
        rates["memory_bandwidth_bytes_per_s"] = _short(levels[-1].measured)
    if chip.kind != "cpu":
        rates |= {**_host_link(rows), **_collectives(rows)}
        return {"achieved": rates} if rates else {}
    figures: Figures = {}
    if peaks:
        single = next((peak.measured for peak in peaks if peak.dtype == "fp32"), 0.0)
        native = [peak.dtype for peak in peaks if peak.dtype in SLOWER or peak.measured >= single]
        figures["peak_flops_per_s"] = {dtype: rates["peak_flops_per_s"][dtype] for dtype in native}
    if "memory_bandwidth_bytes_per_s" in rates:
        figures["memory_bandwidth_bytes_per_s"] = rates["memory_bandwidth_bytes_per_s"]
    if between := _collectives(rows):
        figures["achieved"] = between
    return figures


def _host_link(rows: Sequence[MeasuredRow]) -> AchievedFigures:
    """The slower direction of the largest copies from and to pinned memory."""
    copies = [row for row in rows if row.group == "copy" and "pinned" in row.name]
    largest = max((row.bytes for row in copies), default=0)
    slowest = min((row for row in copies if row.bytes == largest), key=lambda row: row.bytes_per_s, default=None)
    if slowest is None:
        return {}
    return {"host_link_bytes_per_s": _short(slowest.bytes_per_s), "host_link_error": _short(slowest.timing.spread)}


def _collectives(rows: Sequence[MeasuredRow]) -> AchievedFigures:
    """What collectives reached: bandwidth of the largest calls, time of the fastest all-reduce, and how far calls of all
    sizes are from these."""
    calls = sorted((row for row in rows if row.group == "collective"), key=lambda row: row.bytes)
    largest = {row.name: row for row in calls}
    if "all_reduce" not in largest:
        return {}
    rates = {name: bus_bytes(row) / row.timing.median_s for name, row in largest.items()}
    latency_s = min(row.timing.median_s for row in calls if row.name == "all_reduce")  # no call is faster than an empty one
    expected_s = [latency_s + bus_bytes(row) / rates[row.name] for row in calls]
    low = min(row.timing.low_s / seconds for row, seconds in zip(calls, expected_s, strict=True))
    high = max(row.timing.high_s / seconds for row, seconds in zip(calls, expected_s, strict=True))
    return {
        "all_reduce_devices": largest["all_reduce"].sizes["processes"],
        "all_reduce_busbw_bytes_per_s": _short(rates["all_reduce"]),
        "all_reduce_latency_s": _short(latency_s),
        "all_reduce_error": _short(largest["all_reduce"].timing.spread),
        "collective_busbw_bytes_per_s": {name: _short(rate) for name, rate in rates.items()},
        "collective_spread": [_short(low), max(1.0, _short(high))],
    }


def bus_bytes(row: MeasuredRow) -> float:
    """Bytes that cross the link of one process in a ring of n (NCCL's performance notes): of the whole tensor 2 (n - 1) / n in
    an all-reduce, half of that in a gather or a scatter, all of it in a broadcast."""
    passes = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}.get(row.name)
    processes = row.sizes["processes"]
    return row.bytes * (1 if passes is None else passes * (processes - 1) / processes)


def _short(value: float) -> float:
    return float(f"{value:.4g}")
