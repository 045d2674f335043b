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


class Figures(TypedDict, total=False):
    """The table [chip].

    Attributes:
        peak_flops_per_s: measured peaks by dtype, for a CPU.
        memory_bandwidth_bytes_per_s: measured bandwidth, for a CPU.
        achieved: achieved rates, for a GPU.
    """

    peak_flops_per_s: dict[str, float]
    memory_bandwidth_bytes_per_s: float
    achieved: AchievedFigures


def chip_figures(
    chip: Chip, rows: Sequence[MeasuredRow], peaks: Sequence[AchievedPeak], levels: Sequence[MemoryLevel]
) -> Figures:
    """The measured figures of a chip, without unmeasured ones.

    For a CPU they are the peaks and the bandwidth, which replace the catalog's estimates. A GPU has a datasheet, so its
    figures are the achieved rates (gpuwise.hardware.types.AchievedRates).
    """
    rates: AchievedFigures = {}
    if peaks:
        rates["peak_flops_per_s"] = {peak.dtype: _short(peak.measured) for peak in peaks}
    if levels and levels[-1].name == "memory":
        rates["memory_bandwidth_bytes_per_s"] = _short(levels[-1].measured)
    if chip.kind != "cpu":
        rates |= {**_host_link(rows), **_all_reduce(rows)}
        return {"achieved": rates} if rates else {}
    figures: Figures = {}
    if peaks:
        single = next((peak.measured for peak in peaks if peak.dtype == "fp32"), 0.0)
        native = [peak.dtype for peak in peaks if peak.dtype in SLOWER or peak.measured >= single]
        figures["peak_flops_per_s"] = {dtype: rates["peak_flops_per_s"][dtype] for dtype in native}
    if "memory_bandwidth_bytes_per_s" in rates:
        figures["memory_bandwidth_bytes_per_s"] = rates["memory_bandwidth_bytes_per_s"]
    return figures


def _host_link(rows: Sequence[MeasuredRow]) -> AchievedFigures:
    """The slower direction of the largest copies from and to pinned memory."""
    copies = [row for row in rows if row.group == "copy" and "pinned" in row.name]
    largest = max((row.bytes for row in copies), default=0)
    slowest = min((row for row in copies if row.bytes == largest), key=lambda row: row.bytes_per_s, default=None)
    if slowest is None:
        return {}
    return {"host_link_bytes_per_s": _short(slowest.bytes_per_s), "host_link_error": _short(slowest.timing.spread)}


def _all_reduce(rows: Sequence[MeasuredRow]) -> AchievedFigures:
    """Bus bandwidth of all-reduce: 2 (n - 1) / n times the bytes per second (NCCL's performance notes)."""
    calls = sorted((row for row in rows if row.group == "collective" and row.name == "all_reduce"), key=lambda row: row.bytes)
    if not calls:
        return {}
    devices = calls[-1].sizes["processes"]
    return {
        "all_reduce_devices": devices,
        "all_reduce_busbw_bytes_per_s": _short(2 * (devices - 1) / devices * calls[-1].bytes_per_s),
        "all_reduce_latency_s": _short(calls[0].timing.median_s),
        "all_reduce_error": _short(calls[-1].timing.spread),
    }


def _short(value: float) -> float:
    return float(f"{value:.4g}")
