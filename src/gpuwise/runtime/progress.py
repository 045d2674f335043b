"""How a run shows itself on stderr: a live bar on a terminal, now and then a line elsewhere, or not at all.

A display draws a few times a second at most; in between a step costs it one comparison.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from gpuwise.cost.forecast import Interval
from gpuwise.errors import InputError
from gpuwise.units import format_duration

if TYPE_CHECKING:
    from rich.progress import Progress

# A drawing of the bar takes about 0.4 ms on a 2-core machine: four a second cost under 0.2 % of a run.
BAR_EVERY_S = 0.25
LINE_EVERY_S = 10.0


@dataclass(frozen=True)
class Update:
    """A run after `step` of `steps` optimizer steps. step_time_s: median of the latest steps, data loading not counted.

    forecast: of step_time_s, where there is one.
    """

    step: int
    steps: int
    samples: int
    loss: float
    step_time_s: float
    samples_per_s: float
    remaining_s: float
    forecast: Interval | None

    def lines(self) -> tuple[str, str]:
        """What to show, in two halves that each fit beside a bar on 80 columns."""
        rate = f"{self.samples_per_s:,.0f}" if self.samples_per_s >= 100 else f"{self.samples_per_s:.3g}"
        left = f" · {format_duration(self.remaining_s)} left" if self.step < self.steps else ""
        return f"loss {self.loss:.4g} · {rate} samples/s{left}", beside(self.step_time_s, self.forecast)


class Display:
    """Shows nothing; the base of those that do. Use as a context manager."""

    every_s = math.inf

    def __init__(self, stream: TextIO | None = None):
        self.stream = stream or sys.stderr
        self._next_s = -math.inf

    def due(self, now_s: float) -> bool:
        """Whether it is time to draw again; the first call always is."""
        if now_s < self._next_s:
            return False
        self._next_s = now_s + self.every_s
        return True

    def show(self, update: Update) -> None:
        """The state of the run."""

    def note(self, text: str) -> None:
        """A sentence that should stay readable."""

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Silent(Display):
    """For callers that show things themselves."""


class Lines(Display):
    """A plain line every ten seconds: for files, pipes and job schedulers."""

    every_s = LINE_EVERY_S

    def show(self, update: Update) -> None:
        print(f"step {update.step:,}/{update.steps:,} · {' · '.join(update.lines())}", file=self.stream, flush=True)

    def note(self, text: str) -> None:
        print(f"note: {text}", file=self.stream, flush=True)


class Bar(Display):
    """A live bar on a terminal."""

    every_s = BAR_EVERY_S

    def __init__(self, stream: TextIO | None = None):
        super().__init__(stream)
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        # No refresh thread: it would compete with training for a core.
        columns = (BarColumn(bar_width=14), MofNCompleteColumn(), TextColumn("{task.description}"))
        self._progress: Progress = Progress(*columns, console=Console(file=self.stream), auto_refresh=False)
        self._task: Any = None

    def show(self, update: Update) -> None:
        if self._task is None:
            self._task = self._progress.add_task("", total=update.steps)
        self._progress.update(self._task, completed=update.step, description="\n".join(update.lines()), refresh=True)

    def note(self, text: str) -> None:
        self._progress.console.print(f"[yellow]note:[/] {_escape(text)}", highlight=False)

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


_KINDS = {"bar": Bar, "plain": Lines, "silent": Silent}


def display(kind: str = "auto", stream: TextIO | None = None) -> Display:
    """bar | plain | silent; auto is a bar on a terminal, plain lines elsewhere. Raises InputError for another kind."""
    stream = stream or sys.stderr
    if kind == "auto":
        kind = "bar" if stream.isatty() else "plain"
    if kind not in _KINDS:
        raise InputError(f"unknown kind of progress {kind!r}.", [f"one of: auto, {', '.join(_KINDS)}"])
    return _KINDS[kind](stream)


def beside(step_time_s: float, forecast: Interval | None) -> str:
    """The measured step next to the forecast one, in one unit: 'step 41 ms; forecast 38 ms (31 to 52)'."""
    if forecast is None:
        return f"step {format_duration(step_time_s)}"
    scale, unit = next(((s, u) for s, u in ((60, "min"), (1, "s"), (1e-3, "ms")) if step_time_s >= s), (1e-6, "µs"))
    number = [f"{v / scale:.3g}" if v < 1000 * scale else f"{v / scale:,.0f}"
              for v in (step_time_s, forecast.value, forecast.low, forecast.high)]  # fmt: skip
    return f"step {number[0]} {unit}; forecast {number[1]} {unit} ({number[2]} to {number[3]})"


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)
