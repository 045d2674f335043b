"""Detects non-finite losses and spikes of the loss."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TypedDict

from gpuwise.errors import InputError

ON_NONFINITE = ("stop", "skip")
MOST_IN_A_ROW = 20  # consecutive non-finite losses that end a run with "skip": it no longer learns
WINDOW, LEAST = 100, 20  # most and fewest finite losses from which the threshold of a spike is computed
# A spike is a loss above median + SPREADS × 1.4826 × MAD of the window. The factor 1.4826 turns the median absolute
# deviation of a normal distribution into its standard deviation (Rousseeuw and Croux 1993,
# doi:10.1080/01621459.1993.10476408). SPREADS is ten because losses of batches have longer tails than a normal
# distribution. A loss that hardly varies must also rise by LEAST_RISE of its median.
SPREADS, SIGMA_PER_MAD, LEAST_RISE = 10.0, 1.4826, 0.2
_REFRESH = 64  # losses between two computations of the threshold


class LossWatchState(TypedDict):
    """The saved state of a LossWatch, named after its attributes."""

    nonfinite: int
    spikes: int
    in_a_row: int
    window: list[float]
    spike_above: float
    until_look: int
    spiky_step: float


@dataclass(frozen=True)
class LossEvent:
    """A finding about the loss of one step.

    Attributes:
        kind: "nonfinite" or "spike".
        step: number of the step.
        loss: loss of the step.
        text: a sentence for the user.
        ends: whether the run must end.
        first: whether the previous step had no event of this kind.
    """

    kind: str
    step: int
    loss: float
    text: str
    ends: bool = False
    first: bool = True


class LossWatch:
    """Checks the loss of each step; an ordinary loss costs a few comparisons.

    A spike is reported once, and again only after WINDOW steps without such a loss. A loss that stays high enters the
    window and so raises the threshold.

    Attributes:
        nonfinite: non-finite losses so far.
        spikes: spikes so far.
        in_a_row: consecutive non-finite losses up to now.

    Arguments:
        on_nonfinite: "stop" ends the run at the first non-finite loss, "skip" after MOST_IN_A_ROW consecutive ones.

    Raises InputError for another `on_nonfinite`.
    """

    def __init__(self, *, on_nonfinite: str = "stop") -> None:
        if on_nonfinite not in ON_NONFINITE:
            raise InputError(
                f"unknown way to treat a loss that is not finite {on_nonfinite!r}.", [f"one of: {', '.join(ON_NONFINITE)}"]
            )
        self.nonfinite = self.spikes = self.in_a_row = 0
        self._allowed_in_a_row = 0 if on_nonfinite == "stop" else MOST_IN_A_ROW - 1
        self._window: deque[float] = deque(maxlen=WINDOW)
        self._spike_above = math.inf  # threshold of a spike, when last computed
        self._until_look = LEAST  # losses until the threshold is computed again
        self._spiky_step: float = -math.inf

    def state(self) -> LossWatchState:
        """The state on which later events depend."""
        return {
            "nonfinite": self.nonfinite,
            "spikes": self.spikes,
            "in_a_row": self.in_a_row,
            "window": list(self._window),
            "spike_above": self._spike_above,
            "until_look": self._until_look,
            "spiky_step": self._spiky_step,
        }

    def load(self, state: LossWatchState) -> None:
        self.nonfinite, self.spikes, self.in_a_row = state["nonfinite"], state["spikes"], state["in_a_row"]
        self._window = deque(state["window"], maxlen=WINDOW)
        self._spike_above, self._until_look = state["spike_above"], state["until_look"]
        self._spiky_step = state["spiky_step"]

    def see(self, step: int, loss: float, *, what: str = "") -> LossEvent | None:
        """The event of a step's loss; None for an ordinary loss.

        Arguments:
            what: the non-finite quantity, if it is known more precisely than "loss".
        """
        if -math.inf < loss < self._spike_above and self._until_look:  # false for NaN
            self._window.append(loss)
            self._until_look -= 1
            return None
        return self._look(step, loss) if math.isfinite(loss) else self._not_finite(step, loss, what)

    def _look(self, step: int, loss: float) -> LossEvent | None:
        self.in_a_row = 0
        median, self._spike_above = self._spread()
        before = len(self._window)
        self._until_look = _REFRESH if before >= LEAST else LEAST - before
        self._window.append(loss)
        if loss <= self._spike_above:
            return None
        first = step - self._spiky_step > WINDOW
        self._spiky_step = step
        if not first:
            return None
        self.spikes += 1
        text = f"the loss rose to {loss:.4g} at step {step}; the median of the {before} before is {median:.4g}."
        return LossEvent("spike", step, loss, text)

    def _not_finite(self, step: int, loss: float, what: str) -> LossEvent:
        self.nonfinite += 1
        self.in_a_row += 1
        self._until_look = 0  # the next finite loss resets in_a_row
        text = f"{what or f'the loss is {loss}'} at step {step}"
        if self.in_a_row > 1:
            text += f", the {self.in_a_row}th in a row that is not finite"
        elif self._window:
            text += f"; the last finite one was {self._window[-1]:.6g} at step {step - 1}"
        ends = self.in_a_row > self._allowed_in_a_row
        return LossEvent("nonfinite", step, loss, f"{text}.", ends=ends, first=self.in_a_row == 1)

    def _spread(self) -> tuple[float, float]:
        """The median of the window, and the threshold of a spike."""
        if len(self._window) < LEAST:
            return math.nan, math.inf
        median = _median(sorted(self._window))
        deviation = _median(sorted([abs(loss - median) for loss in self._window]))
        return median, median + max(SPREADS * SIGMA_PER_MAD * deviation, LEAST_RISE * abs(median))


def _median(ordered: list[float]) -> float:
    """The median; the upper of the two middle values for an even count, which is fast and precise enough."""
    return ordered[len(ordered) // 2]
