"""Tables of docs/serving.md, between two comments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from benchmarks.support.figures import error_columns

PAGE = Path("docs/serving.md")


def table_of(rows: pd.DataFrame, by: Sequence[str]) -> str:
    """Errors of rows by some of their columns. rows: with `ratio`, forecast over measured, and whether each is `inside` its
    interval."""
    lines = [f"| {' | '.join(by)} | rows | median error | 90th percentile | bias | inside the interval |"]
    lines.append(f"|{' --- |' * len(by)} ---: | ---: | ---: | ---: | ---: |")
    for key, part in rows.groupby(list(by)):
        lines.append(f"| {' | '.join(key)} | {len(part):,} | {error_columns(part.ratio)} | {part.inside.mean():.0%} |")
    return "\n".join(lines)


def put(text: str, begin: str, end: str) -> None:
    """Replaces what stands between two lines of the page."""
    page = PAGE.read_text(encoding="utf-8")
    before, after = page.split(begin)[0], page.split(end)[1]
    PAGE.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")
