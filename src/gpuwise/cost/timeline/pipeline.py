"""The ranks of a pipeline, action by action: when each part of a stage's work on a micro-batch begins and ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuwise.cost.timeline.orders import BACKWARD, FORWARD, INPUTS, WEIGHTS, Action, orders
from gpuwise.strategy import Parallelism
from gpuwise.strategy.parallelism import SINGLE_STAGE_SCHEDULES
from gpuwise.strategy.pipeline import divides_into_rounds, rank_of_stage

# Schedules of one stage wait for each send or receive before they compute on; those of several stages post them and go on
# (torch/distributed/pipelining/schedules.py, PyTorch 2.13: Schedule1F1B._step_microbatches, _PipelineScheduleRuntime).
WAITING_SCHEDULES = SINGLE_STAGE_SCHEDULES
_ALL_FORWARD_FIRST = ("gpipe", "looped-bfs")
# Micro-batches for each rank. Of short runs, one after the other; and how many are not yet in the steady state: a schedule
# runs at most 1.5 ahead of backward at its beginning, and as many behind forward at its end.
_SHORT, _SKIPPED = (4, 8), 1.5
_SAME = 1e-9


class StageTime(NamedTuple):
    """Seconds of one micro-batch on one stage.

    Attributes:
        forward_s: the forward pass.
        inputs_s: gradients of the stage's inputs, with what is recomputed for them.
        weights_s: gradients of its parameters.
    """

    forward_s: float
    inputs_s: float
    weights_s: float


@dataclass(frozen=True)
class PipelineStep:
    """A pipeline's step up to the update.

    Attributes:
        parallelism: schedule and stages per rank.
        ranks: of the pipeline.
        micro_batches: of the step.
        stages: the time of each stage, in their order: ranks * parallelism.stages_per_rank.
        send_s: seconds in which one micro-batch goes from a rank to a neighbour; 0 by default.
        waits_s: seconds by which an action takes longer than its stage's others; none by default.
        after_s: seconds of each rank after its last action; none by default.
        at_once: ranks that can compute at the same time without taking longer than one alone, where ranks share the cores of a
            CPU (see gpuwise.cost.timeline.shared_cores); None (default): all.
    """

    parallelism: Parallelism
    ranks: int
    micro_batches: int
    stages: tuple[StageTime, ...]
    send_s: float = 0.0
    waits_s: Mapping[Action, float] = field(default_factory=dict)
    after_s: tuple[float, ...] = ()
    at_once: float | None = None

    def busy_s(self, rank: int) -> float:
        """Seconds that a rank computes."""
        return sum(self.seconds_of(action) for action in _orders(self, self.micro_batches)[rank])

    def seconds_of(self, action: Action) -> float:
        """Seconds of an action."""
        part, time = action.part, self.stages[action.stage]
        seconds = {FORWARD: time.forward_s, INPUTS: time.inputs_s, WEIGHTS: time.weights_s}
        return seconds.get(part, time.inputs_s + time.weights_s) + self.waits_s.get(action, 0.0)

    def rank_of(self, stage: int) -> int:
        """The rank that has a stage."""
        return rank_of_stage(self.parallelism, ranks=self.ranks, stage=stage)


class Placed(NamedTuple):
    """An action with the seconds at which it begins and ends."""

    action: Action
    start_s: float
    end_s: float


def finish_s(pipeline: PipelineStep) -> tuple[float, ...]:
    """When each rank is done, in seconds from the beginning of the step; ranks that share cores are for shared_cores.

    Long runs are not simulated whole. If `ranks` micro-batches more shift every action behind the first ones by the same
    time, the pipeline is in its steady state, and any further ones shift it by that again. Where that does not show, as where
    a slow stage's queue still grows, all micro-batches are simulated.
    """
    ranks, micro_batches = pipeline.ranks, pipeline.micro_batches
    after_s = pipeline.after_s or (0.0,) * ranks
    for short in _SHORT if _repeats(pipeline) and not pipeline.waits_s else ():
        few = micro_batches % ranks + short * ranks
        if few + 2 * ranks > micro_batches:
            break
        ends, later = (_ends(pipeline, number) for number in (few, few + ranks))
        shift_s = _shift(ends, later, skipped=_SKIPPED * ranks / few)
        if shift_s is not None:
            rounds = (micro_batches - few) // ranks
            return tuple(mine[-1] + rounds * shift_s + rest_s for mine, rest_s in zip(ends, after_s, strict=True))
    return tuple(mine[-1] + rest_s for mine, rest_s in zip(_ends(pipeline, micro_batches), after_s, strict=True))


def placed(pipeline: PipelineStep) -> tuple[tuple[Placed, ...], ...]:
    """The actions of each rank in their order."""
    return tuple(
        tuple(Placed(action, end - pipeline.seconds_of(action), end) for action, end in zip(actions, ends, strict=True))
        for actions, ends in zip(
            _orders(pipeline, pipeline.micro_batches), _ends(pipeline, pipeline.micro_batches), strict=True
        )
    )


def _orders(pipeline: PipelineStep, micro_batches: int) -> tuple[tuple[Action, ...], ...]:
    return orders(pipeline.parallelism, ranks=pipeline.ranks, micro_batches=micro_batches)


def _repeats(pipeline: PipelineStep) -> bool:
    """Whether the order of the step's middle repeats itself after `ranks` micro-batches, forward and backward by turns."""
    if pipeline.parallelism.pipeline_schedule in _ALL_FORWARD_FIRST:
        return False
    in_rounds = not divides_into_rounds(pipeline.parallelism, ranks=pipeline.ranks, micro_batches=2 * pipeline.ranks + 1)
    return pipeline.micro_batches % pipeline.ranks == 0 or not in_rounds


