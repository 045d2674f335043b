"""The disturbances of a measurement, from snapshots of this machine before and after."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwise.hardware.load import LoadSnapshot
from gpuwise.notes import Note
from gpuwise.notes import measuring as measuring_notes

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


def disturbances(before: LoadSnapshot, after: LoadSnapshot) -> list[Note]:
    """The disturbances between two snapshots that made figures worse. Thresholds are this module's constants."""
    return [*_other_programs(before, after), *_limits(before, after), *_clock_changes(before, after), *_gpu_load(before, after)]


def all_busy(before: LoadSnapshot, after: LoadSnapshot, *, device: str = "cpu") -> bool:
    """Whether others took practically all of what this process left them: of the processors, or of each GPU before."""
    if device != "cpu":
        return bool(before.gpus) and all((gpu.busy or 0.0) >= ALL for gpu in before.gpus)
    used = shares(before, after)
    if used is None:
        return False
    taken = used.others + used.stolen
    # Who shares evenly with one as greedy as we are has half, so nearly half is all there was to take.
    return taken >= ALL * (1 - used.own) and taken >= 0.4


def _other_programs(before: LoadSnapshot, after: LoadSnapshot) -> list[Note]:
    notes: list[Note] = []
    passed_s = max(after.taken_s - before.taken_s, 1e-9)
    if used := shares(before, after):
        if used.others >= OTHERS_SHARE:
            notes.append(measuring_notes.processors_used_by_others(share=used.others))
        if used.stolen >= STOLEN_SHARE:
            notes.append(measuring_notes.processors_stolen(share=used.stolen))
    waiting_s = _grown(before, after, "waiting_s")
    if waiting_s is not None and waiting_s / passed_s >= WAITING_SHARE:
        notes.append(measuring_notes.programs_waited(share=min(1.0, waiting_s / passed_s)))
    return notes


def _limits(before: LoadSnapshot, after: LoadSnapshot) -> list[Note]:
    notes: list[Note] = []
    passed_s = max(after.taken_s - before.taken_s, 1e-9)
    stopped_s = _grown(before, after, "throttled_s")
    if stopped_s is not None and stopped_s / passed_s >= THROTTLED_SHARE:
        notes.append(measuring_notes.stopped_by_container(stopped_s=stopped_s, processors=after.cpu_limit))
    first, last = before.clock_hz or 0.0, after.clock_hz or 0.0
    if 0 < last < (1 - CLOCK_FALL) * first:
        notes.append(measuring_notes.clock_fell(before_hz=first, after_hz=last))
    if throttles := _grown(before, after, "heat_throttles"):
        notes.append(measuring_notes.heat_lowered_clock(times=throttles))
    return notes


def _clock_changes(before: LoadSnapshot, after: LoadSnapshot) -> list[Note]:
    passed_s = after.taken_s - before.taken_s
    slept_s = 0.0
    if before.awake_s is not None and after.awake_s is not None:
        slept_s = after.awake_s - before.awake_s - passed_s
    jumped_s = after.wall_s - before.wall_s - passed_s - slept_s
    notes: list[Note] = []
    if slept_s > JUMP_S:
        notes.append(measuring_notes.machine_suspended(slept_s=slept_s))
    if abs(jumped_s) > JUMP_S:
        notes.append(measuring_notes.system_clock_jumped(jumped_s=jumped_s))
    return notes


def _gpu_load(before: LoadSnapshot, after: LoadSnapshot) -> list[Note]:
    """Utilisation and memory count as another's only before: afterwards they are our own."""
    notes: list[Note] = []
    passed_s = max(after.taken_s - before.taken_s, 1e-9)
    for index, gpu in enumerate(before.gpus):
        which = f"GPU {index}" if len(before.gpus) > 1 else "the GPU"
        if (gpu.busy or 0.0) >= GPU_BUSY:
            notes.append(measuring_notes.gpu_was_busy(gpu=which, share=gpu.busy or 0.0))
        used, size = gpu.memory_used_bytes or 0, gpu.memory_bytes
        if used > GPU_MEMORY_BYTES and size and used > GPU_MEMORY_SHARE * size:
            notes.append(measuring_notes.gpu_memory_used_by_others(gpu=which, used_bytes=used))
    for index, gpu in enumerate(after.gpus):
        which = f"GPU {index}" if len(after.gpus) > 1 else "the GPU"
        limit, default = gpu.power_limit_w, gpu.default_power_limit_w
        if limit and default and limit < POWER_CAP * default:
            several = f"GPU {index}" if len(after.gpus) > 1 else ""
            notes.append(measuring_notes.power_limit_lowered(limit_w=limit, default_w=default, gpu=several))
        earlier = before.gpus[index].held_back_s if index < len(before.gpus) else {}
        for cause, seconds in gpu.held_back_s.items():
            share = (seconds - earlier.get(cause, seconds)) / passed_s
            if share >= GPU_HELD_BACK_SHARE:
                notes.append(measuring_notes.gpu_clock_held_back(gpu=which, cause=cause, share=min(1.0, share)))
        if not gpu.held_back_s and gpu.held_back:
            notes.append(measuring_notes.gpu_clock_is_held_back(gpu=which, causes=", ".join(gpu.held_back)))
    return notes


def _grown(before: LoadSnapshot, after: LoadSnapshot, name: str) -> float | None:
    """The growth of a counter; None if it is missing or was reset."""
    first, last = getattr(before, name), getattr(after, name)
    return None if first is None or last is None or last < first else last - first
