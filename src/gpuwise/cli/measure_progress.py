"""How a measurement shows itself on stderr: a live bar on a terminal, a line a stage elsewhere, or not at all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpuwise.report.measure import achieved, rate_of, row_words
from gpuwise.report.picture import shortened
from gpuwise.units import format_duration

if TYPE_CHECKING:
    from gpuwise.results.measurement import MeasuredRow, Progress

_BAR_CELLS = 14
_COUNT_CELLS = 10  # of "123/123" and the blanks around it


@contextmanager
def shown(*, as_json: bool) -> Iterator[Callable[[Progress], None] | None]:
    """The display to call with each Progress; None under --json without a terminal."""
    if sys.stderr.isatty():
        with _bar() as show:
            yield show
    elif as_json:
        yield None
    else:
        lines = MeasureLines()
        try:
            yield lines.show
        finally:
            lines.end()


@contextmanager
def _bar() -> Iterator[Callable[[Progress], None]]:
    """A bar with the current benchmark and the latest figure. It has no refresh thread, which would occupy a core."""
    from rich import progress as rich
    from rich.console import Console
    from rich.markup import escape

    console = Console(file=sys.stderr)
    room = max(20, console.width - _BAR_CELLS - _COUNT_CELLS)
    columns = (rich.BarColumn(bar_width=_BAR_CELLS), rich.MofNCompleteColumn(), rich.TextColumn("{task.description}"))
    with rich.Progress(*columns, console=console, auto_refresh=False) as bar:
        task = bar.add_task("", total=None)

        def show(now: Progress) -> None:
            latest = "" if now.row is None else figure(now.row)
            words = "\n".join(escape(shortened(line, room)) for line in (now.what, latest))
            bar.update(task, completed=now.done, total=now.total, description=words, refresh=True)

        yield show


class MeasureLines:
    """A plain line when all that is told under one name is done: how many figures, and the best of them."""

    def __init__(self) -> None:
        self._rows: list[MeasuredRow] = []
        self._far = self._what = ""

    def show(self, now: Progress) -> None:
        if now.what != self._what:
            self.end()
        if now.row is not None and (not self._rows or now.row is not self._rows[-1]):
            self._rows.append(now.row)
        self._far, self._what = f"{now.done:,}/{now.total:,}", now.what

    def end(self) -> None:
        """Prints what was not printed yet."""
        if self._rows:
            best = max(self._rows, key=rate_of)
            print(f"{self._far} · {self._what}: {len(self._rows):,} measured, best {figure(best)}", file=sys.stderr, flush=True)
        self._rows = []


def figure(row: MeasuredRow) -> str:
    """'product 64 x 64 x 64 fp32: 57.9 GFLOP/s', or its time where it reaches nothing a second."""
    words = f"{row_words(row)} {row.dtype}".rstrip()
    return f"{words}: {achieved(row) if rate_of(row) else format_duration(row.timing.median_s)}"
