"""The live panel of a run on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, TextIO, cast

from gpuwise.report.parts import percent
from gpuwise.report.picture import shortened
from gpuwise.runtime.show.displays import Display
from gpuwise.runtime.show.spark import DownsampledCurve, sparkline
from gpuwise.runtime.show.update import ProgressUpdate, beside_words

if TYPE_CHECKING:
    from rich.panel import Panel as RichPanel

PANEL_EVERY_S = 0.25
MOST_SHARE = 0.01  # largest share of the time for drawing; a slow terminal is drawn on less often
_WIDEST = 100  # maximum width in columns; longer lines are harder to read
_LABELS = 12  # width of the labels in columns
_NARROW = 60  # width in columns below which labels are part of the line
_MEMORY_CELLS = 20


@dataclass(frozen=True)
class Glyphs:
    spark: str
    full: str
    empty: str
    between: str


_UNICODE = Glyphs("▁▂▃▄▅▆▇█", "━", "─", " · ")
_PLAIN = Glyphs("_.-=+*#", "#", ".", " - ")


class Panel(Display):
    """A frame with the loss and its curve, pace, memory, remaining time and cost, and the last checkpoint.

    Notes are printed above the frame and stay.

    Arguments:
        stream: stream to draw on.
        title: the job's name.
        clock: a clock in seconds.
    """

    every_s = PANEL_EVERY_S

    def __init__(self, stream: TextIO | None = None, *, title: str = "", clock: Callable[[], float] = time.perf_counter):
        stream = stream or sys.stderr
        super().__init__(stream)
        from rich.console import Console
        from rich.live import Live

        self._title, self._clock = title, clock
        self._losses = DownsampledCurve()
        self._console = Console(file=cast(TextIO, self.stream), highlight=False, emoji=False, markup=False)
        # A refresh thread would compete with training for a core. Output of the job on the same terminal goes above.
        ours = stream is sys.stderr
        self._live = Live(
            console=self._console, auto_refresh=False, redirect_stderr=ours, redirect_stdout=ours and sys.stdout.isatty()
        )

    def show(self, update: ProgressUpdate) -> None:
        began_s = self._clock()
        self._losses.add(update.loss)
        self._live.update(self._framed(update), refresh=True)
        self._next_s += max(0.0, (self._clock() - began_s) / MOST_SHARE - self.every_s)

    def note(self, text: str) -> None:
        from rich.text import Text

        self._console.print(Text.assemble(("note: ", "yellow"), self.stream.spoken(text)))

    def __enter__(self) -> Display:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def _framed(self, update: ProgressUpdate) -> RichPanel:
        from rich import box
        from rich.panel import Panel as RichPanel
        from rich.text import Text

        width = max(20, min(self._console.width, _WIDEST))
        room = width - 4  # minus the frame and a blank on each side
        lines = [Text.assemble((label, "dim"), (line, style)) for label, line, style in self._rows(update, room)]
        words = (self._title, update.far(), percent(update.step / update.steps))
        far = self.stream.spoken(" · ".join(word for word in words if word))
        return RichPanel(
            Text("\n", no_wrap=True).join(lines),
            title=Text(shortened(far, room - 4), "bold"),
            title_align="left",
            width=width,
            box=box.ROUNDED if self.stream.unicode else box.ASCII,
            border_style="dim",
        )

    def _rows(self, update: ProgressUpdate, room: int) -> Iterator[tuple[str, str, str]]:
        """The label, line and style of each row; label and line together fit into `room` columns."""
        glyphs = _UNICODE if self.stream.unicode else _PLAIN
        wide = room + 4 >= _NARROW
        blank, beyond = (" " * _LABELS, room - _LABELS) if wide else ("", room)

        def row(label: str, words: Sequence[str], style: str = "") -> Iterator[tuple[str, str, str]]:
            spoken = [self.stream.spoken(word) for word in words]
            if spoken and not wide:
                spoken[0] = f"{label} {spoken[0]}"
            for number, line in enumerate(packed(spoken, beyond, glyphs.between)):
                yield (blank if number or not wide else f"{label:<{_LABELS}}", line, style)

        yield "", _bar(update.step / update.steps, room, glyphs), "cyan"
        yield from row("loss", update.loss_words(), "bold")
        if course := sparkline(self._losses.points(), cells=beyond, glyphs=glyphs.spark):
            yield blank, course, "cyan"
        yield from row("metrics", update.metric_words())
        yield from row("pace", update.pace_words())
        forecast = update.forecast
        outside = forecast is not None and not forecast.low <= update.step_time_s <= forecast.high
        yield from row("step", beside_words(update.step_time_s, forecast), "yellow" if outside else "")
        memory = update.memory_words()
        if wide and update.memory_bytes is not None and update.memory_capacity_bytes:
            memory = [f"{_bar(update.memory_bytes / update.memory_capacity_bytes, _MEMORY_CELLS, glyphs)} {memory[0]}"]
        yield from row("memory", memory)
        yield from row("time", update.time_words())
        yield from row("money", update.money_words())
        yield from row("checkpoint", update.checkpoint_words(), "yellow" if update.checkpoint_problem else "")


def packed(words: Sequence[str], room: int, between: str) -> list[str]:
    """Joins the words into as few lines as possible, each at most `room` columns long."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + len(between) + len(word) <= room:
            lines[-1] += between + word
        else:
            lines += wrap(word, room)
    return lines


def _bar(share: float, cells: int, glyphs: Glyphs) -> str:
    full = round(cells * min(max(share, 0.0), 1.0))
    return glyphs.full * full + glyphs.empty * (cells - full)
