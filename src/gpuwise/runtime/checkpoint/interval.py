"""How often to save: what loses least, from how long a save takes and how often a run is interrupted."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpuwise.errors import InputError
from gpuwise.plan.economics import DEFAULT_INTERRUPTIONS_PER_DAY, daly_interval_s
from gpuwise.units import format_duration

DAY_S = 86_400.0
FIRST_S = 30.0  # the first save comes early: it measures what a save takes
LEAST_S, MOST_S = 10.0, 3600.0
MOST_SHARE = 0.02  # of a run's time that saving may take
BUSY_SHARE = 0.5  # of the time that the disk may be busy with it


@dataclass(frozen=True)
class SaveInterval:
    """Work between two checkpoints, in seconds and in optimizer steps, and a sentence with the reasons."""

    seconds: float
    steps: int
    sentence: str


def choose_interval(
    *, save_s: float, held_up_s: float, step_s: float, cpu_s: float = 0.0,
    interruptions_per_day: float = DEFAULT_INTERRUPTIONS_PER_DAY,
) -> SaveInterval:  # fmt: skip
    """The interval that loses least (Daly, see plan.economics), between ten seconds and an hour.

    Arguments:
        save_s: writing a checkpoint, from the copy of the state until it is on the disk.
        held_up_s: what that held the training up.
        step_s: one optimizer step.
        cpu_s: processor time of the write that the training goes without: on a CPU, where it needs all cores itself.
        interruptions_per_day: of the machine, expected.

    Never more than 2 % of the time goes into saving, nor is the disk busy more than half of it; for that it may be longer than
    an hour.
    Raises InputError for negative times or rates.
    """
    given = {"save_s": save_s, "held_up_s": held_up_s, "step_s": step_s, "cpu_s": cpu_s,
             "interruptions_per_day": interruptions_per_day}  # fmt: skip
    for name, value in given.items():
        if not 0 <= value < math.inf:
            raise InputError(f"{name} must be zero or more, got {value!r}.")
    cost_s = held_up_s + cpu_s
    least_lost_s = daly_interval_s(cost_s, DAY_S / interruptions_per_day) if interruptions_per_day else MOST_S
    seconds = max(min(max(least_lost_s, LEAST_S), MOST_S), cost_s / MOST_SHARE, save_s / BUSY_SHARE)
    rate = f"{interruptions_per_day:g} interruption{'' if interruptions_per_day == 1 else 's'} a day assumed"
    held_up = f"a save holds the run up {format_duration(held_up_s)}"
    if cpu_s:
        held_up += f" and takes {format_duration(cpu_s)} of processor time"
    sentence = f"a checkpoint every {format_duration(seconds)}: {held_up}, {rate}"
    return SaveInterval(seconds, _steps(seconds, step_s), sentence)


def first_interval(*, step_s: float) -> SaveInterval:
    """Until the first save: half a minute, so that a run that is over by then is saved at its end alone."""
    return SaveInterval(FIRST_S, _steps(FIRST_S, step_s),
                        f"the first checkpoint after {format_duration(FIRST_S)}: it measures what a save takes")  # fmt: skip


class SaveTimer:
    """Says when to save. Its times are those of a clock that never jumps (time.monotonic, time.perf_counter).

    Arguments:
        now_s: the run begins.
        step_s: one optimizer step, as far as it is known.
        on_cpu: whether the training needs the processor time of a write itself.

    interval: as of now; it changes with each save.
    """

    def __init__(
        self, *, now_s: float, step_s: float = 0.0, on_cpu: bool = True,
        interruptions_per_day: float = DEFAULT_INTERRUPTIONS_PER_DAY,
    ):  # fmt: skip
        self.interval = first_interval(step_s=step_s)
        self.due_s = now_s + self.interval.seconds
        self._on_cpu, self._interruptions_per_day = on_cpu, interruptions_per_day
        self._begun_s = now_s

    def due(self, now_s: float) -> bool:
        """Whether it is time to save."""
        return now_s >= self.due_s

    def begun(self, now_s: float) -> None:
        """A save began: the next is due an interval later."""
        self._begun_s = now_s
        self.due_s = now_s + self.interval.seconds

    def ended(self, *, save_s: float, held_up_s: float, cpu_s: float, step_s: float) -> SaveInterval:
        """What the save took: the interval from now on."""
        self.interval = choose_interval(
            save_s=save_s, held_up_s=held_up_s, cpu_s=cpu_s if self._on_cpu else 0.0, step_s=step_s,
            interruptions_per_day=self._interruptions_per_day)  # fmt: skip
        self.due_s = self._begun_s + self.interval.seconds
        return self.interval


def _steps(seconds: float, step_s: float) -> int:
    return max(1, round(seconds / step_s)) if step_s > 0 else 1
