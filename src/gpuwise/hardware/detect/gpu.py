"""NVIDIA's GPUs as their driver tells of them: through NVML where its package is there, else through nvidia-smi, else none."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuwise.hardware.detect.files import ROOT, run


@dataclass(frozen=True)
class Gpu:
    """A GPU by the name its driver gives it; what the driver does not tell is None. The clocks are the highest it allows,
    PCIe generation and width what card and slot can do together. nvlinks: active ones. numa_node: the one it is wired to.
    multiprocessors: of AMD's, compute units."""

    name: str
    memory_bytes: int
    vendor: str = "NVIDIA"
    driver: str | None = None
    compute_capability: tuple[int, int] | None = None
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None
    clock_hz: float | None = None
    memory_clock_hz: float | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    nvlinks: int | None = None
    numa_node: int | None = None
    multiprocessors: int | None = None


@dataclass(frozen=True)
class GpuPair:
    """What joins two GPUs, by their places in the list of them. path: in words, "NVLink" or where on PCIe they meet. links:
    NVLinks straight from one to the other. peer_access: whether one can read the other's memory; None where not told."""

    first: int
    second: int
    path: str
    links: int = 0
    peer_access: bool | None = None


@dataclass(frozen=True)
class GpuLoad:
    """What a GPU is doing just now. busy: share of the last moments in which a kernel ran, 0 to 1. processes: their ids as the
    driver knows them, those of a container's host. held_back: words for what lowers the clock now. held_back_s: seconds for
    which "power" and "heat" have done so since the driver was loaded."""

    name: str
    busy: float | None = None
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    processes: tuple[int, ...] = ()
    clock_hz: float | None = None
    temperature_c: float | None = None
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None
    held_back: tuple[str, ...] = ()
    held_back_s: Mapping[str, float] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class GpuSurvey:
    """All of it at one moment, of the GPUs this process may use. told_by: NVML or nvidia-smi; "" without GPUs."""

    gpus: tuple[Gpu, ...] = ()
    pairs: tuple[GpuPair, ...] = ()
    loads: tuple[GpuLoad, ...] = ()
    told_by: str = ""


def survey_gpus(root: Path = ROOT) -> GpuSurvey:
    """The NVIDIA GPUs of this machine that CUDA_VISIBLE_DEVICES leaves, what joins them and what they do; never fails."""
    from gpuwise.hardware.detect.nvml import read_nvml

    found = read_nvml(root)
    if found is None and root == ROOT:
        found = _by_tool()
    return found or GpuSurvey()


def detect_gpus() -> tuple[Gpu, ...]:
    """NVIDIA GPUs of this machine; none when neither NVML nor nvidia-smi tells of any."""
    return survey_gpus().gpus


def visible(ids: Sequence[str]) -> list[int]:
    """The places of the GPUs that CUDA_VISIBLE_DEVICES leaves, in its order; ids: of all ("GPU-8f2a..."), or "" where unknown.

    As CUDA reads it: numbers or beginnings of ids; what follows an entry that names nothing does not count.
    """
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return list(range(len(ids)))
    found: list[int] = []
    for entry in text.split(","):
        entry = entry.strip()
        if entry.isdecimal():
            named = [int(entry)] if int(entry) < len(ids) else []
        else:
            named = [place for place, id_ in enumerate(ids) if entry and id_.startswith(entry)]
        if len(named) != 1 or named[0] in found:
            break
        found += named
    return found


# Of nvidia-smi, which refuses a whole question for one word it does not know (--help-query-gpu lists them).
_ASKED = (
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


def _by_tool() -> GpuSurvey:
    asked: Sequence[str] = _ASKED
    lines = _ask_tool(asked)
    if not lines:
        asked = _ASKED[:2]
        lines = _ask_tool(asked)
    rows = [dict(zip(asked, cells, strict=True)) for cells in lines]
    rows = [row for row in rows if row["name"] and row["memory.total"].isdecimal()]
    rows = [rows[place] for place in visible([row.get("uuid", "") for row in rows])]
    return GpuSurvey(tuple(map(_told_gpu, rows)), (), tuple(map(_told_load, rows)), "nvidia-smi" if rows else "")


def _ask_tool(asked: Sequence[str]) -> list[list[str]]:
    said = run(["nvidia-smi", f"--query-gpu={','.join(asked)}", "--format=csv,noheader,nounits"])
    rows = [[cell.strip() for cell in line.rsplit(",", len(asked) - 1)] for line in said.splitlines()]
    return [row for row in rows if len(row) == len(asked)]


def _told_gpu(row: Mapping[str, str]) -> Gpu:
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


def _told_load(row: Mapping[str, str]) -> GpuLoad:
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
