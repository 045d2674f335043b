"""Whether this machine's CPU is enough to train a network, beside the fastest single GPU that can be rented."""

from __future__ import annotations

from collections.abc import Sequence

from gpuwise.notes import Note
from gpuwise.notes import cpu as notes
from gpuwise.plan.cpu.enough import ENOUGH, NOT_ENOUGH, UNCERTAIN, CpuEnough
from gpuwise.plan.option import Option
from gpuwise.plan.request import Request

# A run of an hour at hand needs no machine to be rented, set up and given back.
AT_HAND_S = 3600.0
# Shares of a GPU's step from which launching kernels is worth naming.
LAUNCHING = 0.5


def enough_for_network(options: Sequence[Option], request: Request) -> CpuEnough | None:
    """The verdict on this machine's CPU; None where it has a GPU, is not considered, or cannot train the job.

    Arguments:
        options: every way to train the job, inside the limits or not.
    """
    here = min(filter(_is_this_cpu, options), key=lambda option: option.hours, default=None)
    if here is None:
        return None
    gpu = min(filter(_is_one_gpu, options), key=lambda option: (round(option.hours, 3), option.usd.value), default=None)
    time, calendar_s = here.outcome.calendar_s, here.hours * 3600
    verdict = _verdict(here, gpu, request)
    if gpu is None:
        return CpuEnough(
            verdict,
            (notes.cpu_alone(verdict=verdict, time_s=calendar_s, low_s=time.low, high_s=time.high, usd=here.usd.value),),
        )
    first = notes.cpu_beside_a_gpu(
        verdict=verdict,
        time_s=calendar_s,
        low_s=time.low,
        high_s=time.high,
        usd=here.usd.value,
        gpu=f"{gpu.device} at {gpu.offer.provider}",
        gpu_time_s=gpu.hours * 3600,
        saved_s=calendar_s - gpu.hours * 3600,
        gpu_usd=gpu.usd.value,
    )
    return CpuEnough(verdict, (first, *(() if verdict == NOT_ENOUGH else _reasons(gpu))))


def _verdict(here: Option, gpu: Option | None, request: Request) -> str:
    calendar_s, deadline_s = here.hours * 3600, request.deadline_s
    if deadline_s is not None and calendar_s > deadline_s:
        return NOT_ENOUGH
    saves_little = gpu is not None and calendar_s - gpu.hours * 3600 <= gpu.terms.setup_s
    if saves_little or (calendar_s <= AT_HAND_S and request.objective != "fastest"):
        return ENOUGH
    if deadline_s is None or request.objective == "fastest":
        return NOT_ENOUGH
    return ENOUGH if here.outcome.calendar_s.high <= deadline_s else UNCERTAIN


def _reasons(gpu: Option) -> list[Note]:
    """Why the GPU gains so little."""
    reasons = []
    work_s = gpu.hours * 3600 - gpu.terms.setup_s
    if gpu.terms.setup_s > work_s:
        reasons.append(notes.gpu_is_mostly_set_up(setup_s=gpu.terms.setup_s, work_s=work_s))
    bound = {} if gpu.estimate.forecast is None else gpu.estimate.forecast.bound
    if bound.get("launch", 0.0) >= LAUNCHING:
        reasons.append(notes.gpu_waits_for_launches(share=bound["launch"]))
    return reasons


def _is_this_cpu(option: Option) -> bool:
    return option.offer.provider == "here" and option.item.chip.kind == "cpu"


def _is_one_gpu(option: Option) -> bool:
    """Whether it is a rented GPU, or a part of one, at a price of today that `gpuwise train` can use."""
    rented = option.offer.terms in ("on-demand", "spot") and not option.offer.stale
    return rented and option.item.chip.kind != "cpu" and option.count <= 1 and not option.train_obstacle