def _shift(short: Sequence[Sequence[float]], longer: Sequence[Sequence[float]], *, skipped: float) -> float | None:
    """By how much later all actions of the longer run end, counted from the last one; None where they differ.

    Arguments:
        skipped: share of the shorter run at its beginning that is not compared.
    """
    shifts = [
        later - end
        for ends, ends_later in zip(short, longer, strict=True)
        for end, later in zip(ends[: int(skipped * len(ends)) : -1], reversed(ends_later), strict=False)
    ]
    low, high = min(shifts), max(shifts)
    return high if high - low <= _SAME * high else None


def _seconds(stages: Sequence[StageTime]) -> dict[str, list[float]]:
    """The seconds of each part of a stage's work."""
    return {
        FORWARD: [time.forward_s for time in stages],
        BACKWARD: [time.inputs_s + time.weights_s for time in stages],
        INPUTS: [time.inputs_s for time in stages],
        WEIGHTS: [time.weights_s for time in stages],
    }


def _ends(pipeline: PipelineStep, micro_batches: int) -> list[list[float]]:
    """When each action of each rank ends.

    An action begins when the one before it on its rank is done and its input is there: activations of the stage before,
    gradients of the stage behind. Where a schedule waits for its sends, the sender goes on when its send is done.
    """
    last, send_s = len(pipeline.stages) - 1, pipeline.send_s
    sender_waits, waits_s = pipeline.parallelism.pipeline_schedule in WAITING_SCHEDULES, pipeline.waits_s
    seconds, home = _seconds(pipeline.stages), [pipeline.rank_of(stage) for stage in range(last + 1)]
    there: dict[tuple[bool, int, int], float] = {}  # inputs, by whether they go forward, stage and micro-batch
    order = _orders(pipeline, micro_batches)
    ends: list[list[float]] = [[] for _ in order]
    remaining = [iter(actions) for actions in order]
    heads, free_s = [next(actions) for actions in remaining], [0.0] * pipeline.ranks
    running = list(range(pipeline.ranks))
    while running:
        waiting = []
        for rank in running:
            action: Action | None = heads[rank]
            now, mine = free_s[rank], ends[rank]
            while action is not None:
                part, stage, number = action
                if part == WEIGHTS:
                    now += seconds[part][stage]
                    mine.append(now)
                else:
                    forward = part == FORWARD
                    if stage != (0 if forward else last):
                        arrival = there.get((forward, stage, number))
                        if arrival is None:
                            heads[rank], free_s[rank] = action, now
                            waiting.append(rank)
                            break
                        if arrival > now:
                            now = arrival
                    now += seconds[part][stage]
                    if waits_s:
                        now += waits_s.get(action, 0.0)
                    mine.append(now)
                    to = stage + 1 if forward else stage - 1
                    if 0 <= to <= last:
                        sent_s = send_s if home[to] != rank else 0.0
                        there[forward, to, number] = now + sent_s
                        if sender_waits:
                            now += sent_s
                action = next(remaining[rank], None)
        running = waiting
    return ends
