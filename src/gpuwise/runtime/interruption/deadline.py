"""An end that is known ahead: whether another step and the last save still fit before it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gpuwise.runtime.interruption.notices import INTERRUPTION, Notice
from gpuwise.units import format_duration

MARGIN_S = 5.0  # for the log, the report and the interpreter's own end
SPREAD = 1.5  # steps and saves are taken to last this many times what they were measured at


@dataclass(frozen=True)
class Deadline:
    """An end at `at_s`, on the clock that `now_s` is read from.

    kind: "notice" or "time limit". text: completes "the run ends because ...". hard: whether something else ends the
    process then; the user's own limit does not. margin_s: kept free beyond the step and the save.
    """

    at_s: float
    kind: str
    text: str
    hard: bool = True
    margin_s: float = MARGIN_S

    def spare_s(self, now_s: float, step_s: float, save_s: float) -> float:
        """What is left of the time when another step and a save have been made; below zero, they are not to begin."""
        return self.at_s - now_s - SPREAD * (step_s + save_s) - self.margin_s

    def must_stop(self, now_s: float, step_s: float, save_s: float) -> bool:
        """Whether the run is to save and end now, at a step's end."""
        return self.spare_s(now_s, step_s, save_s) < 0

    def save_fits(self, now_s: float, save_s: float) -> bool:
        """Whether a save that takes `save_s` can end in time. Past the end nothing is known: it is worth trying."""
        left_s = self.at_s - now_s
        return not self.hard or left_s <= 0 or save_s <= left_s


def time_limit(limit_s: float, *, now_s: float) -> Deadline:
    """The user's own limit, counted from now. Of a short one a twentieth is kept free."""
    text = f"its time limit of {format_duration(limit_s)} is over"
    return Deadline(now_s + limit_s, "time limit", text, hard=False, margin_s=min(MARGIN_S, limit_s / 20))


def slurm_end(environment: Mapping[str, str], *, now_s: float, now_unix_s: float) -> Deadline | None:
    """The end of the Slurm job this process runs in; None outside one, or when it is over already (a variable left behind).

    SLURM_JOB_END_TIME is the end as a UNIX timestamp: https://slurm.schedmd.com/sbatch.html, "Output environment
    variables". The limit as it was at the start: an extension by `scontrol` is not seen.
    """
    end_time = environment.get("SLURM_JOB_END_TIME", "")
    left_s = int(end_time) - now_unix_s if end_time.isascii() and end_time.isdigit() and len(end_time) < 16 else 0.0
    if left_s <= 0:
        return None
    return Deadline(now_s + left_s, "time limit", "the Slurm job's time is over")


def notice_end(notice: Notice, *, now_s: float, now_unix_s: float) -> Deadline | None:
    """The end that a notice announces: at once where it names no time, None where it is only advice."""
    if notice.kind != INTERRUPTION:
        return None
    if notice.deadline_unix_s is None:
        return Deadline(-math.inf, "notice", notice.text)
    return Deadline(now_s + notice.deadline_unix_s - now_unix_s, "notice", notice.text)
