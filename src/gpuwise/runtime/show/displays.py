"""Displays of a run's progress on stderr: a live panel on a terminal, occasional lines elsewhere, or nothing.

A display draws at most a few times per second. A step between two drawings costs one comparison.
"""

from __future__ import annotations

import math
import sys
from typing import TextIO

from gpuwise.runtime.show.stream import TolerantStream
from gpuwise.runtime.show.update import ProgressUpdate, beside

LINE_EVERY_S = 10.0


class Display:
    """The base class of displays, a context manager. It shows nothing.

    Attributes:
        every_s: seconds between two drawings.
    """

    every_s = math.inf

    def __init__(self, stream: TextIO | None = None):
        self.stream = TolerantStream(stream or sys.stderr)
        self._next_s = -math.inf

    def due(self, now_s: float) -> bool:
        """Whether it is time to draw again; true on the first call."""
        if now_s < self._next_s or self.stream.gone:
            return False
        self._next_s = now_s + self.every_s
        return True

    def show(self, update: ProgressUpdate) -> None:
        """Shows the state of the run."""

    def note(self, text: str) -> None:
        """Shows a sentence permanently."""

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Silent(Display):
    """Shows nothing, for callers with their own output."""


class LineDisplay(Display):
    """Prints a plain line every ten seconds, for files, pipes and job schedulers. New metrics are printed once."""

    every_s = LINE_EVERY_S

    def __init__(self, stream: TextIO | None = None):
        super().__init__(stream)
        self._metrics: list[str] = []

    def show(self, update: ProgressUpdate) -> None:
        metrics, before = update.metric_words(), self._metrics
        self._metrics = metrics
        self._print(
            " · ".join(
                [
                    update.far(),
                    "loss " + " · ".join(update.loss_words()),
                    *(metrics if metrics != before else ()),
                    *update.pace_words(),
                    *update.time_words(),
                    beside(update.step_time_s, update.forecast),
                    *update.memory_words(),
                    *update.money_words(),
                    *update.checkpoint_words(),
                ]
            )
        )

    def note(self, text: str) -> None:
        self._print(f"note: {text}")

    def _print(self, line: str) -> None:
        print(self.stream.spoken(line), file=self.stream, flush=True)
