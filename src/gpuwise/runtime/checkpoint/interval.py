"""How often to save: what loses least, from how long a save takes and how often a run is interrupted."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpuwise.errors import InputError
from gpuwise.plan.economics.spot import DEFAULT_INTERRUPTIONS_PER_DAY, daly_interval_s
from gpuwise.units import format_duration

DAY_S = 86_400.0
# The first save comes early: it measures what a save takes. A run that is over by then is saved at its end alone.
FIRST_S = 30.0
LEAST_S, MOST_S = 10.0, 3600.0
MOST_SHARE = 0.02  # of a run's time that saving may take
BUSY_SHARE = 0.5  # of the time that the disk may be busy with it


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
    """The interval that loses least (Daly, see plan.economics), between ten seconds and an hour.

    Arguments:
        save_s: writing a checkpoint, from the copy of the state until it is on the disk.
        held_up_s: what that held the training up.
        cpu_s: processor time of the write that the training goes without: on a CPU, where it needs all cores itself.
        interruptions_per_day: of the machine, expected.

    Never more than 2 % of the time goes into saving, nor is the disk busy more than half of it; for that it may be longer than
    an hour.
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
