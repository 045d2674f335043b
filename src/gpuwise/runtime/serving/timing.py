"""Times a model's own passes on this machine, by the server that will serve them, before any load is sent.

Sizes alternate within a round, in another order each time, so that a machine that slows down slows all of them; the first round
warms up. time_groups is of servers that answer groups of requests (ServedModel), time_engine of engines that replay a load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

import numpy as np

from gpuwise.runtime.serving.server import LoadReplay, ServedModel
from gpuwise.runtime.serving.waiting_line import Clock
from gpuwise.serving.pass_times import ForwardTimes, GenerationTimes, PassTimes, between_both
from gpuwise.serving.policy import BatchingPolicy
from gpuwise.serving.profile import FORWARD, PROMPT, TOKEN, PassProfile, TimedPass, jitter_of
from gpuwise.serving.requests import Requests, requests
from gpuwise.serving.served import Served
from gpuwise.serving.windowed import ServerCosts

ROUNDS, FEWEST_ROUNDS = 20, 5
BUDGET_S = 10.0  # after which no further round begins
TOKENS = 8  # written after the first one: enough that their mean is steady
PROMPTS = 3  # lengths of prompts
SHORT_PROMPT = 16  # tokens, where only those that follow are timed
IDLE_PASSES, IDLE_BUDGET_S, LONGEST_IDLE_S = 20, 4.0, 0.25
NULL_REQUESTS = 200

Key = TypeVar("Key")
Outcome = TypeVar("Outcome")


class GroupReplay(Protocol):
    """Serves a load with a model, one request a batch."""

    def __call__(self, load: Requests, /, model: ServedModel) -> LoadReplay: ...


class TimeableModel(ServedModel, Protocol):
    """A model that can be timed. Only those that generate are used with a load of their own."""

    def serving(self, load: Requests) -> ServedModel:
        """The same model, whose requests are those of another load."""
        ...


class NullModel:
    """Answers at once: what is left is the server."""

    def answer(self, group: Sequence[int], first: Callable[[int], None], last: Callable[[int], None]) -> None:
        for request in group:
            first(request)
            last(request)


def time_groups(
    model: TimeableModel, times: PassTimes, load: Requests, replayed: GroupReplay, clock: Clock, *, idle_s: float
) -> PassProfile:
    """Passes over groups of requests, and what the server adds.

    Arguments:
        times: as forecast; some of their sizes are timed.
        load: its longest prompt bounds those that are timed. Nothing else of it is used.
        idle_s: mean time between requests. So long, at most LONGEST_IDLE_S and at least half a pass, is the server idle
            before each of the passes after an idle moment.
    """
    began_s = clock.now_s()
    probe, sizes = _groups(times, load)
    runner = model if isinstance(times, ForwardTimes) else model.serving(probe)
    seconds = _rounds({size: partial(_answered, runner, group, clock) for size, group in sizes.items()}, clock)
    passes = tuple(_passes(times, probe, sizes, seconds))
    size, group = next(iter(sizes.items()))
    alone_s = float(np.median([end_s for _, end_s in seconds[size]]))
    nothing = _alike(probe, group[0], np.zeros(NULL_REQUESTS))
    between_s = _served(partial(replayed, model=NullModel()), nothing).span_s / NULL_REQUESTS
    every_s = alone_s + max(min(idle_s, LONGEST_IDLE_S), alone_s / 2)
    count = min(IDLE_PASSES, max(FEWEST_ROUNDS, int(IDLE_BUDGET_S / every_s)))
    after_idle = _alike(probe, group[0], every_s * np.arange(1, count + 1))
    runner = model if isinstance(times, ForwardTimes) else model.serving(after_idle)
    late_s = _served(partial(replayed, model=runner), after_idle).latency_s - alone_s - between_s
    costs = ServerCosts(tuple(late_s.tolist()), between_s, jitter_of(passes))
    return PassProfile(passes, costs, clock.now_s() - began_s)


def time_engine(
    replayed: Callable[[Requests], LoadReplay],
    simulated: Callable[[Requests], Served],
    policy: BatchingPolicy,
    load: Requests,
    clock: Clock,
) -> PassProfile:
    """Iterations of an engine that replays loads: prompts alone, and tokens of several requests at once.

    simulated: the outcome of a load as forecast.
    """
    began_s = clock.now_s()
    longest = min(int(load.input_tokens.max()), policy.batched_tokens)
    prompts = {(PROMPT, 1, tokens): _equal(1, tokens, 2) for tokens in _some([2**n for n in range(4, 20)], longest)}
    short = min(SHORT_PROMPT, longest)
    together = sorted({1, *_some([4**n for n in range(6)], policy.sequences)})
    tokens = {(TOKEN, n, short + TOKENS // 2): _equal(n, short, TOKENS + 1) for n in together}
    probes = prompts | tokens
    rounds = _rounds({key: partial(_served, replayed, probe) for key, probe in probes.items()}, clock)
    passes = tuple(
        TimedPass(
            kind,
            number,
            size,
            _latency_s(simulated(probe), kind),
            tuple(_latency_s(served, kind) for served in rounds[kind, number, size]),
        )
        for (kind, number, size), probe in probes.items()
    )
    return PassProfile(passes, ServerCosts(), clock.now_s() - began_s)


def _served(replayed: Callable[[Requests], LoadReplay], load: Requests) -> Served:
    """The outcome of a whole load: Ctrl-C, which ends a replay early, ends the timing."""
    replay = replayed(load)
    if replay.interrupted:
        raise KeyboardInterrupt
    return replay.served


def _latency_s(served: Served, kind: str) -> float:
    return float(np.median(served.ttft_s if kind == PROMPT else served.tpot_s))


def _rounds(probes: Mapping[Key, Callable[[], Outcome]], clock: Clock) -> dict[Key, list[Outcome]]:
    """The outcomes of each probe, round by round."""
    outcomes: dict[Key, list[Outcome]] = {key: [] for key in probes}
    order, rng = list(probes), np.random.default_rng(0)
    began_s = clock.now_s()
    for done in range(-1, ROUNDS):
        if done >= FEWEST_ROUNDS and clock.now_s() - began_s > BUDGET_S:
            break
        for at in rng.permutation(len(order)):
            outcome = probes[order[at]]()
            if done >= 0:
                outcomes[order[at]].append(outcome)
    return outcomes


def _answered(model: ServedModel, group: Sequence[int], clock: Clock) -> tuple[float, float]:
    """Seconds until the first token of a group is there, and until the last one is."""
    began_s, first_s = clock.now_s(), list[float]()
    model.answer(group, lambda request: first_s.append(clock.now_s()), lambda request: None)
    return first_s[0] - began_s, clock.now_s() - began_s


def _groups(times: PassTimes, load: Requests) -> tuple[Requests, dict[tuple[int, int], tuple[int, ...]]]:
    """Requests that are timed, and groups of them by their number and the tokens of each prompt."""
    if isinstance(times, ForwardTimes):
        most = max(times.passes)
        return _equal(most, 1, 1), {(size, 0): tuple(range(size)) for size in sorted(times.passes)}
    assert isinstance(times, GenerationTimes)
    numbers, cached = sorted(times.reading), max(times.writing[1])
    lengths = _some(sorted(times.reading[1]), int(load.input_tokens.max()))
    inputs, outputs, groups = list[int](), list[int](), {}
    for length in lengths:
        for number in numbers:
            groups[number, length] = tuple(range(len(inputs), len(inputs) + number))
            inputs += [length] * number
            outputs += [1 + max(1, min(TOKENS, cached - length))] * number
    return requests(np.zeros(len(inputs)), np.array(inputs), np.array(outputs)), groups


def _passes(
    times: PassTimes,
    probe: Requests,
    groups: Mapping[tuple[int, int], tuple[int, ...]],
    seconds: Mapping[tuple[int, int], list[tuple[float, float]]],
) -> Iterator[TimedPass]:
    for (number, length), group in groups.items():
        firsts, ends = zip(*seconds[number, length], strict=True)
        if isinstance(times, ForwardTimes):
            yield TimedPass(FORWARD, number, 0, times.pass_s(number), ends)
            continue
        assert isinstance(times, GenerationTimes)
        more = int(probe.output_tokens[group[0]]) - 1
        forecast_s = float(between_both(times.writing, number, np.arange(length, length + more)).mean())
        tokens = tuple((end_s - first_s) / more for first_s, end_s in zip(firsts, ends, strict=True))
        yield TimedPass(PROMPT, number, length, float(between_both(times.reading, number, [length])[0]), firsts)
        yield TimedPass(TOKEN, number, length + more // 2, forecast_s, tokens)


def _some(sizes: Sequence[int], most: int) -> list[int]:
    """At most PROMPTS of some rising sizes up to `most`: the largest, and others evenly below; `most` where all are larger."""
    within = [size for size in sizes if 1 < size <= most] or [size for size in sizes if size <= most] or [most]
    return sorted({within[round(at)] for at in np.linspace(0, len(within) - 1, PROMPTS)})


def _equal(count: int, tokens: int, written: int) -> Requests:
    return requests(np.zeros(count), np.full(count, tokens), np.full(count, written))


def _alike(probe: Requests, request: int, arrival_s: np.ndarray) -> Requests:
    """A load of requests like one of the probe's."""
    count = len(arrival_s)
    return requests(arrival_s, np.full(count, probe.input_tokens[request]), np.full(count, probe.output_tokens[request]))
