"""The processor of this machine: cores, vector units, clock and caches, from /proc and /sys (macOS: sysctl)."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path

from gpuwise.hardware.detect.container import Container, detect_container
from gpuwise.hardware.detect.files import ROOT, folders, number, number_list, read, run, value_of
from gpuwise.hardware.detect.memory import detect_memory

# Flags of /proc/cpuinfo (x86, then Arm) and what they are called here.
_FLAGS = {
    "avx2": "avx2",
    "avx512f": "avx512",
    "avx512_vnni": "avx512-vnni",
    "avx512_bf16": "avx512-bf16",
    "avx512_fp16": "avx512-fp16",
    "amx_tile": "amx",
    "amx_bf16": "amx-bf16",
    "amx_int8": "amx-int8",
    "amx_fp16": "amx-fp16",
    "asimd": "neon",
    "sve": "sve",
    "sve2": "sve2",
    "bf16": "bf16",
    "i8mm": "i8mm",
    "sme": "sme",
}
# Arm leaves the name out: "CPU part" of implementer 0x41, as lscpu has them (util-linux, lscpu-arm.c).
_ARM = {"0xd0c": "Arm Neoverse-N1", "0xd40": "Arm Neoverse-V1", "0xd49": "Arm Neoverse-N2", "0xd4f": "Arm Neoverse-V2"}


@dataclass(frozen=True)
class Cache:
    """Caches of one level and size. shared_by: for each of them the logical processors it serves, as in '0-7,64-71'."""

    level: int
    size_bytes: int
    shared_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cpu:
    """This machine's processor as the operating system describes it, as far as this process may use it.

    cores, threads: physical and logical processors, no more than affinity and a container's limit allow. flags: of avx2,
    avx512 (avx512-halved where each instruction takes two passes) and its extensions -vnni, -bf16, -fp16; amx and -bf16, -int8,
    -fp16; neon, sve, sve2, bf16, i8mm, sme. cache_bytes: of one data cache by level, "L1" to "L3". memory_bytes: the machine's,
    or its container's limit.
    """

    name: str
    vendor: str
    cores: int
    threads: int
    clock_hz: float | None = None
    flags: tuple[str, ...] = ()
    cache_bytes: Mapping[str, int] = field(default_factory=dict, hash=False)
    memory_bytes: int | None = None
    system: str = ""
    sockets: int = 1
    caches: tuple[Cache, ...] = ()


def detect_cpu(root: Path = ROOT) -> Cpu:
    """The CPU and memory of this machine; what cannot be read is None, empty or 1 core."""
    info = read(root / "proc/cpuinfo")
    system = f"{platform.system()} {platform.release()}"
    if not info:
        return _detect_elsewhere(system)
    limits = detect_container(root)
    allowed = allowed_processors(root)
    core_ids = _core_ids(root, info, allowed)
    cores, threads = len(set(core_ids)) or len(allowed), len(allowed)
    if limits.cpus is not None:
        cores, threads = min(cores, max(1, int(limits.cpus))), min(threads, ceil(limits.cpus))
    part = _ARM.get(value_of(info, "CPU part"), "") if value_of(info, "CPU implementer") == "0x41" else ""
    vendor = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD"}.get(value_of(info, "vendor_id"), platform.machine())
    caches = _caches(root, allowed)
    return Cpu(
        name=value_of(info, "model name") or part or platform.machine() or "CPU",
        vendor=vendor,
        cores=cores,
        threads=threads,
        clock_hz=_clock_hz(root, info),
        flags=vector_units(info),
        cache_bytes={f"L{cache.level}": cache.size_bytes for cache in caches},
        memory_bytes=_memory_bytes(root, limits),
        system=system,
        sockets=len({package for package, _ in core_ids}) or 1,
        caches=caches,
    )


def _detect_elsewhere(system: str) -> Cpu:
    """macOS through sysctl; elsewhere only what Python knows."""
    threads = os.cpu_count() or 1
    names = ["machdep.cpu.brand_string", "hw.physicalcpu", "hw.memsize"]
    values = run(["sysctl", "-n", *names]).splitlines()
    if len(values) == 3 and values[1].isdecimal() and values[2].isdecimal():
        vendor = "Apple" if values[0].startswith("Apple") else "Intel"
        flags = ("neon",) if vendor == "Apple" else ("avx2",)
        return Cpu(values[0], vendor, int(values[1]), threads, None, flags, {}, int(values[2]), system)
    return Cpu(platform.processor() or "CPU", platform.machine(), max(1, threads // 2), threads, system=system)


def allowed_processors(root: Path = ROOT) -> tuple[int, ...]:
    """The logical processors this process may run on, at least one."""
    present = [int(n) for n in re.findall(r"^processor\s*:\s*(\d+)", read(root / "proc/cpuinfo"), re.MULTILINE)]
    allowed = set(number_list(value_of(read(root / "proc/self/status"), "Cpus_allowed_list")))
    if not allowed and root == ROOT and hasattr(os, "sched_getaffinity"):
        allowed = os.sched_getaffinity(0)
    return tuple(n for n in present if n in allowed) or tuple(present) or (0,)


def core_processors(root: Path = ROOT) -> list[int]:
    """One logical processor of each physical core that this process may use; all of them where cores are not told."""
    allowed = allowed_processors(root)
    core_ids: Sequence[object] = _core_ids(root, read(root / "proc/cpuinfo"), allowed) or allowed
    first: dict[object, int] = {}
    for processor, core_id in zip(allowed, core_ids, strict=True):
        first.setdefault(core_id, processor)
    return list(first.values())


def vector_units(info: str) -> tuple[str, ...]:
    """The vector and matrix units that PyTorch's kernels ask for, of the flags in /proc/cpuinfo."""
    present = set((value_of(info, "flags") or value_of(info, "Features")).split())
    zen4 = value_of(info, "vendor_id") == "AuthenticAMD" and value_of(info, "cpu family") == "25"
    names = _FLAGS | ({"avx512f": "avx512-halved"} if zen4 else {})  # Zen 4 runs 512-bit instructions as two halves
    return tuple(name for flag, name in names.items() if flag in present)


