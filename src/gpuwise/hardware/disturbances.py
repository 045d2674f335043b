"""What disturbed a measurement, by snapshots of this machine before and after."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwise.hardware.load import LoadSnapshot
from gpuwise.units import format_bytes

# From where on a figure of a benchmark is no longer what the machine can do. An idle system's own work stays below them.
OTHERS_SHARE = 0.05  # of the processors, by other programs
STOLEN_SHARE = 0.02  # by the hypervisor: each per cent is lost as it is
WAITING_SHARE = 0.25  # of the time in which some program waited for a processor; a data loader's workers alone make some
CLOCK_FALL = 0.2  # of the highest clock: from one busy core to all, processors go down by less
THROTTLED_SHARE = 0.02  # of the time, by a container's limit
GPU_BUSY = 0.1  # of the time, before the measurement began
GPU_MEMORY_SHARE, GPU_MEMORY_BYTES = 0.05, 2**30  # in use by others: more than a desktop takes
GPU_HELD_BACK_SHARE = 0.1  # of the time
POWER_CAP = 0.98  # of the default limit
JUMP_S = 1.0  # of the system's clock against the monotonic one
ALL = 0.9  # of what we left: practically all


@dataclass(frozen=True)
class Shares:
    """Of the processors' time between two snapshots: what others used, what the hypervisor took, what we used. The rest was
    idle."""

    others: float
    stolen: float
    own: float


def shares(before: LoadSnapshot, after: LoadSnapshot) -> Shares | None:
    """None where the system counts no times, or too few between the two."""
    busy, idle, stolen = (_grown(before, after, name) for name in ("busy_s", "idle_s", "stolen_s"))
    if busy is None or idle is None or stolen is None or (total := busy + idle + stolen) <= 0:
        return None
    own = min(_grown(before, after, "own_s") or 0.0, busy)
    return Shares((busy - own) / total, stolen / total, own / total)


def disturbances(before: LoadSnapshot, after: LoadSnapshot) -> list[str]:
    """What between the two made figures worse than the machine is, a sentence each; thresholds are this module's constants."""
    return [*_other_programs(before, after), *_limits(before, after), *_clock_changes(before, after), *_gpu_load(before, after)]


def all_busy(before: LoadSnapshot, after: LoadSnapshot, *, device: str = "cpu") -> bool:
    """Whether others took practically all of what this process left them: of the processors, or ("cuda") of each GPU before."""
    if device != "cpu":
        return bool(before.gpus) and all((gpu.busy or 0.0) >= ALL for gpu in before.gpus)
    used = shares(before, after)
    if used is None:
        return False
    taken = used.others + used.stolen
    # Who shares evenly with one as greedy as we are has half, so nearly half is all there was to take.
    return taken >= ALL * (1 - used.own) and taken >= 0.4


def _other_programs(before: LoadSnapshot, after: LoadSnapshot) -> list[str]:
    sentences, passed_s = [], max(after.taken_s - before.taken_s, 1e-9)
    if used := shares(before, after):
        if used.others >= OTHERS_SHARE:
            sentences.append(f"other processes used {used.others:.0%} of the processors meanwhile")
        if used.stolen >= STOLEN_SHARE:
            sentences.append(f"the hypervisor took {used.stolen:.0%} of the processors (steal)")
    waiting_s = _grown(before, after, "waiting_s")
    if waiting_s is not None and waiting_s / passed_s >= WAITING_SHARE:
        sentences.append(f"programs waited for a free processor {min(1.0, waiting_s / passed_s):.0%} of the time")
    return [sentence.replace("%", " %") for sentence in sentences]


def _limits(before: LoadSnapshot, after: LoadSnapshot) -> list[str]:
    sentences, passed_s = [], max(after.taken_s - before.taken_s, 1e-9)
    stopped_s = _grown(before, after, "throttled_s")
    if stopped_s is not None and stopped_s / passed_s >= THROTTLED_SHARE:
        limit = "" if after.cpu_limit is None else f" of {after.cpu_limit:g} processors"
        sentences.append(f"the container's limit{limit} stopped the program for {stopped_s:.1f} s")
    first, last = (before.clock_hz or 0.0) / 1e9, (after.clock_hz or 0.0) / 1e9
    if 0 < last < (1 - CLOCK_FALL) * first:
        sentences.append(f"the clock fell from {first:.1f} to {last:.1f} GHz: thermal or power limit")
    if throttles := _grown(before, after, "heat_throttles"):
        sentences.append(f"heat lowered the processors' clock {throttles:.0f} times")
    return sentences


def _clock_changes(before: LoadSnapshot, after: LoadSnapshot) -> list[str]:
    passed_s = after.taken_s - before.taken_s
    slept_s = 0.0
    if before.awake_s is not None and after.awake_s is not None:
        slept_s = after.awake_s - before.awake_s - passed_s
    jumped_s = after.wall_s - before.wall_s - passed_s - slept_s
    sentences = []
    if slept_s > JUMP_S:
        sentences.append(f"the machine was suspended for {slept_s:.0f} s")
    if abs(jumped_s) > JUMP_S:
        sentences.append(f"the system clock jumped by {jumped_s:.0f} s; times are from the monotonic clock")
    return sentences


def _gpu_load(before: LoadSnapshot, after: LoadSnapshot) -> list[str]:
    """Utilisation and memory count as another's only before: afterwards they are our own."""
    sentences, passed_s = [], max(after.taken_s - before.taken_s, 1e-9)
    for index, gpu in enumerate(before.gpus):
        which = f"GPU {index}" if len(before.gpus) > 1 else "the GPU"
        if (gpu.busy or 0.0) >= GPU_BUSY:
            sentences.append(f"{which} was busy {100 * (gpu.busy or 0.0):.0f} % of the time before the measurement began")
        used, size = gpu.memory_used_bytes or 0, gpu.memory_bytes
        if used > GPU_MEMORY_BYTES and size and used > GPU_MEMORY_SHARE * size:
            sentences.append(f"other programs held {format_bytes(used)} of {which}'s memory when the measurement began")
    for index, gpu in enumerate(after.gpus):
        which = f"GPU {index}" if len(after.gpus) > 1 else "the GPU"
        limit, default = gpu.power_limit_w, gpu.default_power_limit_w
        if limit and default and limit < POWER_CAP * default:
            sentences.append(
                f"the power limit is {limit:.0f} W, the card's default is {default:.0f} W"
                + (f" (GPU {index})" if len(after.gpus) > 1 else "")
            )
        earlier = before.gpus[index].held_back_s if index < len(before.gpus) else {}
        for cause, seconds in gpu.held_back_s.items():
            share = (seconds - earlier.get(cause, seconds)) / passed_s
            if share >= GPU_HELD_BACK_SHARE:
                sentences.append(f"{cause} held back the clock of {which} {100 * min(1.0, share):.0f} % of the time")
        if not gpu.held_back_s and gpu.held_back:
            sentences.append(f"the clock of {which} is held back: {', '.join(gpu.held_back)}")
    return sentences


def _grown(before: LoadSnapshot, after: LoadSnapshot, name: str) -> float | None:
    """By how much a counter grew; None where it is not counted or began anew."""
    first, last = getattr(before, name), getattr(after, name)
    return None if first is None or last is None or last < first else last - first
