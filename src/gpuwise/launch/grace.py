"""Whether the last save of a run fits between the signal and the kill, before money is spent."""

from __future__ import annotations

import math

from gpuwise.errors import InputError, UnsupportedError
from gpuwise.launch.target import LaunchTarget
from gpuwise.notes import Note
from gpuwise.notes import launch as notes
from gpuwise.plan.economics.save_time import stop_seconds
from gpuwise.plan.types import Plan
from gpuwise.units import format_duration

_STEP_S = 10  # graces are whole tens of seconds
_UNFORECAST_S = 600.0  # of parameters in host memory, tens of GB as a rule; a guess
_MARGIN = 1.5  # of a file's grace over the longest save: a save takes as long again on a busy disk now and then
# Seconds between the notice of a spot machine's end and the end.
# AWS: docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html; Azure:
# learn.microsoft.com/azure/virtual-machines/spot-vms; Google: cloud.google.com/compute/docs/instances/spot.
NOTICE_S = {"aws": 120.0, "azure": 30.0, "gcp": 30.0}


def save_s(plan: Plan) -> float:
    """The longest that a stop takes, in seconds: the steps in flight and a checkpoint. See gpuwise.plan.economics.save_time.

    Where the size of checkpoints is not forecast, it is _UNFORECAST_S.
    """
    try:
        return stop_seconds(plan).high
    except UnsupportedError:
        return _UNFORECAST_S


def grace_of(plan: Plan, target: LaunchTarget, stated_s: float | None) -> tuple[int, tuple[Note, ...]]:
    """The grace in whole seconds that the files demand, and what the user should know of it.

    Raises InputError for a stated grace that is shorter than a save, or longer than the target's longest.
    """
    needed_s, notes_made = save_s(plan), []
    longest_s = target.longest_grace_s
    if stated_s is not None:
        if longest_s is not None and stated_s > longest_s:
            raise InputError(
                f"{target.name} kills {format_duration(longest_s)} after the signal at the latest, and --grace is "
                f"{format_duration(stated_s)}.",
                [f"--grace {math.floor(longest_s)}s"],
            )
        if stated_s < needed_s:
            raise InputError(
                f"--grace {format_duration(stated_s)} is shorter than a save, which takes up to {format_duration(needed_s)} "
                "here: the step in flight and the checkpoint.",
                [f"--grace {_rounded(needed_s)}s", "leave out --grace"],
            )
        grace_s = math.ceil(stated_s)
    elif target.default_grace_s is None:
        grace_s = _rounded(needed_s * _MARGIN)
        notes_made.append(notes.grace_of_site(save_s=needed_s))
    elif target.default_grace_s == 0:
        grace_s = _rounded(needed_s * _MARGIN)
        notes_made.append(notes.time_reserved(save_s=needed_s, reserved_s=grace_s))
    elif needed_s <= target.default_grace_s:
        grace_s = math.ceil(target.default_grace_s)
    else:
        grace_s = _rounded(needed_s * _MARGIN)
        if longest_s is not None and grace_s > longest_s:
            grace_s = math.floor(longest_s)
        if grace_s >= needed_s:
            notes_made.append(notes.grace_raised(save_s=needed_s, default_s=target.default_grace_s, grace_s=grace_s))
    ends_s = [float(grace_s)]
    if plan.offer.terms == "spot" and plan.offer.provider in NOTICE_S:
        ends_s.append(NOTICE_S[plan.offer.provider])
    if min(ends_s) < needed_s:
        notes_made.append(
            notes.only_periodic_checkpoints(save_s=needed_s, grace_s=min(ends_s), interval_s=plan.checkpoint_interval_s or 0.0)
        )
    return grace_s, tuple(notes_made)


def _rounded(seconds: float) -> int:
    return math.ceil(seconds / _STEP_S) * _STEP_S
