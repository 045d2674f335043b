"""The results of `gpuwise measure` for this machine, one file a machine in the configuration folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeGuard

from gpuwise.errors import FileFormatError
from gpuwise.hardware.catalog import config_home
from gpuwise.hardware.tomlfile import read_toml
from gpuwise.hardware.types import PEAKS, AchievedRates, Chip, Source

FOLDER = "machines"
SEAL = "seal"  # the key of the digest that `gpuwise measure` writes


def calibration_path(machine: str) -> Path:
    """The path of a machine's file. machine: its key (gpuwise.hardware.detect.machine_key)."""
    return config_home() / FOLDER / f"{machine}.toml"


def cache_entry(path: Path) -> str:
    """Under which its tables are kept for the next process, and for whoever reads it next in this one."""
    return f"machine-{path.stem}"


def any_calibration() -> bool:
    """Whether there is a file of any machine: asked first, as telling which one is ours takes a look at the hardware."""
    return any((config_home() / FOLDER).glob("*.toml"))


def measured_when(path: Path) -> str:
    """The day on which a file was measured, and how: "2026-11-30, quick". "" where it does not say."""
    try:
        about = read_toml(path, entry=cache_entry(path))[0].get("measured")
    except FileFormatError:
        return ""
    if not isinstance(about, dict):
        return ""
    return f"{str(about.get('taken', ''))[:10]}{', quick' * (about.get('quick') is True)}"


def seal_of(tables: Mapping[str, object]) -> str:
    """The digest of a file's tables but for the digest itself."""
    others = {name: table for name, table in tables.items() if name != SEAL}
    return hashlib.sha256(json.dumps(others, sort_keys=True, default=str).encode()).hexdigest()


def is_as_written(tables: Mapping[str, object]) -> bool:
    """Whether nobody changed them since; true of files without a digest. Its figures rest on each other: the entries are
    fitted to the chip's own peaks, so a file is used as a whole or not at all."""
    return SEAL not in tables or tables[SEAL] == seal_of(tables)


def with_measurements(chip: Chip, machine: str) -> Chip:
    """The chip with what was measured of it: the calibration, and of a CPU the figures that catalogs only estimate.

    A file that is not there, not readable, changed or of another chip changes nothing; gpuwise.cost.calibration says so where
    it is damaged. GPUs keep the figures of their sheet, on which their calibration stands; what they achieved is beside them.
    """
    path = calibration_path(machine)
    if not path.exists():
        return chip
    try:
        data, _ = read_toml(path, entry=cache_entry(path))
    except FileFormatError:
        return replace(chip, calibration=str(path))
    if not is_as_written(data):
        return replace(chip, calibration=str(path))
    if data.get("of") != chip.id:
        return chip
    measured = replace(chip, calibration=str(path))
    figures = data.get("chip")
    if not isinstance(figures, dict):
        return measured
    if chip.kind != "cpu":
        return replace(measured, achieved=_achieved(figures.get("achieved")))
    return replace(_with(measured, figures), achieved=_of_cpu(figures.get("achieved"), data.get("measured")))


def _of_cpu(table: object, about: object) -> AchievedRates | None:
    """What was measured between processes, and with how many threads the figures of the chip were. None without both."""
    achieved, threads = _achieved(table), about.get("threads") if isinstance(about, dict) else None
    if not isinstance(threads, int) or isinstance(threads, bool) or threads < 1:
        return achieved
    return replace(achieved or AchievedRates(), threads=threads)


def _achieved(table: object) -> AchievedRates | None:
    """Rates of GPUs, or between processes on a CPU; those that are no rates are left out. None where there are none."""
    if not isinstance(table, dict):
        return None
    devices = table.get("all_reduce_devices")
    return AchievedRates(
        _peaks(table.get("peak_flops_per_s")),
        _rate_in(table, "memory_bandwidth_bytes_per_s"),
        _rate_in(table, "host_link_bytes_per_s"),
        _small_in(table, "host_link_error") or 0.0,
        devices if isinstance(devices, int) else 0,
        _rate_in(table, "all_reduce_busbw_bytes_per_s"),
        _small_in(table, "all_reduce_latency_s"),
        _small_in(table, "all_reduce_error") or 0.0,
        _rates_in(table, "collective_busbw_bytes_per_s"),
        _spread_in(table, "collective_spread"),
    )


def _rate_in(table: Mapping[str, object], name: str) -> float | None:
    value = table.get(name)
    return float(value) if _rate(value) else None


def _rates_in(table: Mapping[str, object], name: str) -> dict[str, float]:
    values = table.get(name)
    rates = values if isinstance(values, dict) else {}
    return {str(key): float(value) for key, value in rates.items() if _rate(value)}


def _spread_in(table: Mapping[str, object], name: str) -> tuple[float, float] | None:
    """Two ratios around 1; None where they are none."""
    values = table.get(name)
    if not isinstance(values, list) or len(values) != 2 or not all(_is_number(value) for value in values):
        return None
    low, high = float(values[0]), float(values[1])
    return (low, high) if 0 < low <= 1 <= high < 1e3 else None


def _small_in(table: Mapping[str, object], name: str) -> float | None:
    """Seconds of one call, or a share."""
    value = table.get(name)
    return float(value) if _is_number(value) and 0 <= value < 1 else None


def _with(chip: Chip, figures: Mapping[str, object]) -> Chip:
    peaks = _peaks(figures.get("peak_flops_per_s"))
    bandwidth = figures.get("memory_bandwidth_bytes_per_s")
    source = Source("gpuwise measure on this machine", str(figures.get("as_of", "")))
    measured = [*peaks, "peak_flops_per_s", *(["memory_bandwidth_bytes_per_s"] if _rate(bandwidth) else [])]
    return replace(
        chip,
        peak_flops_per_s={**chip.peak_flops_per_s, **peaks},
        memory_bandwidth_bytes_per_s=float(bandwidth) if _rate(bandwidth) else chip.memory_bandwidth_bytes_per_s,
        sources={**chip.sources, **dict.fromkeys(measured, source)},
    )


def _peaks(table: object) -> dict[str, float]:
    tables = table if isinstance(table, dict) else {}
    return {name: float(value) for name, value in tables.items() if name in PEAKS and _rate(value)}


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _rate(value: object) -> TypeGuard[int | float]:
    """Whether it is a number of operations or bytes a second that some machine could have."""
    return _is_number(value) and 1e6 < value < 1e17
