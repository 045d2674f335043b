"""Tables of the pages on serving, each between two comments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from benchmarks.support.figures import error_columns

PAGES = Path("docs")


def table_of(rows: pd.DataFrame, by: Sequence[str]) -> str:
    """Errors of rows by some of their columns. rows: with `ratio`, forecast over measured, and whether each is `inside` its
    interval."""
    lines = [f"| {' | '.join(by)} | rows | median error | 90th percentile | bias | inside the interval |"]
    lines.append(f"|{' --- |' * len(by)} ---: | ---: | ---: | ---: | ---: |")
    for key, part in rows.groupby(list(by)):
        lines.append(f"| {' | '.join(key)} | {len(part):,} | {error_columns(part.ratio)} | {part.inside.mean():.0%} |")
    return "\n".join(lines)


def error_row(figure: str, ratio: float, spread: tuple[float, float], *, fitted: bool, **columns: object) -> dict[str, object]:
    """A row for table_of. ratio: forecast over measured; spread: low and high of measured over forecast."""
    split = "fitted" if fitted else "kept out"
    return {**columns, "split": split, "figure": figure, "ratio": ratio, "inside": spread[0] <= 1 / ratio <= spread[1]}


def publish(text: str, begin: str, end: str, *, write: bool) -> None:
    """Prints a table, and puts it between two lines of the page that has them where `write` is set."""
    print(text)
    if not write:
        return
    pages = {path: path.read_text(encoding="utf-8") for path in sorted(PAGES.glob("serving*.md"))}
    (path,) = (path for path, page in pages.items() if begin in page)
    before, after = pages[path].split(begin)[0], pages[path].split(end)[1]
    path.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")
