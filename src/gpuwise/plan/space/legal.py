"""The legal space: which precisions, batches and meshes are worth trying on a chip."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TypeVar

from gpuwise.cost.rates import fast_fp16, precisions_of
from gpuwise.errors import GpuwiseError, PrecisionError
from gpuwise.hardware.types import Chip
from gpuwise.notes import Note
from gpuwise.notes import step as step_notes
from gpuwise.plan.space.global_batch import power_of_two_below
from gpuwise.strategy import Mesh

# Where state that every replica repeats takes more of a device than this, a sharded strategy is tried as well.
CROWDED = 0.3

Result = TypeVar("Result")


def precisions_for(chip: Chip, pinned: str | None = None, *, mode: str = "train") -> list[str]:
    """Precisions worth trying of those the chip computes in, fastest first; the pinned one alone where it is among them.

    Pure bf16 is never chosen for training: it changes what is trained, so the user has to pin it. A forward pass (mode "infer")
    holds its weights in it where the chip computes in it and PyTorch can trace it; no recording of a preset does.
    """
    able = precisions_of(chip)
    if pinned is not None:
        return [pinned] if pinned in able else []
    half = "amp-bf16" if "amp-bf16" in able or not fast_fp16(chip) else "amp-fp16"
    single = "tf32" if "tf32" in able else "fp32"
    pure = ("bf16",) if mode == "infer" and find_spec("torch") is not None else ()
    return [precision for precision in (*pure, half, single) if precision in able]


def in_each_precision(
    precisions: Sequence[str],
    attempt: Callable[[str, PrecisionError | None], Result],
    *,
    refusals: tuple[type[GpuwiseError], ...],
) -> Iterator[Result]:
    """What an attempt gives in each precision that the job runs in, fastest first: `next` takes the fastest.

    Arguments:
        precisions: at least one, as `precisions_for` lists them.
        attempt: called with a precision, and with why the job does not run in the fastest one (None where it does).
        refusals: errors of an attempt after which the next precision is tried.

    Raises the first of them where every precision is refused.
    """
    problem: GpuwiseError | None = None
    refused = 0
    for precision in precisions:
        try:
            result = attempt(precision, problem if isinstance(problem, PrecisionError) else None)
        except refusals as error:
            problem = problem or error
            refused += 1
        else:
            yield result
    if problem is not None and refused == len(precisions):
        raise problem


def assumed_precision(precision: str, refused: PrecisionError | None, *, reasons: str = "", device: str = "") -> Note:
    """The note on a precision that the user did not name.

    Arguments:
        refused: why the job does not run in a faster one.
        reasons: why this one is the fastest, on a CPU.
        device: which one of several it is assumed for.
    """
    problem = "" if refused is None else refused.what.removesuffix(".")
    return step_notes.assumed_precision(precision=precision, refused=problem, reasons=reasons, device=device)


def recomputes_for(pinned: str | None) -> list[str]:
    """Cheapest in time first: recomputation is only tried where memory limits the batch, and where it can be traced."""
    return ["none", "selective", "full"] if pinned is None else [pinned]


def slice_of(chip: Chip, share: float) -> Chip:
    """A fraction of a chip, as fractional offers sell it: that share of memory, bandwidth, rates, units and power."""
    if share >= 1:
        return chip

    def part(value: float | None) -> float | None:
        return None if value is None else value * share

    return replace(
        chip,
        memory_bytes=None if chip.memory_bytes is None else int(chip.memory_bytes * share),
        memory_bandwidth_bytes_per_s=part(chip.memory_bandwidth_bytes_per_s),
        peak_flops_per_s={name: rate * share for name, rate in chip.peak_flops_per_s.items()},
        sm_count=None if chip.sm_count is None else max(1, int(chip.sm_count * share)),
        tdp_w=part(chip.tdp_w),
    )


def batch_for(
    global_batch: int, *, devices: int, micro_batch: int | None = None, accumulation: int | None = None, exact: bool
) -> int | None:
    """The global batch on this many devices; None where it does not divide and is exact (the user's own).

    A default batch is moved to a near multiple instead, one that leaves a device's batch several divisors; it follows from
    micro_batch and accumulation where both are pinned.
    """
    unit = devices * (micro_batch or 1) * (accumulation or 1)
    if micro_batch and accumulation:
        return unit if not exact or unit == global_batch else None
    if global_batch % unit == 0:
        return global_batch
    if exact:
        return None
    each = max(1, round(global_batch / unit))
    step = max(1, power_of_two_below(each) // 4)
    return round(each / step) * step * unit


def micro_batches(per_device_batch: int, pinned: int | None = None, accumulation: int | None = None) -> list[int]:
    """Micro-batches that divide a device's batch, ascending: its powers of two and its other divisors."""
    if accumulation is not None:
        alone, rest = divmod(per_device_batch, accumulation)
        return [alone] if not rest and alone and pinned in (None, alone) else []
    if pinned is not None:
        return [pinned] if per_device_batch % pinned == 0 else []
    small = [d for d in range(1, math.isqrt(per_device_batch) + 1) if per_device_batch % d == 0]
    return sorted({*small, *(per_device_batch // d for d in small)})


def meshes(devices: int) -> Sequence[Mesh]:
    """Replicated first; sharded where that may not fit. One device has one mesh."""
    return [Mesh()] if devices == 1 else [Mesh(dp_replicate=devices), Mesh(dp_shard=devices)]
