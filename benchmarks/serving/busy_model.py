"""A model that keeps a processor busy for an exact time, served for real: what the queue's simulation alone is off by."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from gpuwise.cost.forecast import Interval
from gpuwise.runtime.serving.server import replay
from gpuwise.runtime.serving.timing import time_groups
from gpuwise.runtime.serving.waiting_line import RealClock
from gpuwise.serving.group_server import GroupServer
from gpuwise.serving.instance import LoadShape
from gpuwise.serving.lengths import Lengths
from gpuwise.serving.pass_times import ForwardTimes
from gpuwise.serving.requests import Requests
from gpuwise.serving.windowed import WindowPolicy

PASS_S, REQUEST_S = 5e-3, 1e-3
LOAD_S = 6.0
HEADERS = ("batch", "share", "requests", "p50", "passes alone", "with the server", "p99", "passes alone", "with the server")


class BusyModel:
    """Passes of PASS_S, and REQUEST_S for each request."""

    def serving(self, load: Requests) -> BusyModel:
        return self

    def answer(self, group: Sequence[int], first: Callable[[int], None], last: Callable[[int], None]) -> None:
        until_s = time.perf_counter() + PASS_S + REQUEST_S * len(group)
        while time.perf_counter() < until_s:
            pass
        for request in group:
            first(request)
            last(request)


def queue_table() -> str:
    """Errors of p50 and p99 at shares of the capacity, as simulated from the exact passes and with what the server adds."""
    model = BusyModel()
    lines = [f"| {' | '.join(HEADERS)} |", "| ---: " * len(HEADERS) + "|"]
    for batch in (1, 8):
        policy = WindowPolicy(batch)
        seconds = {size: PASS_S + REQUEST_S * size for size in (1, batch)}
        times = ForwardTimes({size: Interval(value, value, value) for size, value in seconds.items()})
        exact = GroupServer(times, policy)
        for share in (0.3, 0.6, 0.9):
            rate = share * batch / seconds[batch]
            load = LoadShape(Lengths(1, 1), seed=0).at(rate, count=round(LOAD_S * rate))
            profile = time_groups(model, times, load, partial(replay, policy=WindowPolicy(1)), RealClock(), idle_s=1 / rate)
            measured = replay(load, model, policy).served.latency_s
            cells = [f"{batch}", f"{share:.0%}", f"{len(load):,}"]
            for percent in (50, 99):
                value = float(np.percentile(measured, percent))
                simulated = [
                    float(np.percentile(server.served(load).latency_s, percent)) for server in (exact, exact.timed(profile))
                ]
                cells += [f"{1e3 * value:.2f} ms", *(f"{each / value - 1:+.1%}" for each in simulated)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
