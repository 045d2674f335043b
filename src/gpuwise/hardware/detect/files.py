"""Reads small files of the system and output of small tools. Reading never fails; a missing source is empty."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path("/")  # under which /proc and /sys are; a test gives a folder of its own
_TIMEOUT_S = 10
_NONSENSE = re.compile(r"\0|\d{100,}")


def read(path: Path) -> str:
    """The text of a file without blanks around it and without what is no number and no path; "" where it cannot be read."""
    try:
        return _NONSENSE.sub("", path.read_text(errors="replace")).strip()
    except OSError:
        return ""


def number(path: Path) -> int | None:
    """The whole number that a file holds."""
    text = read(path)
    return int(text) if re.fullmatch(r"-?\d{1,19}", text) else None


def value_of(info: str, key: str) -> str:
    """The value of the first `key : value` line; "" without one."""
    match = re.search(rf"^{key}[ \t]*:[ \t]*(.+)$", info, re.MULTILINE)
    return match[1].strip() if match else ""


def number_list(text: str) -> tuple[int, ...]:
    """The numbers of a list as the kernel writes it: '0-3,8' -> 0, 1, 2, 3, 8."""
    ranges = re.findall(r"(\d{1,6})(?:-(\d{1,6}))?", text)
    return tuple(n for first, last in ranges for n in range(int(first), int(last or first) + 1))


def folders(path: Path, name: str) -> list[Path]:
    """The folders called name0, name1, ... by number."""
    try:
        numbered = [
            (int(entry.name[len(name) :]), entry) for entry in path.iterdir() if re.fullmatch(rf"{name}\d+", entry.name)
        ]
    except OSError:
        return []
    return [entry for _, entry in sorted(numbered)]


def run(command: list[str]) -> str:
    """The output of a small tool; "" when it is absent, fails or hangs."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        finished = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""
    return finished.stdout if finished.returncode == 0 else ""
