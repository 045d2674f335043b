"""One line of requests before several servers of forward passes: a free one takes the oldest that waits, and others with it.

Requests of different lengths run together where they are of one bucket. A batch starts once a server is free and the batch is
full, or its oldest request has waited for the window. Nobody is turned away, and nobody leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace

import numpy as np

from gpuwise.serving.requests import Requests
from gpuwise.serving.served import Served
from gpuwise.serving.windowed import NO_COSTS, GroupTime, ServerCosts, WindowPolicy


def serve_line(
    load: Requests,
    group_s: GroupTime,
    policy: WindowPolicy,
    *,
    servers: int = 1,
    bucket_of: Sequence[int] | None = None,
    costs: ServerCosts = NO_COSTS,
) -> Served:
    """Serves a load, as gpuwise.serving.windowed.serve_groups does for one server without a limit of its queue.

    Arguments:
        servers: that run at once, each as fast as alone; 1 by default.
        bucket_of: bucket of each request; None (default) for one of all.
        costs: what each server adds.

    Busy seconds of the result are means over the servers.
    """
    idle_s, jitter = costs.draws(len(load))
    arrival_s, count = load.arrival_s.tolist(), len(load)
    buckets: dict[int, list[int]] = {}
    for request in range(count):
        buckets.setdefault(0 if bucket_of is None else bucket_of[request], []).append(request)
    taken = dict.fromkeys(buckets, 0)  # of each bucket, in order of arrival
    first_s, end_s = np.full(count, np.nan), np.full(count, np.nan)
    free_s = [0.0] * servers
    heapify(free_s)
    busy_s, iterations, left = 0.0, 0, count
    while left:
        oldest, bucket = min((each[taken[name]], name) for name, each in buckets.items() if taken[name] < len(each))
        waiting, begin = buckets[bucket], taken[bucket]
        last = begin + policy.batch - 1
        full_s = arrival_s[waiting[last]] if last < len(waiting) else np.inf
        start_s = max(free_s[0], min(full_s, arrival_s[oldest] + policy.window_s))
        end = begin + 1
        while end < len(waiting) and end <= last and arrival_s[waiting[end]] <= start_s:
            end += 1
        group = waiting[begin:end]
        first, ends = group_s(group)
        factor, added_s = (1.0, idle_s[iterations]) if arrival_s[oldest] > free_s[0] else (jitter[iterations], 0.0)
        added_s += costs.between_s
        first, ends = factor * first + added_s, factor * ends + added_s
        first_s[group], end_s[group] = start_s + first, start_s + ends
        seconds = ends if isinstance(ends, float) else float(np.max(ends))
        heapreplace(free_s, start_s + seconds)
        busy_s += seconds / servers
        iterations += 1
        taken[bucket] = end
        left -= end - begin
    return Served(load, first_s, end_s, iterations, busy_s)
