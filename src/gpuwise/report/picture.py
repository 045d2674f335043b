"""What pictures share: matplotlib where it is installed, and a file that is whole or is not there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwise.atomic import written_whole
from gpuwise.errors import InputError, MissingDependencyError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")


def check_picture(path: str | os.PathLike[str], flag: str) -> Path:
    """Raises InputError for another ending than those of SUFFIXES. flag: of the command line, --memory-plot."""
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        raise InputError(f"a picture is a .png or .svg file, got {str(path)!r}.",
                         [f"{flag} {target.stem or 'picture'}.svg", f"{flag} - prints it as text"])  # fmt: skip
    return target


def empty_figure(width: float, height: float, flag: str) -> Figure:
    """A white matplotlib Figure, sizes in inches. Raises MissingDependencyError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise MissingDependencyError("matplotlib is needed to draw pictures and is not installed.",
                                     ['pip install "gpuwise[plot]"', f"{flag} - prints it as text"]) from error  # fmt: skip
    return Figure(figsize=(width, height), facecolor="white")


def save_figure(figure: Figure, target: Path) -> Path:
    """Writes it; the file is whole or is not there. Raises InputError for a folder that cannot be written."""
    try:
        with written_whole(target) as file:
            figure.savefig(file, format=target.suffix.lower()[1:], dpi=160)
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror or error}.",
                         ["name a folder that exists and can be written to"]) from None  # fmt: skip
    return target
