"""Deadlines: whether another step and the last save still fit before the end of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gpuwise.runtime.interruption.notices import INTERRUPTION, Notice
from gpuwise.units import format_duration

MARGIN_S = 5.0  # for the log, the report and the exit of the interpreter
SPREAD = 1.5  # steps and saves are assumed to last this many times their measured duration


@dataclass(frozen=True)
class Deadline:
    """The end of a run.

    Attributes:
        at_s: time of the end in seconds, on the clock of `now_s`.
        kind: "notice" or "time limit".
        text: completes "the run ends because ...".
        hard: whether the process is killed at that time; False for the user's own limit.
        margin_s: seconds reserved beyond the step and the save.
    """

    at_s: float
    kind: str
    text: str
    hard: bool = True
    margin_s: float = MARGIN_S

    def spare_s(self, now_s: float, step_s: float, save_s: float) -> float:
        """Seconds left after another step and a save; if negative, they must not begin."""
        return self.at_s - now_s - SPREAD * (step_s + save_s) - self.margin_s

    def must_stop(self, now_s: float, step_s: float, save_s: float) -> bool:
        """Whether the run must save and end after the current step."""
        return self.spare_s(now_s, step_s, save_s) < 0

    def save_fits(self, now_s: float, save_s: float) -> bool:
        """Whether a save that takes `save_s` can end in time. After the deadline an attempt is always worthwhile."""
        left_s = self.at_s - now_s
        return not self.hard or left_s <= 0 or save_s <= left_s


def time_limit(limit_s: float, *, since_s: float) -> Deadline:
    """The user's own limit, counted from a time on the same clock. The margin of a short limit is a twentieth of it."""
    text = f"its time limit of {format_duration(limit_s)} is over"
    return Deadline(since_s + limit_s, "time limit", text, hard=False, margin_s=min(MARGIN_S, limit_s / 20))


def slurm_end(environment: Mapping[str, str], *, now_s: float, now_unix_s: float) -> Deadline | None:
    """The end of the Slurm job of this process; None outside Slurm, or when that time has passed (a stale variable).

    SLURM_JOB_END_TIME is the end as a UNIX timestamp: https://slurm.schedmd.com/sbatch.html, "Output environment
    variables". It is set at the job's start, so a later extension by `scontrol` is not seen.
    """
    end_time = environment.get("SLURM_JOB_END_TIME", "")
    left_s = int(end_time) - now_unix_s if end_time.isascii() and end_time.isdigit() and len(end_time) < 16 else 0.0
    if left_s <= 0:
        return None
    return Deadline(now_s + left_s, "time limit", "the Slurm job's time is over")


def notice_end(notice: Notice, *, now_s: float, now_unix_s: float) -> Deadline | None:
    """The deadline of a notice: immediate if the notice names no time, None if it is only advice."""
    if notice.kind != INTERRUPTION:
        return None
    if notice.deadline_unix_s is None:
        return Deadline(-math.inf, "notice", notice.text)
    return Deadline(now_s + notice.deadline_unix_s - now_unix_s, "notice", notice.text)
