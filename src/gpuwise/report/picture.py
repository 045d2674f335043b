"""What pictures share: matplotlib where it is installed, a file that is whole or is not there, and how charts are laid out."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import log
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, BinaryIO

from gpuwise.atomic import written_whole
from gpuwise.errors import InputError, MissingDependencyError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")
COLOURS = ("#33508a", "#cf5a56", "#5aa377", "#e3a13c", "#8d6cab", "#4aa3b5", "#9c6b4f", "#d07fb0", "#7f9cd0", "#6f6f6f")
ROOF = "#222222"


def check_picture(path: str | os.PathLike[str], flag: str, suffixes: Sequence[str] = SUFFIXES) -> Path:
    """Raises InputError for another ending than those of suffixes. flag: of the command line, --memory-plot."""
    target = Path(path)
    if target.suffix.lower() not in suffixes:
        raise InputError(
            f"a picture is a {' or '.join(suffixes)} file, got {str(path)!r}.",
            [f"{flag} {target.stem or 'picture'}.svg", f"{flag} - prints it as text"],
        )
    return target


def check_drawable(path: str | os.PathLike[str], flag: str) -> Path:
    """The same for pictures of what takes minutes to find: raises beforehand what drawing and writing would raise after."""
    target = check_picture(path, flag)
    if importlib.util.find_spec("matplotlib") is None:
        raise _no_matplotlib(flag)
    if not os.access(target.parent, os.W_OK | os.X_OK):
        why = "no permission" if target.parent.is_dir() else "no such folder"
        raise InputError(f"cannot write {target}: {why}.", ["name a folder that exists and can be written to"])
    return target


def _no_matplotlib(flag: str) -> MissingDependencyError:
    return MissingDependencyError(
        "matplotlib is needed to draw pictures and is not installed.",
        ['pip install "gpuwise[plot]"', f"{flag} - prints it as text"],
    )


def empty_figure(width: float, height: float, flag: str) -> Figure:
    """A white matplotlib Figure, sizes in inches. Raises MissingDependencyError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise _no_matplotlib(flag) from error
    return Figure(figsize=(width, height), facecolor="white")


def save_figure(figure: Figure, target: Path) -> Path:
    """Writes it. Errors as for saved."""
    with saved(target) as file:
        figure.savefig(file, format=target.suffix.lower()[1:], dpi=160)
    return target


def save_text(text: str, target: Path) -> Path:
    """Writes a picture or a page that is text. Errors as for saved."""
    with saved(target) as file:
        file.write(text.encode())
    return target


@contextmanager
def saved(target: Path) -> Iterator[BinaryIO]:
    """A file that is whole or is not there. Raises InputError for a folder that cannot be written."""
    try:
        with written_whole(target) as file:
            yield file
    except OSError as error:
        raise InputError(
            f"cannot write {target}: {error.strerror or error}.", ["name a folder that exists and can be written to"]
        ) from None


def plain(chart: Axes) -> None:
    """A faint grid and no frame."""
    chart.spines[["top", "right"]].set_visible(False)
    chart.grid(color="#00000014", linewidth=0.7)


def apart(targets: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places for labels, in their order and at least `gap` between neighbours, from low to high: those with the least squared
    distance to their targets (isotonic regression by pooling neighbours that would overlap)."""
    order = sorted(range(len(targets)), key=targets.__getitem__)
    pools: list[list[float]] = []  # of targets, less the gaps below
    for rank, index in enumerate(order):
        pools.append([targets[index] - rank * gap])
        while len(pools) > 1 and fmean(pools[-2]) >= fmean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    most = high - (len(order) - 1) * gap
    pooled = [max(low, min(fmean(pool), most)) for pool in pools for _ in pool]
    positions = {index: pooled[rank] + rank * gap for rank, index in enumerate(order)}
    return [positions[index] for index in range(len(targets))]


class LogGrid:
    """Characters under two logarithmic axes, each from its low to its high end."""

    def __init__(self, columns: int, rows: int, across: tuple[float, float], up: tuple[float, float]):
        self._across, self._up = across, up
        self._cells = [[" "] * columns for _ in range(rows)]

    def put(self, across: float, up: float, glyph: str) -> None:
        """A character where it belongs; nothing outside the axes."""
        row, column = self.row(up), _cell(across, self._across, len(self._cells[0]))
        if 0 <= row < len(self._cells) and 0 <= column < len(self._cells[0]):
            self._cells[row][column] = glyph

    def row(self, up: float) -> int:
        """Counted from the top; one that is not there for what lies outside."""
        return len(self._cells) - 1 - _cell(up, self._up, len(self._cells))

    def lines(self) -> list[str]:
        """From the top down."""
        return ["".join(row).rstrip() for row in self._cells]


def _cell(value: float, ends: tuple[float, float], cells: int) -> int:
    return round((cells - 1) * log(value / ends[0]) / log(ends[1] / ends[0]))


def shortened(text: str, most: int) -> str:
    """With its middle left out where it is too long."""
    if len(text) <= most:
        return text
    tail = (most - 1) // 2
    return text[: most - 1 - tail] + "…" + text[len(text) - tail :]
