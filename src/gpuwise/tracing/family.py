"""trace_family: a job's step as a function of its sizes, from a few small recordings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product

from gpuwise.job import Job
from gpuwise.strategy import Strategy
from gpuwise.trace import Axis, Trace, TraceFamily, build_family, live_bytes
from gpuwise.tracing.record import record

# From 2 on: a batch of one broadcasts, so PyTorch may take other paths there than at any other size.
MICRO_BATCH = Axis("micro_batch", start=2, step=1, degree=1)

TOLERANCE = 1e-3


def trace_family(job: Job, strategy: Strategy, *, substrate: str = "accelerator") -> TraceFamily:
    """The job's step at any micro-batch; sequence length and image size are those of the job.

    Where the program itself changes with the batch, the family holds the strategy's own micro-batch only.
    Raises JobError as `record` does.
    """

    def at(sizes: Mapping[str, int]) -> Trace:
        return record(job, strategy.but(**sizes), substrate=substrate)

    default = {"micro_batch": strategy.micro_batch}
    return record_family(at, (MICRO_BATCH,), default) or fixed_family(at(default))


def record_family(at: Callable[[Mapping[str, int]], Trace], axes: tuple[Axis, ...], default: Mapping[str, int],
                  check_at: Mapping[str, int] | None = None) -> TraceFamily | None:  # fmt: skip
    """Records the grid of the axes and joins it; None where no polynomial holds.

    Arguments:
        at: records one step at given sizes.
        default: the sizes the family stands for when none are given.
        check_at: sizes off the grid to record as well; the family must agree with that to TOLERANCE.
    """
    names = [axis.name for axis in axes]
    grid = list(product(*(axis.points for axis in axes)))
    family = build_family({point: at(dict(zip(names, point, strict=True))) for point in grid}, axes, default)
    if family is not None and check_at is not None and disagreement(family.at(**check_at), at(check_at)) > TOLERANCE:
        return None
    return family


def fixed_family(trace: Trace) -> TraceFamily:
    """A family of one size."""
    operations = replace(trace.operations, values=trace.operations.values[..., None])
    storages = replace(trace.storages, size_bytes=trace.storages.size_bytes[..., None])
    return TraceFamily(trace.header, (), operations, trace.sequence, storages, trace.modules)


def disagreement(a: Trace, b: Trace) -> float:
    """The largest relative difference in operations, bytes moved, launches and peak memory; infinite where the two
    run different operations. Zero for an exact family; a kernel that rounds a dimension up may leave 0.001."""
    a, b = a.with_accumulation(2), b.with_accumulation(2)
    if len(a.sequence) != len(b.sequence) or len(a.storages) != len(b.storages):
        return float("inf")
    totals = [[*(t.counts() @ t.operations.values)[:5].tolist(), live_bytes(t).peak_bytes] for t in (a, b)]
    return max(abs(x - y) / max(x, y, 1) for x, y in zip(*totals, strict=True))
