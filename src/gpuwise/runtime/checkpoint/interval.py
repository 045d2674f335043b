"""Chooses the interval between saves with the least loss, from the cost of a save and the rate of interruptions."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpuwise.errors import InputError
from gpuwise.plan.economics.spot import DEFAULT_INTERRUPTIONS_PER_DAY, daly_interval_s
from gpuwise.units import format_duration

DAY_S = 86_400.0
# The first save comes early, to measure the cost of a save. A shorter run is saved only at its end.
FIRST_S = 30.0
LEAST_S, MOST_S = 10.0, 3600.0
MOST_SHARE = 0.02  # largest share of a run's time spent on saves
BUSY_SHARE = 0.5  # largest share of the time in which saves keep the disk busy


@dataclass(frozen=True)
class SaveInterval:
    """Work between two checkpoints, in seconds, and a sentence with the reasons."""

    seconds: float
    sentence: str


def choose_interval(
    *,
    save_s: float,
    held_up_s: float,
    cpu_s: float = 0.0,
    interruptions_per_day: float = DEFAULT_INTERRUPTIONS_PER_DAY,
) -> SaveInterval:
    """The interval with the least loss (Daly, see plan.economics), between ten seconds and an hour.

    Saves take at most 2 % of the time, and keep the disk busy for at most half of it. The interval may exceed an hour to
    meet these limits.

    Arguments:
        save_s: seconds of a save, from the copy of the state until it is on disk.
        held_up_s: seconds for which a save blocks the training.
        cpu_s: processor seconds of a save that the training lacks: on a CPU, where training uses all cores.
        interruptions_per_day: expected interruptions of the machine per day.

    Raises InputError for negative times or rates.
    """
    arguments = {"save_s": save_s, "held_up_s": held_up_s, "cpu_s": cpu_s, "interruptions_per_day": interruptions_per_day}
    for name, value in arguments.items():
        if not 0 <= value < math.inf:
            raise InputError(f"{name} must be zero or more, got {value!r}.")
    cost_s = held_up_s + cpu_s
    least_lost_s = daly_interval_s(cost_s, DAY_S / interruptions_per_day) if interruptions_per_day else MOST_S
    seconds = max(min(max(least_lost_s, LEAST_S), MOST_S), cost_s / MOST_SHARE, save_s / BUSY_SHARE)
    rate = f"{interruptions_per_day:g} interruption{'' if interruptions_per_day == 1 else 's'} a day assumed"
    held_up = f"a save holds the run up {format_duration(held_up_s)}"
    if cpu_s:
        held_up += f" and takes {format_duration(cpu_s)} of processor time"
    return SaveInterval(seconds, f"a checkpoint every {format_duration(seconds)}: {held_up}, {rate}")
