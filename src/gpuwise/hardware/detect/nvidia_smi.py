"""NVIDIA's GPUs as the command-line tool nvidia-smi lists them: less than NVML tells, and without its Python package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuwise.hardware.detect.files import run
from gpuwise.hardware.detect.gpu import Gpu, GpuLoad, GpuSurvey, visible

# Of nvidia-smi, which refuses a whole question for one word it does not know (--help-query-gpu lists them).
_QUERY_FIELDS = (
    "name",
    "memory.total",
    "uuid",
    "driver_version",
    "compute_cap",
    "power.limit",
    "power.default_limit",
    "clocks.max.sm",
    "clocks.max.memory",
    "pcie.link.gen.max",
    "pcie.link.width.max",
    "utilization.gpu",
    "memory.used",
    "clocks.sm",
    "temperature.gpu",
)
_MIB, _MHZ = 2**20, 1e6


def read_nvidia_smi() -> GpuSurvey:
    """The GPUs as nvidia-smi lists them; an empty survey without it."""
    fields: Sequence[str] = _QUERY_FIELDS
    lines = _query_tool(fields)
    if not lines:
        fields = _QUERY_FIELDS[:2]
        lines = _query_tool(fields)
    rows = [dict(zip(fields, cells, strict=True)) for cells in lines]
    rows = [row for row in rows if row["name"] and row["memory.total"].isdecimal()]
    rows = [rows[index] for index in visible([row.get("uuid", "") for row in rows])]
    return GpuSurvey(tuple(map(_gpu_of_row, rows)), (), tuple(map(_load_of_row, rows)), "nvidia-smi" if rows else "")


def _query_tool(fields: Sequence[str]) -> list[list[str]]:
    output = run(["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"])
    rows = [[cell.strip() for cell in line.rsplit(",", len(fields) - 1)] for line in output.splitlines()]
    return [row for row in rows if len(row) == len(fields)]


def _gpu_of_row(row: Mapping[str, str]) -> Gpu:
    major, _, minor = row.get("compute_cap", "").partition(".")
    generation, width = _figure(row, "pcie.link.gen.max"), _figure(row, "pcie.link.width.max")
    return Gpu(
        name=row["name"],
        memory_bytes=int(row["memory.total"]) * _MIB,
        driver=row.get("driver_version"),
        compute_capability=(int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None,
        power_limit_w=_figure(row, "power.limit"),
        default_power_limit_w=_figure(row, "power.default_limit"),
        clock_hz=_figure(row, "clocks.max.sm", _MHZ),
        memory_clock_hz=_figure(row, "clocks.max.memory", _MHZ),
        pcie_generation=None if generation is None else int(generation),
        pcie_width=None if width is None else int(width),
    )


def _load_of_row(row: Mapping[str, str]) -> GpuLoad:
    used = _figure(row, "memory.used", _MIB)
    return GpuLoad(
        name=row["name"],
        busy=_figure(row, "utilization.gpu", 0.01),
        memory_bytes=int(row["memory.total"]) * _MIB,
        memory_used_bytes=None if used is None else int(used),
        clock_hz=_figure(row, "clocks.sm", _MHZ),
        temperature_c=_figure(row, "temperature.gpu"),
        power_limit_w=_figure(row, "power.limit"),
        default_power_limit_w=_figure(row, "power.default_limit"),
    )


def _figure(row: Mapping[str, str], key: str, scale: float = 1.0) -> float | None:
    """A figure of the tool, which writes [N/A] where there is none."""
    try:
        return float(row[key]) * scale
    except (KeyError, ValueError):
        return None
