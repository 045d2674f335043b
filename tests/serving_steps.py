"""Continuous batching written out step by step, to compare the simulation with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gpuwise.serving.requests import Requests

Joining = Callable[[float, float, Sequence[int], Mapping[int, int]], Sequence[int]]


def iteration_s(chunks: Sequence[tuple[int, int]], sequences: int, past_tokens: int) -> float:
    """Seconds of an iteration: a second, and a hundredth for each sequence that writes and for each new token of a prompt."""
    return 1.0 + 0.01 * (sequences + sum(new for new, _ in chunks))


def step_by_step(load: Requests, joining: Joining) -> tuple[list[float], list[float]]:
    """Times of the first and the last token of each request.

    joining: the prompts of the next iteration, which are read whole, by now, the start of the iteration before (now where none
    ran), the requests that wait, in order of arrival, and tokens still to be written of those that run.
    """
    waiting, writes = list(range(len(load))), dict[int, int]()
    clock = began = 0.0
    first, last = [0.0] * len(load), [0.0] * len(load)
    while waiting or writes:
        reads = list(joining(clock, began if writes else clock, waiting, writes))
        if not reads and not writes:
            clock = min(load.arrival_s[i] for i in waiting)
            continue
        began = clock
        clock += iteration_s([(int(load.input_tokens[i]), 0) for i in reads], len(writes), 0)
        for i in list(writes):
            writes[i] -= 1
            if not writes[i]:
                last[i] = clock
                del writes[i]
        for i in reads:
            waiting.remove(i)
            first[i], writes[i] = clock, int(load.output_tokens[i]) - 1
    return first, last
