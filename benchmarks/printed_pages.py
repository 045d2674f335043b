"""Outputs in README.md and docs/ beside what their commands print today.

    python -m benchmarks.printed_pages [PAGE ...]      # such as plan.md; all pages without

A block of text that begins with `$ gpuwise` is run as it stands, 100 columns wide. Each of its lines that the command no longer
prints is shown, with the nearest line that it does print; the page is then corrected by hand. A line of `...` stands for lines
that are left out. Some seconds a command; nothing is written.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from difflib import get_close_matches
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
BLOCK = re.compile(r"^```text\n\$ (gpuwise [^\n]+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
WIDTH = 100


def printed(command: str) -> list[str]:
    """The lines that a command prints, of both streams."""
    words = [sys.executable, "-m", *shlex.split(command)]
    environment = os.environ | {"COLUMNS": str(WIDTH)}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return [line.rstrip() for line in (done.stdout + done.stderr).splitlines()]


def stale_lines(block: str, output: list[str]) -> list[tuple[str, str]]:
    """Lines of a block that are not in the output, each with the nearest line there, or an empty text."""
    lines = [line.rstrip() for line in block.splitlines()]
    stale = [line for line in lines if line not in ("", "...") and line not in output]
    return [(line, next(iter(get_close_matches(line, output, n=1)), "")) for line in stale]


def main() -> None:
    parser = argparse.ArgumentParser(description="Lines of the pages that their commands no longer print.")
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="names of pages, such as plan.md")
    requested = parser.parse_args().pages
    for page in PAGES:
        if requested and page.name not in requested:
            continue
        for command, block in BLOCK.findall(page.read_text(encoding="utf-8")):
            stale = stale_lines(block, printed(command))
            print(f"{page.name}: {command}: {len(stale)} lines are no longer printed")
            for line, nearest in stale:
                print(f"  - {line}\n  + {nearest}")


if __name__ == "__main__":
    main()
