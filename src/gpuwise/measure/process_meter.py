"""Processor time and peak memory of a piece of work in this process, with those of the processes that it starts."""

from __future__ import annotations

import os
import re
import resource
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LOOK_S = 0.05  # between two looks at the processes that the work has started


@dataclass(frozen=True)
class Used:
    """What a piece of work took.

    Attributes:
        seconds: by the clock.
        cpu_s: of processors, over all threads and processes.
        peak_bytes: largest resident memory meanwhile, with what was resident before; None where the system does not tell.
    """

    seconds: float
    cpu_s: float
    peak_bytes: int | None


def metered(work: Callable[[], object]) -> Used:
    """Runs the work and returns what it took. Raises what it raises."""
    _forget_peak()
    workers = _StartedProcesses()
    with workers:
        before_s, before_cpu_s = time.perf_counter(), time.process_time() + _reaped_s()
        work()
        seconds, cpu_s = time.perf_counter() - before_s, time.process_time() + _reaped_s() - before_cpu_s
    own = peak_bytes()
    return Used(seconds, cpu_s + workers.cpu_s, None if own is None else own + workers.peak_bytes)


def peak_bytes() -> int | None:
    """Peak of this process's resident memory, since `metered` began where Linux allows it, else since its start."""
    with suppress(OSError):
        if high := re.search(r"^VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE):
            return int(high[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _forget_peak() -> None:
    """Linux counts the peak of this process anew (proc(5), clear_refs)."""
    with suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def _reaped_s() -> float:
    """Processor seconds of the processes that this one started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class _StartedProcesses:
    """Looks at the living processes that this one has started: joblib's, for one.

    Attributes:
        peak_bytes: largest resident memory of all together.
        cpu_s: processor seconds of those that are still alive at the end.
    """

    def __init__(self) -> None:
        self.peak_bytes, self.cpu_s = 0, 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look_again, daemon=True)

    def __enter__(self) -> None:
        self._before = {pid: _cpu_s(pid) for pid in _descendants(os.getpid())}
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        self.cpu_s = sum(max(0.0, _cpu_s(pid) - self._before.get(pid, 0.0)) for pid in _descendants(os.getpid()))

    def _look_again(self) -> None:
        while not self._done.wait(LOOK_S):
            self.peak_bytes = max(self.peak_bytes, sum(map(_resident_bytes, _descendants(os.getpid()))))


def _descendants(pid: int) -> list[int]:
    """The processes below this one; none where /proc does not tell (proc(5), children)."""
    below = []
    for task in _listed(f"/proc/{pid}/task"):
        with suppress(OSError):
            for child in map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split()):
                below += [child, *_descendants(child)]
    return below


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    except (OSError, IndexError, ValueError):
        return 0


def _cpu_s(pid: int) -> float:
    """Processor seconds of a process (proc(5), stat: fields 14 and 15)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0
