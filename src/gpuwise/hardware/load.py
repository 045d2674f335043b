"""The load of this machine: snapshots of its processors, clocks and GPUs."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path

from gpuwise.hardware.detect.container import detect_container, throttled_s
from gpuwise.hardware.detect.cpu import allowed_processors
from gpuwise.hardware.detect.files import ROOT, folders, number, read
from gpuwise.hardware.detect.gpu import GpuLoad
from gpuwise.hardware.detect.nvml import survey_gpus

_SETTLE_S = 0.02  # of work before clocks are read: a core that slept shows a low one
_BUSY_FIELDS, _IDLE_FIELDS, _STOLEN_FIELD = (0, 1, 2, 5, 6), (3, 4), 7  # of /proc/stat (man 5 proc_stat)


@dataclass(frozen=True)
class LoadSnapshot:
    """This machine at one moment. Times are counted since its start; what cannot be read is None.

    Attributes:
        taken_s, wall_s, awake_s: by the monotonic clock, by the system's clock, and by the clock that counts suspended time.
        processors: logical ones that this process may use.
        busy_s, idle_s, stolen_s: of these processors, summed over them.
        own_s: processor seconds of this process and its children.
        clock_hz: of the fastest of them now.
        heat_throttles: how often heat lowered a clock.
        waiting_s: for which some program waited for a processor.
        throttled_s: for which a container's limit stopped us.
        cpu_limit: that limit, in processors.
        load_average: of a minute, 5 and 15.
        gpus: what each is doing.
    """

    taken_s: float
    wall_s: float
    awake_s: float | None = None
    processors: int = 1
    busy_s: float | None = None
    idle_s: float | None = None
    stolen_s: float | None = None
    own_s: float | None = None
    clock_hz: float | None = None
    heat_throttles: int | None = None
    waiting_s: float | None = None
    throttled_s: float | None = None
    cpu_limit: float | None = None
    load_average: tuple[float, ...] = ()
    gpus: tuple[GpuLoad, ...] = ()


def load(root: Path = ROOT) -> LoadSnapshot:
    """A snapshot. It works for 20 ms first, so that the clock read is that of a core at work."""
    until_s = time.perf_counter() + _SETTLE_S
    while time.perf_counter() < until_s:
        pass
    processors = allowed_processors(root)
    clock_hz = _clock_hz(root, processors)  # first, while the core is warm
    return replace(
        processor_times(root),
        awake_s=time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else None,
        clock_hz=clock_hz,
        heat_throttles=_heat_throttles(root, processors),
        waiting_s=_waiting_s(root),
        throttled_s=throttled_s(root),
        cpu_limit=detect_container(root).cpus,
        load_average=tuple(float(text) for text in re.findall(r"\d+\.\d+", read(root / "proc/loadavg"))[:3]),
        gpus=survey_gpus(root).loads,
    )


def processor_times(root: Path = ROOT) -> LoadSnapshot:
    """A snapshot of the processors' times alone: about a millisecond."""
    processors = allowed_processors(root)
    busy, idle, stolen = _processor_times(root, processors) or (None, None, None)
    return LoadSnapshot(
        time.monotonic(), time.time(), processors=len(processors), busy_s=busy, idle_s=idle, stolen_s=stolen, own_s=_own_s(root)
    )


def _ticks_per_s() -> int:
    return os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def _processor_times(root: Path, processors: tuple[int, ...]) -> tuple[float, float, float] | None:
    """Busy, idle and stolen seconds of these processors."""
    rows = {
        int(n): [int(text) for text in rest.split()]
        for n, rest in re.findall(r"^cpu(\d+) ([\d ]+)$", read(root / "proc/stat"), re.MULTILINE)
    }
    ours = [rows[n] for n in processors if len(rows.get(n, ())) > _STOLEN_FIELD]
    if not ours:
        return None
    columns = [sum(row[field] for row in ours) / _ticks_per_s() for field in range(_STOLEN_FIELD + 1)]
    return sum(columns[i] for i in _BUSY_FIELDS), sum(columns[i] for i in _IDLE_FIELDS), columns[_STOLEN_FIELD]


def _own_s(root: Path) -> float | None:
    """Processor seconds of this process, of the children it waited for, and of those still at work, theirs included."""
    self_id = read(root / "proc/self/stat").partition(" ")[0]
    if not self_id:
        return sum(os.times()[:4]) if root == ROOT else None
    children: dict[str, list[str]] = {}
    ticks: dict[str, int] = {}
    for process in folders(root / "proc", ""):
        fields = read(process / "stat").rpartition(")")[2].split()  # the name before may hold anything
        if len(fields) > 14:
            children.setdefault(fields[1], []).append(process.name)
            ticks[process.name] = sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime (man 5 proc_pid_stat)
    ours = [self_id]
    for process_id in ours:  # grows as it goes
        ours += children.get(process_id, [])
    return sum(ticks.get(process_id, 0) for process_id in ours) / _ticks_per_s()


def _clock_hz(root: Path, processors: tuple[int, ...]) -> float | None:
    home = root / "sys/devices/system/cpu"
    clocks_hz = [khz * 1e3 for n in processors if (khz := number(home / f"cpu{n}/cpufreq/scaling_cur_freq"))]
    if not clocks_hz:
        lines = re.findall(r"^cpu MHz\s*:\s*(\d+(?:\.\d+)?)", read(root / "proc/cpuinfo"), re.MULTILINE)
        clocks_hz = [float(mhz) * 1e6 for mhz in lines]
    return max(clocks_hz, default=None)


def _heat_throttles(root: Path, processors: tuple[int, ...]) -> int | None:
    """A package's count is told by each of its cores, so that of the most is taken there."""
    homes = [root / f"sys/devices/system/cpu/cpu{n}/thermal_throttle" for n in processors]
    cores = [count for home in homes if (count := number(home / "core_throttle_count")) is not None]
    packages = [count for home in homes if (count := number(home / "package_throttle_count")) is not None]
    return sum(cores) + max(packages, default=0) if cores or packages else None


def _waiting_s(root: Path) -> float | None:
    """A figure of /proc/pressure/cpu (kernel: accounting/psi)."""
    total = re.search(r"^some .*total=(\d+)", read(root / "proc/pressure/cpu"), re.MULTILINE)
    return int(total[1]) / 1e6 if total else None
