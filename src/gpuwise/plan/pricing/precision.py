"""The precision of a step for which the user names none: the fastest one that the chip computes in and the job runs in."""

from __future__ import annotations

from gpuwise.errors import MissingDependencyError, PrecisionError, UnsupportedError
from gpuwise.hardware.types import Chip
from gpuwise.notes import Note
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.plan.space import legal
from gpuwise.strategy import Strategy


def chosen_precision(traces: StepTraces, requested: Strategy, chip: Chip, pinned: str | None) -> tuple[str, list[Note]]:
    """The pinned precision, or the fastest with a note. Raises UnsupportedError if the chip computes in none of them."""
    choices = legal.precisions_for(chip, pinned, mode=requested.mode)
    if not choices:
        what = f"in {pinned}" if pinned else "in any known precision"
        way = f"one of: {', '.join(legal.precisions_for(chip))}" if pinned else "gpuwise chips lists others"
        raise UnsupportedError(f"{chip.id} does not compute {what}.", [way])

    def recorded(precision: str, refused: PrecisionError | None) -> tuple[str, list[Note]]:
        traces.family(requested.but(precision=precision))
        return precision, [] if pinned else [legal.assumed_precision(precision, refused)]

    return next(legal.in_each_precision(choices, recorded, refusals=(UnsupportedError, MissingDependencyError)))
