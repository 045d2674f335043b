"""GPUs as their driver describes them, what joins them and what they do now; and which of them this process may use."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


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
    """All of it at one moment, of the GPUs this process may use. source: "NVML", or "" without GPUs."""

    gpus: tuple[Gpu, ...] = ()
    pairs: tuple[GpuPair, ...] = ()
    loads: tuple[GpuLoad, ...] = ()
    source: str = ""


def visible(ids: Sequence[str]) -> list[int]:
    """The places of the GPUs that CUDA_VISIBLE_DEVICES leaves, in its order; ids: of all ("GPU-8f2a..."), or "" where unknown.

    As CUDA reads it: numbers or beginnings of ids; what follows an entry that names nothing does not count.
    """
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return list(range(len(ids)))
    positions: list[int] = []
    for entry in text.split(","):
        entry = entry.strip()
        if entry.isdecimal():
            matching = [int(entry)] if int(entry) < len(ids) else []
        else:
            matching = [index for index, id_ in enumerate(ids) if entry and id_.startswith(entry)]
        if len(matching) != 1 or matching[0] in positions:
            break
        positions += matching
    return positions
