"""What `gpuwise measure` found of this machine, kept in the folder of the configuration: one file a machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuwise.errors import FileFormatError
from gpuwise.hardware.catalog import config_home
from gpuwise.hardware.tomlfile import read_toml
from gpuwise.hardware.types import PEAKS, Chip, Source

FOLDER = "machines"


def calibration_path(machine: str) -> Path:
    """Where the file of a machine is kept. machine: its key (gpuwise.hardware.detect.machine_key)."""
    return config_home() / FOLDER / f"{machine}.toml"


def cache_entry(path: Path) -> str:
    """Under which its tables are kept for the next process, and for whoever reads it next in this one."""
    return f"machine-{path.stem}"


def any_calibration() -> bool:
    """Whether there is a file of any machine: asked first, as telling which one is ours takes a look at the hardware."""
    return any((config_home() / FOLDER).glob("*.toml"))


def with_measurements(chip: Chip, machine: str) -> Chip:
    """The chip with what was measured of it: the calibration, and of a CPU the figures that catalogs only estimate.

    A file that is not there, not readable or of another chip changes nothing; gpuwise.cost.calibration says so where it is
    damaged. GPUs keep the figures of their sheet, on which their calibration stands.
    """
    path = calibration_path(machine)
    if not path.exists():
        return chip
    try:
        data, _ = read_toml(path, entry=cache_entry(path))
    except FileFormatError:
        return replace(chip, calibration=str(path))
    if data.get("of") != chip.id:
        return chip
    measured = replace(chip, calibration=str(path))
    figures = data.get("chip")
    if chip.kind != "cpu" or not isinstance(figures, dict):
        return measured
    return _with(measured, figures)


def _with(chip: Chip, figures: Mapping[str, Any]) -> Chip:
    peaks = figures.get("peak_flops_per_s")
    peaks = peaks if isinstance(peaks, dict) else {}
    peaks = {name: float(value) for name, value in peaks.items() if name in PEAKS and _rate(value)}
    bandwidth = figures.get("memory_bandwidth_bytes_per_s")
    changes: dict[str, Any] = {"peak_flops_per_s": {**chip.peak_flops_per_s, **peaks}}
    if bandwidth is not None and _rate(bandwidth):
        changes["memory_bandwidth_bytes_per_s"] = float(bandwidth)
    source = Source("gpuwise measure on this machine", str(figures.get("as_of", "")))
    return replace(chip, **changes, sources={**chip.sources, **dict.fromkeys((*peaks, *changes), source)})


def _rate(value: Any) -> bool:
    """Whether it is a number of operations or bytes a second that some machine could have."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 1e6 < value < 1e17
