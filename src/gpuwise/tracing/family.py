"""trace_family: a job's step as a function of its sizes, from a few small recordings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product

import numpy as np

from gpuwise.job import Job
from gpuwise.strategy import Strategy
from gpuwise.trace import Axis, Trace, TraceFamily, build_family, family_of_one, live_bytes
from gpuwise.tracing.record import record, record_many

# From 2 on: a batch of one broadcasts, so PyTorch may take other paths there than at any other size.
MICRO_BATCH = Axis("micro_batch", start=2, step=1, degree=1)

CHECKED_BATCH = 7  # off every grid
COMPILED_BATCHES = (8, 128)  # from which on one program may serve all: of small tensors kernels are fused and ordered otherwise
TOLERANCE = 1e-3  # of the presets, whose sizes make kernels round dimensions up


def trace_family(job: Job, strategy: Strategy, *, target: str = "accelerator") -> TraceFamily:
    """The job's step at any micro-batch; sequence length and image size are those of the job.

    Counts are linear in the batch, or quadratic where samples meet each other (a contrastive loss). Where neither is
    exact, or the program itself changes with the batch, the family holds the strategy's own micro-batch only.

    Raises JobError as `record` does.
    """
    if strategy.compile:
        return _compiled_family(job, strategy, target)
    first = [*MICRO_BATCH.points, CHECKED_BATCH]
    traces = record_many(job, strategy, first, target=target, once=(CHECKED_BATCH,))
    at = _recorder(job, strategy, target, dict(zip(first, traces, strict=True)))
    default, check_at = {"micro_batch": strategy.micro_batch}, {"micro_batch": CHECKED_BATCH}
    for degree in (1, 2):
        axis = replace(MICRO_BATCH, degree=degree)
        # Exactly: what is a thousandth of a batch of seven may be all of a batch of seven thousand.
        family = record_family(at, (axis,), default, check_at=check_at, tolerance=0)
        if family is not None:
            return family
    return family_of_one(at(default))


def _compiled_family(job: Job, strategy: Strategy, target: str) -> TraceFamily:
    """The family of a compiled step. Each recording is a compilation, so it has one of each of few sizes."""
    at, default = _recorder(job, strategy, target, {}), {"micro_batch": strategy.micro_batch}
    for start in COMPILED_BATCHES:
        axis, check_at = replace(MICRO_BATCH, start=start, step=start), {"micro_batch": 4 * start}
        family = record_family(at, (axis,), default, check_at=check_at, tolerance=0)
        if family is not None:
            return family
    return family_of_one(at(default))


def _recorder(job: Job, strategy: Strategy, target: str, recorded: dict[int, Trace]) -> Callable[[Mapping[str, int]], Trace]:
    """Records the step at a micro-batch, each once. recorded: those that are there, by micro-batch."""

    def at(sizes: Mapping[str, int]) -> Trace:
        micro_batch = sizes["micro_batch"]
        if micro_batch not in recorded:
            recorded[micro_batch] = record(job, strategy.but(micro_batch=micro_batch), target=target)
        return recorded[micro_batch]

    return at


def record_family(
    at: Callable[[Mapping[str, int]], Trace],
    axes: tuple[Axis, ...],
    default: Mapping[str, int],
    check_at: Mapping[str, int],
    tolerance: float = TOLERANCE,
) -> TraceFamily | None:
    """Records the grid of the axes and joins it; None where no polynomial holds.

    Arguments:
        at: records one step at these sizes.
        axes: the sizes that vary.
        default: the sizes of the family where none are named.
        check_at: sizes off the grid to record as well; the family must agree with that recording to the tolerance.
        tolerance: the largest relative difference. Default TOLERANCE.
    """
    names = [axis.name for axis in axes]
    grid = list(product(*(axis.points for axis in axes)))
    family = build_family({point: at(dict(zip(names, point, strict=True))) for point in grid}, axes, default)
    if family is None or disagreement(family.at(**check_at), at(check_at)) > tolerance:
        return None
    return family


def disagreement(a: Trace, b: Trace) -> float:
    """The largest relative difference in operations, bytes moved, launches and peak memory; infinite where the two
    run different operations. Zero for an exact family; a kernel that rounds a dimension up may leave 0.001.

    Over two micro-batches where both have recorded a second, else over one.
    """
    micro_batches = 1 + all((trace.sequence.micro_step == 1).any() for trace in (a, b))
    a, b = a.with_accumulation(micro_batches), b.with_accumulation(micro_batches)
    if _length(a) != _length(b):
        return float("inf")
    totals = [[*(t.counts() @ t.operations.values)[:5].tolist(), live_bytes(t).peak_bytes] for t in (a, b)]
    return max(abs(x - y) / max(x, y, 1) for x, y in zip(*totals, strict=True))


def _length(trace: Trace) -> tuple[int, int]:
    """The numbers of operations and storages of a step, with those of a second micro-batch if the trace has one."""
    runs = np.append(trace.repeats > 0, False)
    born = trace.storages.born
    return int(runs.sum()), int(((born < 0) | runs[born]).sum())
