"""The order in which each rank of a pipeline works, as torch.distributed.pipelining has it (schedules.py, PyTorch 2.13)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from itertools import count
from typing import NamedTuple

from gpuwise.strategy import Parallelism
from gpuwise.strategy.pipeline import SPLIT_SCHEDULES, stages_of_rank

# The parts of a stage's work on a micro-batch. BACKWARD is INPUTS and WEIGHTS at once.
FORWARD, BACKWARD, INPUTS, WEIGHTS = "forward", "backward", "inputs", "weights"


class Action(NamedTuple):
    """One part of a stage's work on one micro-batch.

    Attributes:
        part: FORWARD, BACKWARD, INPUTS (gradients of the stage's inputs) or WEIGHTS (those of its parameters).
        stage: number of the stage.
        micro_batch: number of the micro-batch.
    """

    part: str
    stage: int
    micro_batch: int


Orders = tuple[tuple[Action, ...], ...]


@lru_cache(maxsize=64)
def orders(parallelism: Parallelism, *, ranks: int, micro_batches: int) -> Orders:
    """The actions of each rank in the order in which they run.

    Arguments:
        parallelism: its schedule and stages per rank, which fit each other (gpuwise.strategy.check_techniques).
        ranks: of the pipeline.
        micro_batches: of a step, as many as the schedule takes.
    """
    schedule = parallelism.pipeline_schedule
    own = [stages_of_rank(parallelism, ranks=ranks, rank=rank) for rank in range(ranks)]
    if schedule in ("gpipe", "looped-bfs"):
        return tuple(_breadth_first(stages, micro_batches, reverse=schedule == "looped-bfs") for stages in own)
    if schedule == "1f1b":
        return tuple(_alternating(stages, micro_batches, min(ranks - stages[0], micro_batches)) for stages in own)
    if schedule == "zbv-zero-bubble":
        return tuple(_zbv(stages, ranks, micro_batches) for stages in own)
    if schedule == "dualpipe-v":
        return tuple(_DualPipeV(stages, ranks, micro_batches).actions() for stages in own)
    return tuple(_interleaved(stages, ranks, micro_batches, splits=schedule in SPLIT_SCHEDULES) for stages in own)


def _breadth_first(stages: tuple[int, ...], micro_batches: int, *, reverse: bool) -> tuple[Action, ...]:
    """All forward passes of a stage, then those of the next; backward passes likewise, from the last stage on."""
    numbers = range(micro_batches)
    forward = [Action(FORWARD, stage, number) for stage in stages for number in numbers]
    back = [Action(BACKWARD, stage, number) for stage in stages for number in numbers]
    return (*forward, *(reversed(back) if reverse else back))


def _alternating(stages: tuple[int, ...], micro_batches: int, ahead: int) -> tuple[Action, ...]:
    """One stage: `ahead` forward passes, then backward and forward by turns."""
    (stage,) = stages
    actions = [Action(FORWARD, stage, number) for number in range(ahead)]
    for number in range(micro_batches):
        actions.append(Action(BACKWARD, stage, number))
        if number + ahead < micro_batches:
            actions.append(Action(FORWARD, stage, number + ahead))
    return tuple(actions)


def _interleaved(stages: tuple[int, ...], ranks: int, micro_batches: int, *, splits: bool) -> tuple[Action, ...]:
    """Several stages: rounds of micro-batches through each stage, forward and backward by turns after a warm-up.

    Arguments:
        splits: whether gradients of weights come later than those of inputs: `rank` forward passes later.
    """
    rank, in_all = stages[0], len(stages) * micro_batches
    each_round = micro_batches // max(1, micro_batches // ranks)
    warm_up = min((len(stages) - 1) * each_round + (ranks - 1 - rank) * (1 if splits else 2), in_all)
    forward, back = _numbered(stages, each_round), _numbered(stages[::-1], each_round)
    pending: deque[tuple[int, int]] = deque()
    actions = [Action(FORWARD, *next(forward)) for _ in range(warm_up)]
    for turn in range(in_all):
        if turn < in_all - warm_up:
            actions.append(Action(FORWARD, *next(forward)))
        pending.append(next(back))
        actions.append(Action(INPUTS if splits else BACKWARD, *pending[-1]))
        if splits and turn >= rank:
            actions.append(Action(WEIGHTS, *pending.popleft()))
    if splits:
        actions += [Action(WEIGHTS, *late) for late in pending]
    return tuple(actions)


def _numbered(stages: tuple[int, ...], each_round: int) -> Iterator[tuple[int, int]]:
    """Stage and micro-batch: a round through each of the stages, then the next round."""
    for first in count(step=each_round):
        for stage in stages:
            for number in range(first, first + each_round):
                yield stage, number


def _zbv(stages: tuple[int, ...], ranks: int, micro_batches: int) -> tuple[Action, ...]:
    """ZB-V. The order is that of a full pipeline; micro-batches that the step does not have are left out of it."""
    down, up = stages
    rank, filled = down, max(2 * ranks - 1, micro_batches)
    actions: list[Action] = []
    numbers = {(part, stage): count() for part in (FORWARD, INPUTS, WEIGHTS) for stage in stages}

    def run(stage: int, *parts: str) -> None:
        actions.extend(Action(part, stage, next(numbers[part, stage])) for part in parts)

    for _ in range(2 * (ranks - rank) - 1):
        run(down, FORWARD)
    for _ in range(rank):
        run(up, FORWARD)
        run(down, FORWARD)
    for _ in range(ranks - rank):
        run(up, FORWARD, INPUTS, WEIGHTS)
    ahead, behind = 2 * ranks - 1 - rank, ranks
    while behind < ahead or ahead < filled:
        if ahead < filled:
            run(down, FORWARD)
            ahead += 1
        run(down, INPUTS, WEIGHTS)
        run(up, FORWARD, INPUTS, WEIGHTS)
        behind += 1
    for _ in range(rank):
        run(down, INPUTS)
        run(up, INPUTS)
    for _ in range(ranks - rank):
        run(down, INPUTS, WEIGHTS)
    for stage in (up, down):
        done = next(numbers[WEIGHTS, stage])
        actions += [Action(WEIGHTS, stage, number) for number in range(done, filled)]
    return tuple(action for action in actions if action.micro_batch < micro_batches)


class _DualPipeV:
    """DualPipeV. What it runs as one overlapped action, PyTorch runs as a forward pass and the backward pass behind it."""

    def __init__(self, stages: tuple[int, ...], ranks: int, micro_batches: int):
        self._down, self._up = stages
        self._rank, self._ranks, self._micro_batches = stages[0], ranks, micro_batches
        self._actions: list[Action] = []
        self._forward: dict[int, Iterator[int]] = {stage: count() for stage in stages}
        self._backward: dict[int, Iterator[int]] = {stage: count() for stage in stages}
        self._pending: deque[tuple[int, int]] = deque()

    def actions(self) -> tuple[Action, ...]:
        down, up, rank, ranks = self._down, self._up, self._rank, self._ranks
        behind = ranks - 1 - rank  # ranks after this one
        self._run_forward(*[down] * (2 * behind), *[down, up] * (rank + 1))
        for _ in range(behind):
            self._run_backward(up, INPUTS)
            self._run_weights()
            self._run_forward(up)
        for _ in range(self._micro_batches - 2 * ranks + rank + 1):
            self._run_forward(down)
            self._run_backward(up)
            self._run_forward(up)
            self._run_backward(down)
        for _ in range(behind):
            self._run_backward(up)
            self._run_forward(up)
            self._run_backward(down)
        part, half = BACKWARD, (rank + 1) // 2
        for number in range(rank + 1):
            part = INPUTS if number == half and rank % 2 == 1 else part
            self._run_backward(up, part)
            part = INPUTS if number == half and rank % 2 == 0 else part
            self._run_backward(down, part)
        for _ in range(behind):
            self._run_weights()
            self._run_backward(down, part)
        for _ in range(rank + 1):
            self._run_weights()
        return tuple(self._actions)

    def _run_forward(self, *stages: int) -> None:
        self._actions += [Action(FORWARD, stage, next(self._forward[stage])) for stage in stages]

    def _run_backward(self, stage: int, part: str = BACKWARD) -> None:
        number = next(self._backward[stage])
        self._actions.append(Action(part, stage, number))
        if part == INPUTS:
            self._pending.append((stage, number))

    def _run_weights(self) -> None:
        if self._pending:
            self._actions.append(Action(WEIGHTS, *self._pending.popleft()))
