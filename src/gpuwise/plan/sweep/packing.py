"""Packs equal runs on devices and machines, exactly: how many at once on each device, how many on each machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuwise.plan.sweep.sharing import slowdown

Seconds = NDArray[np.float64]


def device_times(runs: int, *, run_s: float, busy: float, most: int) -> Seconds:
    """The shortest time of 0, 1, ... `runs` runs on one device, in waves of at most `most` copies. Shape (runs + 1,).

    Arguments:
        run_s: of one run alone.
        busy: share of its step that the device is busy.

    Dynamic programming over the last wave: exact among schedules of waves.
    """
    waves = np.array([run_s * slowdown(copies, busy) for copies in range(1, most + 1)])
    times: Seconds = np.zeros(runs + 1)
    for count in range(1, runs + 1):
        most_here = min(count, most)
        times[count] = np.min(waves[:most_here] + times[count - most_here : count][::-1])
    return times


@dataclass(frozen=True)
class Packing:
    """Runs on equal machines.

    Attributes:
        each: runs of each machine, most first.
        usd: of all machines.
        seconds: until the last machine has ended.
    """

    each: tuple[int, ...]
    usd: float
    seconds: float


def cheapest_packing(
    runs: int, *, times: Seconds, devices: int, bill: Callable[[float], tuple[float, float]], most_machines: int, limit_s: float
) -> Packing | None:
    """The cheapest distribution of runs over equal machines, all of which end within a limit; None if there is none.

    Arguments:
        times: of device_times.
        devices: of one machine.
        bill: (dollars, calendar seconds) of one machine for so many seconds of work; both must not fall with more work.
        most_machines: that can be had.
        limit_s: calendar time until the last machine has ended.

    Dynamic programming over the runs of the last machine: exact, except that fewer machines are not searched for where the
    cheapest distribution takes more than most_machines. Then runs are spread evenly over most_machines.
    """
    bills = [bill(float(times[-(-count // devices)])) for count in range(1, runs + 1)]
    usd, seconds = (np.array([each[i] for each in bills]) for i in (0, 1))
    largest = int(np.searchsorted(seconds, limit_s, side="right"))  # runs of one machine within the limit
    if largest == 0:
        return None
    total: Seconds = np.zeros(runs + 1)
    last = np.zeros(runs + 1, dtype=np.int64)
    for count in range(1, runs + 1):
        most_here = min(count, largest)
        costs = usd[:most_here] + total[count - most_here : count][::-1]
        best = most_here - 1 - int(np.argmin(costs[::-1]))  # of equal costs the one with most runs a machine
        total[count], last[count] = costs[best], best + 1
    each, left = [], runs
    while left:
        each.append(int(last[left]))
        left -= each[-1]
    if len(each) > most_machines:
        each = even(runs, most_machines)
        if each[0] > largest:
            return None
    return _packing(each, usd, seconds)


def even(runs: int, machines: int) -> list[int]:
    """Runs of each machine when they are spread evenly, most first."""
    least, more = divmod(runs, machines)
    return [count for count in [least + 1] * more + [least] * (machines - more) if count]


def _packing(each: Sequence[int], usd: NDArray[np.float64], seconds: NDArray[np.float64]) -> Packing:
    ordered = tuple(sorted(each, reverse=True))
    return Packing(ordered, float(sum(usd[count - 1] for count in ordered)), float(seconds[ordered[0] - 1]))


def fastest_packing(
    runs: int,
    *,
    times: Seconds,
    devices: int,
    bill: Callable[[float], tuple[float, float]],
    most_machines: int,
    limit_usd: float,
) -> Packing | None:
    """The evenly spread distribution that ends first within a budget; None if there is none. Arguments as above."""
    best: tuple[float, float, int] | None = None
    for machines in range(1, min(runs, most_machines) + 1):
        least, more = divmod(runs, machines)
        most_usd, seconds = bill(float(times[-(-(least + bool(more)) // devices)]))
        usd = most_usd * (more or machines)
        if more and least:
            usd += bill(float(times[-(-least // devices)]))[0] * (machines - more)
        if usd <= limit_usd and (best is None or (seconds, usd) < best[:2]):
            best = seconds, usd, machines
    return None if best is None else Packing(tuple(even(runs, best[2])), best[1], best[0])
