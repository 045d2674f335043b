"""Errors of rows as tables: one line a group, always with the number of rows behind it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

HEAD = ("rows", "median error", "mean error", "90th percentile", "bias")


def errors(rows: pd.DataFrame) -> np.ndarray:
    """|forecast / measured - 1| of each row."""
    size: np.ndarray = np.abs(np.expm1(-rows.log_error.to_numpy()))
    return size


def cells(rows: pd.DataFrame) -> list[str]:
    """Rows; median and mean error; 90th percentile of it; bias, the median of forecast over measured less one."""
    if not len(rows):
        return ["0", "–", "–", "–", "–"]
    size, bias = errors(rows), np.expm1(np.median(-rows.log_error))
    return [f"{len(rows):,}", *(f"{x:.1%}" for x in (np.median(size), size.mean(), np.quantile(size, 0.9))), f"{bias:+.1%}"]


def table(head: Sequence[str], lines: Iterable[Sequence[str]], *, words: int = 1) -> str:
    """A Markdown table; all columns but the first `words` are set to the right."""
    ruler = ["---"] * words + ["---:"] * (len(head) - words)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ruler, *lines))


def by(rows: pd.DataFrame, *columns: str, fewest: int = 1) -> str:
    """One line for each value of the columns with at least `fewest` rows."""
    lines = [
        [*(str(part) for part in (key if isinstance(key, tuple) else (key,))), *cells(part)]
        for key, part in rows.groupby(list(columns), sort=True)
        if len(part) >= fewest
    ]
    return table([*columns, *HEAD], lines, words=len(columns))
