"""The legal space: which precisions, batches and meshes are worth trying on a chip."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from gpuwise.cost.rates import fast_fp16, precisions_of
from gpuwise.errors import GpuwiseError, PrecisionError
from gpuwise.hardware.types import Chip
from gpuwise.notes import Note
from gpuwise.notes import step as step_notes
from gpuwise.plan.space.global_batch import power_of_two_below
from gpuwise.strategy import Mesh

# A sharded strategy is also tried if replicated state takes more than this share of a device.
CROWDED = 0.3

Result = TypeVar("Result")


def precisions_for(chip: Chip, pinned: str | None = None, *, mode: str = "train") -> list[str]:
    """Precisions to try on a chip, fastest first; only the pinned one if the chip computes in it.

    Pure bf16 is never chosen for training: it changes the training, so the user has to pin it. A forward pass (mode "infer")
    holds its weights in bf16 if the chip computes in bf16.
    """
    able = precisions_of(chip)
    if pinned is not None:
        return [pinned] if pinned in able else []
    half = "amp-bf16" if "amp-bf16" in able or not fast_fp16(chip) else "amp-fp16"
    single = "tf32" if "tf32" in able else "fp32"
    pure = ("bf16",) if mode == "infer" else ()
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
    """The note on a precision that was chosen for the user.

    Arguments:
        refused: why the job does not run in a faster precision.
        reasons: why this precision is the fastest, on a CPU.
        device: the device that it is assumed for, if there are several.
    """
    problem = "" if refused is None else refused.what.removesuffix(".")
    return step_notes.assumed_precision(precision=precision, refused=problem, reasons=reasons, device=device)


def recomputes_for(pinned: str | None) -> list[str]:
    """Recompute modes to try, cheapest in time first.

    Recomputation is tried only if memory limits the batch and it can be traced.
    """
    return ["none", "selective", "full"] if pinned is None else [pinned]


def slice_of(chip: Chip, share: float) -> Chip:
    """A fraction of a chip, as fractional offers sell it: a share of its memory, bandwidth, rates, units and power."""
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
    """The global batch on this many devices; None if it is exact (the user's own) and does not divide.

    A default batch is moved to a near multiple that leaves a device's batch several divisors. If micro_batch and
    accumulation are both pinned, the batch follows from them.
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
    """Micro-batch sizes that divide a device's batch, ascending: powers of two and other divisors."""
    if accumulation is not None:
        alone, rest = divmod(per_device_batch, accumulation)
        return [alone] if not rest and alone and pinned in (None, alone) else []
    if pinned is not None:
        return [pinned] if per_device_batch % pinned == 0 else []
    small = [d for d in range(1, math.isqrt(per_device_batch) + 1) if per_device_batch % d == 0]
    return sorted({*small, *(per_device_batch // d for d in small)})


def meshes(devices: int) -> Sequence[Mesh]:
    """Meshes to try: replicated first, then sharded in case that does not fit. One device has one mesh."""
    return [Mesh()] if devices == 1 else [Mesh(dp_replicate=devices), Mesh(dp_shard=devices)]
