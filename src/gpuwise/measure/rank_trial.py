"""Runs real steps of a mesh, of which this process is one rank, and measures their time and their memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from math import ceil
from typing import cast

import torch

from gpuwise.job import Job, checked_batch
from gpuwise.job.job import Batch
from gpuwise.measure.live_storages import LiveStorages
from gpuwise.measure.timing import clock_of, summary
from gpuwise.measure.trial import ASYNC_S, FEWEST_STEPS, LEAST_S, MOST_S, WARM_STEPS, steps_of
from gpuwise.measure.trial_memory import PeakBytes, by_category, memory_on_accelerator
from gpuwise.results.measurement import Timing
from gpuwise.results.validation import MeasuredStep
from gpuwise.runtime.build.host_memory import keep_freed_memory
from gpuwise.runtime.build.program import Program, build
from gpuwise.runtime.devices import backend_of
from gpuwise.runtime.parallel.world import World, make_world
from gpuwise.runtime.ranks.ranks import Ranks
from gpuwise.strategy import Strategy

# Steps under the counter of storages: before DDP has its final buckets and FSDP its buffers, and those that are measured.
# gloo's threads let go of some tensors late, so several are compared.
MEMORY_WARM_STEPS, MEMORY_STEPS = 2, 3
GATHER_S = 600.0  # for the figures of the slowest rank


def run_rank_trial(
    job: Job,
    strategy: Strategy,
    device: torch.device,
    ranks: Ranks,
    *,
    steps: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> MeasuredStep:
    """Builds this rank's program and runs it on random batches, together with all other ranks.

    Arguments:
        job: the job.
        strategy: the strategy of the steps; its mesh is of all the ranks.
        device: the device of this rank.
        ranks: the ranks, with torch.distributed initialised.
        steps: number of timed steps; None: as for a single device (gpuwise.measure.trial.run_trial), as rank 0 decides.
        say: called with a description of the current phase.

    Returns the same on every rank: time of the slowest rank, memory of the one that needs most. Raises any error of the job's
    own code, and those of lost ranks.
    """
    keep_freed_memory()
    torch.manual_seed(0)  # of the weights
    world = make_world(strategy.mesh, device.type)
    make = partial(_program, job, strategy, device, world)
    say("first steps of the ranks")
    program, peak = _on_host(make, strategy) if backend_of(device).is_host else memory_on_accelerator(make, device, rank_step)
    say("timed steps of the ranks")
    timing = timed_together(steps_of(program), device, ranks, steps)
    own = MeasuredStep(timing, *_figures(peak))
    everyone = ranks.gathered("measured", own.to_dict(), within_s=GATHER_S)
    return MeasuredStep.of_ranks([MeasuredStep.from_dict(cast("dict[str, object]", one)) for one in everyone])


def rank_step(program: Program) -> None:
    """One step of this rank on batches that are made when it takes them."""
    if program.trains:
        program.step(_FreshBatches(program))
        program.parts.clear()
    else:
        program.infer(checked_batch(program.job, program.strategy.micro_batch))


def timed_together(
    runs: Sequence[Callable[[], object]], device: torch.device, ranks: Ranks, steps: int | None = None
) -> Timing:
    """Times steps that all ranks take together: as many on every rank, which rank 0 decides after a warm-up."""
    once = clock_of(device)
    warm_s = [once(runs[number % len(runs)]) for number in range(WARM_STEPS)]
    issued, rounds = cast(
        "tuple[int, int]",
        ranks.of_first("rounds", lambda: list(_rounds(warm_s[-1], steps, is_host=backend_of(device).is_host))),
    )
    seconds = []
    for number in range(rounds):
        turn = [runs[(number * issued + index) % len(runs)] for index in range(issued)]
        seconds.append(once(*turn) / issued)
    return summary(seconds)


class _FreshBatches(Sequence[Batch]):
    """The micro-batches of a step, each made when it is taken."""

    def __init__(self, program: Program):
        self._program = program

    def __len__(self) -> int:
        return self._program.strategy.accumulation

    def __getitem__(self, index: int) -> Batch:  # type: ignore[override]
        if index >= len(self):
            raise IndexError
        return checked_batch(self._program.job, self._program.strategy.micro_batch)


def _program(job: Job, strategy: Strategy, device: torch.device, world: World) -> Program:
    program = build(job, strategy, device, world)
    torch.manual_seed(world.data_rank)  # ranks of one tensor-parallel group read the same samples
    return program


def _on_host(make: Callable[[], Program], strategy: Strategy) -> tuple[Program, PeakBytes | None]:
    """The program, and its memory unless the step is compiled, which a counter of operators would prevent."""
    if strategy.compile:
        return make(), None
    with LiveStorages() as live:
        program = make()
        for step in range(MEMORY_WARM_STEPS + MEMORY_STEPS):
            with live.measuring() if step >= MEMORY_WARM_STEPS else nullcontext():
                rank_step(program)
        return program, PeakBytes(live.peak_bytes, by_category(program, live.peak_bytes))


def _figures(peak: PeakBytes | None) -> tuple[int | None, dict[str, int], int | None, int | None]:
    if peak is None:
        return None, {}, None, None
    return peak.allocated_bytes, peak.by_category, peak.reserved_bytes, peak.device_bytes


def _rounds(step_s: float, steps: int | None, *, is_host: bool) -> tuple[int, int]:
    """Steps between two waits for the device, and how many such rounds there are."""
    issued = 1 if is_host else max(1, ceil(ASYNC_S / max(step_s, 1e-6)))
    if steps is not None:
        return issued, steps
    round_s = max(step_s, 1e-6) * issued
    return issued, max(1, min(max(FEWEST_STEPS, ceil(LEAST_S / round_s)), int(MOST_S / round_s)))