def _core_ids(root: Path, info: str, allowed: Sequence[int]) -> list[tuple[int, int]]:
    """Socket and core of each logical processor; empty where the system does not tell."""
    keys = ("processor", "physical id", "core id")
    columns = [[int(n) for n in re.findall(rf"^{key}\s*:\s*(\d+)", info, re.MULTILINE)] for key in keys]
    if columns[1] and len({len(column) for column in columns}) == 1:
        return [(package, core) for n, package, core in zip(*columns, strict=True) if n in set(allowed)]
    core_ids = []
    for n in allowed:
        topology = root / f"sys/devices/system/cpu/cpu{n}/topology"
        package, core = number(topology / "physical_package_id"), number(topology / "core_id")
        if package is None or core is None:
            return []
        core_ids.append((package, core))
    return core_ids


def _clock_hz(root: Path, info: str) -> float | None:
    """The highest clock the system names, else that of the model's name: "cpu MHz" follows the load on many machines."""
    khz = number(root / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
    if khz:
        return khz * 1e3
    if named := re.search(r"@\s*(\d+(?:\.\d+)?)\s*GHz", value_of(info, "model name")):
        return float(named[1]) * 1e9
    mhz = value_of(info, "cpu MHz")
    return float(mhz) * 1e6 if re.fullmatch(r"\d+(\.\d+)?", mhz) else None


def _memory_bytes(root: Path, limits: Container) -> int | None:
    sizes = [size for size in (detect_memory(root, limits).total_bytes, limits.memory_bytes) if size is not None]
    return min(sizes, default=None)


def _caches(root: Path, allowed: Sequence[int]) -> tuple[Cache, ...]:
    """Data caches of the processors in use, nearest first; of a level the largest last."""
    covered: dict[str, set[int]] = {}  # by index: processors whose cache is known already
    sharing_of: dict[tuple[int, int], list[str]] = {}
    for n in allowed:
        for index in folders(root / f"sys/devices/system/cpu/cpu{n}/cache", "index"):
            if n in covered.setdefault(index.name, set()):
                continue
            sharing = read(index / "shared_cpu_list")
            covered[index.name] |= {n, *number_list(sharing)}
            size, level = read(index / "size"), number(index / "level")
            if level and size.endswith("K") and size[:-1].isdecimal() and read(index / "type") != "Instruction":
                sharing_of.setdefault((level, int(size[:-1]) * 1024), []).append(sharing or str(n))
    return tuple(Cache(level, size, tuple(sharing)) for (level, size), sharing in sorted(sharing_of.items()))
