"""Times functions: a warm-up, then rounds long enough for the clock, with their median and spread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import ceil

import torch

from gpuwise.results.measurement import Timing
from gpuwise.runtime.devices import Backend, backend_of

LEAST_ROUND_S = 2e-4  # clock and scheduler dominate shorter rounds
FEWEST_ROUNDS = 3


def timed(
    runs: Sequence[Callable[[], object]], *, budget_s: float, device: torch.device | str = "cpu", rounds: int = 30
) -> Timing:
    """Times `runs`, which do the same work on different inputs and take turns, so that no cache holds their input.

    Arguments:
        runs: the functions.
        budget_s: seconds in total, including warm-up; at least FEWEST_ROUNDS rounds are made.
        device: device of the work.
        rounds: largest number of rounds.
    """
    once = clock_of(device)
    began = time.perf_counter()
    taken = min(once(run) for run in runs)  # the first run of each is the warm-up
    taken = min(taken, *(once(run) for run in runs))
    repeats = max(1, ceil(LEAST_ROUND_S / max(taken, 1e-7)))
    seconds: list[float] = []
    while len(seconds) < rounds and (len(seconds) < FEWEST_ROUNDS or time.perf_counter() - began < budget_s):
        turn = [runs[(len(seconds) * repeats + i) % len(runs)] for i in range(repeats)]
        seconds.append(once(*turn) / repeats)
    return summary(seconds)


def summary(seconds: Sequence[float]) -> Timing:
    ordered = sorted(seconds)
    last = len(ordered) - 1
    return Timing(statistics.median(ordered), ordered[round(0.1 * last)], ordered[round(0.9 * last)], ordered[0], len(ordered))


def wall_seconds(*runs: Callable[[], object]) -> float:
    start = time.perf_counter()
    for run in runs:
        run()
    return time.perf_counter() - start


def clock_of(device: torch.device | str) -> Callable[..., float]:
    """The function that runs and times work on a device, in seconds."""
    backend = backend_of(device)
    return wall_seconds if backend.is_host else partial(device_seconds, backend)


def device_seconds(backend: Backend, *runs: Callable[[], object]) -> float:
    """Seconds by the device's events, which exclude the host unless it is too slow to keep the device busy.

    Of a device without timed events, seconds by the clock until all of its work is done.
    """
    if not backend.has_timed_events:
        backend.synchronize()
        return wall_seconds(*runs, backend.synchronize)
    start, end = backend.new_event(timed=True), backend.new_event(timed=True)
    backend.synchronize()
    start.record()
    for run in runs:
        run()
    end.record()
    backend.synchronize()
    return start.elapsed_time(end) / 1e3
