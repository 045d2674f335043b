"""The ranks of a pipeline that share the cores of one CPU: a rank that waits leaves its core to the others.

A rank computes on one core. The seconds of its actions are those of ranks that all compute at the same time, with an equal part
of the cores each. With fewer at work each has a larger part, one core at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpuwise.cost.timeline.orders import BACKWARD, FORWARD, INPUTS, WEIGHTS, Action, orders
from gpuwise.cost.timeline.pipeline import WAITING_SCHEDULES, PipelineStep, Placed

# Micro-batches for each rank of the two runs that longer ones follow from: each further round takes as long as the last.
_SIMULATED = (8, 9)
UPDATE = "update"  # the part of a rank's work behind its last action


def computing_s(pipeline: PipelineStep) -> tuple[list[float], list[float]]:
    """When each rank is done with its update, and for how many of these seconds it computes."""
    ranks, micro_batches = pipeline.ranks, pipeline.micro_batches
    few, more = (micro_batches % ranks + rounds * ranks for rounds in _SIMULATED)
    if micro_batches <= more:
        return _ends_and_seconds(spans(pipeline))
    further = (micro_batches - more) / ranks
    runs = [_ends_and_seconds(spans(replace(pipeline, micro_batches=number))) for number in (few, more)]
    ends, seconds = (
        [later + further * (later - early) for early, later in zip(few_s, more_s, strict=True)]
        for few_s, more_s in zip(*runs, strict=True)
    )
    return ends, seconds


def _ends_and_seconds(ranks: list[list[Placed]]) -> tuple[list[float], list[float]]:
    return [spans[-1].end_s for spans in ranks], [sum(span.end_s - span.start_s for span in spans) for spans in ranks]


def spans(pipeline: PipelineStep) -> list[list[Placed]]:
    """The actions of each rank in their order, and its update at the end."""
    return _SharedCores(pipeline).run()


class _SharedCores:
    """A simulation from one event to the next: an action that ends, or an input that arrives."""

    def __init__(self, pipeline: PipelineStep):
        self._pipeline, ranks = pipeline, range(pipeline.ranks)
        self._at_once = pipeline.ranks if pipeline.at_once is None else pipeline.at_once
        self._last = len(pipeline.stages) - 1
        self._waits = pipeline.parallelism.pipeline_schedule in WAITING_SCHEDULES
        order = orders(pipeline.parallelism, ranks=pipeline.ranks, micro_batches=pipeline.micro_batches)
        self._left: list[Iterator[Action]] = [iter((*actions, Action(UPDATE, -1, -1))) for actions in order]
        self._heads: list[Action | None] = [next(actions) for actions in self._left]
        self._started_s: list[float | None] = [None for _ in ranks]
        self._remaining_s = [0.0 for _ in ranks]
        self._arrival_s: dict[tuple[bool, int, int], float] = {}  # of inputs, by whether they go forward, stage and micro-batch
        self._spans: list[list[Placed]] = [[] for _ in ranks]

    def run(self) -> list[list[Placed]]:
        now, ranks = 0.0, self._pipeline.ranks
        while any(head is not None for head in self._heads):
            later = self._start(now)
            computing = [rank for rank in range(ranks) if self._started_s[rank] is not None]
            rate = ranks / max(len(computing), self._at_once)
            ends = [now + self._remaining_s[rank] / rate for rank in computing]
            then = min([*ends, *later])
            for rank, end in zip(computing, ends, strict=True):
                self._remaining_s[rank] -= rate * (then - now)
                if end <= then:
                    self._end(rank, then)
            now = then
        return self._spans

    def _start(self, now: float) -> list[float]:
        """Starts each rank that can go on. Returns when inputs arrive that are on their way."""
        later = []
        for rank, action in enumerate(self._heads):
            if action is None or self._started_s[rank] is not None:
                continue
            arrival_s = self._input_s(action)
            if arrival_s is not None and arrival_s <= now:
                self._started_s[rank], self._remaining_s[rank] = now, self._seconds(rank, action)
            elif arrival_s is not None:
                later.append(arrival_s)
        return later

    def _end(self, rank: int, now: float) -> None:
        action, started_s = self._heads[rank], self._started_s[rank]
        assert action is not None
        assert started_s is not None
        self._spans[rank].append(Placed(action, started_s, now))
        self._heads[rank], self._started_s[rank] = next(self._left[rank], None), None
        to = self._target(action)
        if to is not None:
            on_its_way_s = 0.0 if self._waits else self._send_s(rank, to)
            self._arrival_s[action.part == FORWARD, to, action.micro_batch] = now + on_its_way_s

    def _seconds(self, rank: int, action: Action) -> float:
        """Seconds of an action while all ranks compute, with the send where the rank waits for it."""
        if action.part == UPDATE:
            return self._pipeline.after_s[rank] if self._pipeline.after_s else 0.0
        to = self._target(action)
        return self._pipeline.seconds_of(action) + (self._send_s(rank, to) if self._waits and to is not None else 0.0)

    def _send_s(self, rank: int, to: int) -> float:
        return 0.0 if self._pipeline.rank_of(to) == rank else self._pipeline.send_s

    def _target(self, action: Action) -> int | None:
        """The stage that an action sends to; None where to none."""
        to = action.stage + {FORWARD: 1, BACKWARD: -1, INPUTS: -1}.get(action.part, self._last + 1)
        return to if 0 <= to <= self._last and action.part in (FORWARD, BACKWARD, INPUTS) else None

    def _input_s(self, action: Action) -> float | None:
        """When the input of an action is there; None where it is not yet on its way."""
        forward = action.part == FORWARD
        if action.part in (WEIGHTS, UPDATE) or action.stage == (0 if forward else self._last):
            return 0.0
        return self._arrival_s.get((forward, action.stage, action.micro_batch))
