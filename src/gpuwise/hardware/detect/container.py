"""The limits of this process by its control groups, version 1 and 2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gpuwise.hardware.detect.files import ROOT, number, read

_NO_LIMIT = 2**60  # version 1 writes the largest multiple of a page that fits, about 2^63


@dataclass(frozen=True)
class Container:
    """The tightest limits on this process and what runs beside it; None where there is none.

    cpus: processors' worth of time, 1.5 for instance. memory_used_bytes: by all under that limit, less the file cache that
    can be dropped; None without a limit.
    """

    cpus: float | None = None
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None


def detect_container(root: Path = ROOT) -> Container:
    """The limits of cpu.max and memory.max, or of cpu.cfs_quota_us and memory.limit_in_bytes, of all groups around us."""
    shares = [share for version, group in _groups(root, "cpu") if (share := _cpus(version, group)) is not None]
    limits = [
        (limit, version, group)
        for version, group in _groups(root, "memory")
        if (limit := number(group / _MEMORY[version][0])) is not None and limit < _NO_LIMIT
    ]
    if not limits:
        return Container(min(shares, default=None))
    limit, version, group = min(limits, key=lambda candidate: candidate[0])
    return Container(min(shares, default=None), limit, _used(version, group))


def throttled_s(root: Path = ROOT) -> float | None:
    """Seconds for which a limit of processors has stopped what runs under it, so far; None where none is counted."""
    seconds = []
    for version, group in _groups(root, "cpu"):
        counters = dict(line.split(maxsplit=1) for line in read(group / "cpu.stat").splitlines() if " " in line)
        key, unit_s = ("throttled_usec", 1e-6) if version == 2 else ("throttled_time", 1e-9)
        if counters.get(key, "").isdecimal():
            seconds.append(int(counters[key]) * unit_s)
    return max(seconds, default=None)


# By version: the limit, what is used of it, and what of that is file cache that can go.
_MEMORY = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


def _groups(root: Path, controller: str) -> Iterator[tuple[int, Path]]:
    """The folders of this process's groups from its own upwards, with their version.

    Inside a container the path that /proc tells is often one of the host, of which only the upper folder is to be seen: paths
    that are not there are simply not read.
    """
    home = root / "sys/fs/cgroup"
    for line in read(root / "proc/self/cgroup").splitlines() or ["0::/"]:
        number_, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "" and number_ == "0":
            version, bases = 2, [home, home / "unified"]
        elif controller in controllers.split(","):
            version, bases = 1, [home / name for name in dict.fromkeys((controller, controllers))]
        else:
            continue
        parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
        for base in bases:
            for depth in range(len(parts), -1, -1):
                yield version, base.joinpath(*parts[:depth])


def _cpus(version: int, group: Path) -> float | None:
    if version == 2:
        quota, _, period = read(group / "cpu.max").partition(" ")
    else:
        quota, period = read(group / "cpu.cfs_quota_us"), read(group / "cpu.cfs_period_us")
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() and int(quota) and int(period) else None


def _used(version: int, group: Path) -> int | None:
    _, used_file, cache_key = _MEMORY[version]
    used = number(group / used_file)
    if used is None:
        return None
    cache = [line.split()[1] for line in read(group / "memory.stat").splitlines() if line.startswith(f"{cache_key} ")]
    return max(0, used - int(cache[0])) if cache and cache[0].isdecimal() else used
