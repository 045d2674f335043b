"""Errors in one line."""

from __future__ import annotations

import numpy as np


def error_line(errors: np.ndarray) -> str:
    """errors: log(measured / forecast) of rows."""
    if not len(errors):
        return "no rows"
    size = np.abs(np.expm1(-errors))
    bias = np.expm1(np.median(-errors))
    worse = np.quantile(size, 0.9)
    return f"{len(errors)} rows, median error {np.median(size):.1%}, 90th percentile {worse:.1%}, bias {bias:+.1%}"


def error_columns(ratios: np.ndarray) -> str:
    """Three columns of a table: median error, 90th percentile and bias. ratios: forecast / measured of rows."""
    size = np.abs(np.asarray(ratios) - 1)
    return f"{np.median(size):.1%} | {np.quantile(size, 0.9):.1%} | {np.median(ratios) - 1:+.1%}"
