"""Entries into calibration files, in place."""

from __future__ import annotations

import re
import tomllib
from itertools import takewhile
from pathlib import Path
from typing import Any

import tomli_w

from gpuwise.atomic import written_whole
from gpuwise.cost.calibration import CalibrationEntry, to_table
from gpuwise.cost.calibration.files import SCHEMA, STEPS, file_name

HEAD = "# Made by `python -m benchmarks.fit`; what was set by hand comes from benchmarks/fit/assumed.\n"
_NUMBERS = re.compile(r"\[\n((?:\s+[-+.\de]+,\n)+)\]")
FOLDER = Path(__file__).parents[2] / "src" / "gpuwise" / "cost" / "data" / "calibration"


def comments(text: str) -> str:
    """The comment lines at the head of a file."""
    return "".join(f"{line}\n" for line in takewhile(lambda line: line.startswith("#"), text.splitlines()))


def remove_all() -> None:
    """The files of every chip, architecture, generation and family; intervals of steps stay."""
    for path in FOLDER.glob("*.toml"):
        if path.name != STEPS:
            path.unlink()


def write(
    level: str, of: str, entries: dict[str, CalibrationEntry], scale: dict[str, float] | None = None, *, said: str = ""
) -> Path:
    """Puts entries, and factors on those of the level above, into the file of a chip, architecture, generation or family;
    others in it stay. said: comment lines for its head, instead of those it has."""
    path, head = FOLDER / file_name(level, of), HEAD + said
    data: dict[str, Any] = {"schema": SCHEMA, "level": level, "of": of}
    if path.exists():
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text)
        head = head if said else comments(text) or HEAD
    data["entry"] = dict(sorted({**data.get("entry", {}), **{key: to_table(e) for key, e in entries.items()}}.items()))
    if scale:
        data["scale"] = dict(sorted({**data.get("scale", {}), **scale}.items()))
    with written_whole(path) as file:
        file.write((head + _NUMBERS.sub(_on_one_line, tomli_w.dumps(data))).encode())
    return path


def _on_one_line(array: re.Match[str]) -> str:
    return "[" + " ".join(array[1].split()).rstrip(",") + "]"
