"""What this machine is, found without PyTorch: CPU, memory, NVIDIA GPUs; matched to the catalog where possible."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path

from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.links import link_inside
from gpuwise.hardware.names import words
from gpuwise.hardware.types import Chip, Machine, Source

_TIMEOUT_S = 10
_FORM_WORDS = {"sxm", "sxm2", "pcie", "nvl", "die", "board"}  # in ids; nvidia-smi names them differently or not at all


@dataclass(frozen=True)
class Cpu:
    """This machine's processor as the operating system describes it. flags: of avx2, avx512 (avx512-halved where each
    instruction takes two passes), amx, neon, sve."""

    name: str
    vendor: str
    cores: int
    threads: int
    clock_hz: float | None = None
    flags: tuple[str, ...] = ()
    cache_bytes: Mapping[str, int] = field(default_factory=dict, hash=False)
    memory_bytes: int | None = None
    system: str = ""


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU as nvidia-smi names it."""

    name: str
    memory_bytes: int


def detect_cpu() -> Cpu:
    """The CPU and memory of this machine; what cannot be read is None, empty or 1 core."""
    info = _read(Path("/proc/cpuinfo"))
    system = f"{platform.system()} {platform.release()}"
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not info:
        return _detect_elsewhere(threads, system)
    name = _first(info, "model name") or platform.machine() or "CPU"
    cores = len(set(re.findall(r"physical id\s*:\s*(\d+)[\s\S]*?core id\s*:\s*(\d+)", info))) or threads
    mhz = _read(Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")).strip()
    clock = float(mhz) * 1e3 if mhz.isdigit() else _float(_first(info, "cpu MHz"), 1e6)
    vendor = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD"}.get(_first(info, "vendor_id"), platform.machine())
    return Cpu(name, vendor, min(cores, threads), threads, clock, _flags(info), _caches(),
               _memory_bytes(), system)  # fmt: skip


def _detect_elsewhere(threads: int, system: str) -> Cpu:
    """macOS through sysctl; elsewhere only what Python knows."""
    told = _run(["sysctl", "-n", "machdep.cpu.brand_string", "hw.physicalcpu", "hw.memsize"]).splitlines()
    if len(told) == 3 and told[1].isdigit() and told[2].isdigit():
        vendor = "Apple" if told[0].startswith("Apple") else "Intel"
        flags = ("neon",) if vendor == "Apple" else ("avx2",)
        return Cpu(told[0], vendor, int(told[1]), threads, None, flags, {}, int(told[2]), system)
    return Cpu(platform.processor() or "CPU", platform.machine(), max(1, threads // 2), threads, system=system)


def detect_gpus() -> tuple[Gpu, ...]:
    """NVIDIA GPUs of this machine; none when nvidia-smi is absent or fails."""
    found = []
    for line in _run(["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]).splitlines():
        name, _, memory = line.rpartition(",")
        if name.strip() and memory.strip().isdigit():
            found.append(Gpu(name.strip(), int(memory) * 2**20))
    return tuple(found)


def match_gpu(gpu: Gpu, chips: Mapping[str, Chip]) -> Chip | None:
    """The catalog chip behind a name of nvidia-smi: all naming words of the id occur in it and the memory agrees."""
    told = set(words(gpu.name))
    form = "pcie" if "pcie" in told else "nvl" if "nvl" in told else "sxm"
    best: tuple[int, int, str] | None = None
    for id_, chip in chips.items():
        if chip.vendor != "NVIDIA" or not chip.memory_bytes or not 0.9 < gpu.memory_bytes / chip.memory_bytes < 1.03:
            continue
        naming = [word for word in words(id_) if word not in _FORM_WORDS and not re.fullmatch(r"\d+gb", word)]
        if set(naming) <= told:
            score = (len(naming), any(word.startswith(form) for word in words(id_)), id_)
            best = score if best is None or score[:2] > best[:2] else best
    return chips[best[2]] if best else None


def detect_machine(catalog: Catalog) -> Machine:
    """This machine: its GPUs when there are any (of the first one's kind), else its CPU. What DEVICE `here` means."""
    cpu, gpus = detect_cpu(), detect_gpus()
    memory = "" if cpu.memory_bytes is None else f", {cpu.memory_bytes / 2**30:.1f} GiB"
    if not gpus:
        chip = local_cpu_chip(cpu, catalog)
        return Machine(chip, 1, None, None, cpu.cores, cpu.memory_bytes, f"{cpu.name}, {cpu.cores} cores{memory}")
    same = [gpu for gpu in gpus if gpu.name == gpus[0].name]
    chip = match_gpu(gpus[0], catalog.chips) or _unknown_gpu(gpus[0])
    return Machine(chip, len(same), link_inside(chip, len(same), catalog=catalog), None, cpu.cores, cpu.memory_bytes,
                   f"{len(same)} × {gpus[0].name} with {cpu.name}{memory}")  # fmt: skip


def _unknown_gpu(gpu: Gpu) -> Chip:
    source = Source("nvidia-smi on this machine", date.today().isoformat())
    return Chip("here-gpu", "NVIDIA", gpu.name, "gpu-consumer", memory_bytes=gpu.memory_bytes, source=source,
                notes="not in the catalog: rates unknown; add it in a file of your own")  # fmt: skip


def local_cpu_chip(cpu: Cpu, catalog: Catalog) -> Chip:
    """A Chip for this machine's CPU: the catalog's scaled to the cores here, or an estimate that says it is one."""
    today = date.today().isoformat()
    known = match_cpu(cpu, catalog.chips)
    if known is not None and known.sm_count:
        if known.sm_count == cpu.cores:
            return known
        share = cpu.cores / known.sm_count
        bandwidth = known.memory_bandwidth_bytes_per_s
        return replace(known, id="here-cpu", name=f"{cpu.name} ({cpu.cores} cores)", sm_count=cpu.cores,
                       peak_flops_per_s={k: v * share for k, v in known.peak_flops_per_s.items()},
                       memory_bandwidth_bytes_per_s=bandwidth and bandwidth * min(1.0, share), tdp_w=None,
                       source=Source(f"{known.id} scaled to {cpu.cores} cores", today, verified=False),
                       sources={})  # fmt: skip
    width = _flop_per_clock(cpu.flags)
    clock = cpu.clock_hz or 2.5e9  # when the system does not tell: a common base clock of servers
    peaks = {"fp32": cpu.cores * clock * width, "fp64": cpu.cores * clock * width / 2}
    if "amx" in cpu.flags:
        peaks["bf16"] = cpu.cores * clock * 2048  # AMX: 1024 multiply-adds of bf16 a clock and core (Intel's manual)
    # Memory: 10 GB/s a core, no more than two channels of DDR4-3200 (51.2 GB/s) at 80 %: low for a server on purpose.
    bandwidth = min(cpu.cores * 10e9, 41e9)
    text = f"estimate: {cpu.cores} cores × {clock / 1e9:.2f} GHz × {width} FLOP a clock; memory 10 GB/s a core up to 41"
    return Chip("here-cpu", cpu.vendor, f"{cpu.name} ({cpu.cores} cores)", "cpu", sm_count=cpu.cores,
                l2_bytes=cpu.cache_bytes.get("L3") or cpu.cache_bytes.get("L2"), boost_clock_hz=cpu.clock_hz,
                memory_bandwidth_bytes_per_s=bandwidth, peak_flops_per_s=peaks,
                source=Source(text, today, verified=False))  # fmt: skip


def match_cpu(cpu: Cpu, chips: Mapping[str, Chip]) -> Chip | None:
    """The catalog CPU whose model word (8380, 9654, 13900k) stands in this CPU's name."""
    told = set(words(cpu.name))
    cpus = (chip for chip in chips.values() if chip.kind == "cpu" and chip.vendor == cpu.vendor)
    return next((chip for chip in cpus if words(chip.id)[-1] in told), None)


def most_like_this(catalog: Catalog) -> Chip:
    """What DEVICE `cpu` means: the catalog CPU of this vendor (else of any) whose peak is nearest to this machine's."""
    cpu = detect_cpu()
    here = local_cpu_chip(cpu, catalog).peak_flops_per_s["fp32"]
    cpus = [chip for chip in catalog.chips.values() if chip.kind == "cpu" and "fp32" in chip.peak_flops_per_s]
    same = [chip for chip in cpus if chip.vendor == cpu.vendor] or cpus
    return min(same, key=lambda chip: max(chip.peak_flops_per_s["fp32"] / here, here / chip.peak_flops_per_s["fp32"]))


def _flop_per_clock(flags: tuple[str, ...]) -> int:
    """fp32 FLOP a clock and core: two FMA units of the vector width (512, 256 or 128 bits)."""
    return 64 if "avx512" in flags else 32 if "avx2" in flags or "sve" in flags else 16


def _flags(info: str) -> tuple[str, ...]:
    told = set((_first(info, "flags") or _first(info, "Features")).split())
    names = {"avx2": "avx2", "avx512f": "avx512", "amx_tile": "amx", "asimd": "neon", "sve": "sve"}
    if _first(info, "vendor_id") == "AuthenticAMD" and _first(info, "cpu family") == "25":
        names["avx512f"] = "avx512-halved"  # Zen 4 runs 512-bit instructions as two halves
    return tuple(name for flag, name in names.items() if flag in told)


def _memory_bytes() -> int | None:
    """The machine's memory, or the smaller limit of the container."""
    total = re.search(r"MemTotal:\s*(\d+) kB", _read(Path("/proc/meminfo")))
    limit = _read(Path("/sys/fs/cgroup/memory.max")).strip()
    known = [int(total[1]) * 1024] if total else []
    known += [int(limit)] if limit.isdigit() else []
    return min(known, default=None)


def _caches() -> dict[str, int]:
    sizes = {}
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        size, level = _read(index / "size").strip(), _read(index / "level").strip()
        if size.endswith("K") and size[:-1].isdigit() and _read(index / "type").strip() != "Instruction":
            sizes[f"L{level}"] = int(size[:-1]) * 1024
    return sizes


def _first(info: str, key: str) -> str:
    found = re.search(rf"^{key}\s*:\s*(.+)$", info, re.MULTILINE)
    return found[1].strip() if found else ""


def _float(text: str, scale: float) -> float | None:
    return float(text) * scale if re.fullmatch(r"\d+(\.\d+)?", text) else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _run(command: list[str]) -> str:
    """The output of a small tool; "" when it is absent, fails or hangs."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return done.stdout if done.returncode == 0 else ""
