"""Error mass: which families of kernels or models, on which devices, hold most of the error of rows kept out of the fit."""

from __future__ import annotations

import numpy as np
import pandas as pd

from benchmarks.support.accuracy_tables import errors, table

BY = ["family", "device", "split"]


def ranked(rows: pd.DataFrame) -> pd.DataFrame:
    """One line for each family, device and split, the largest mass first.

    rows: with the columns of BY and log_error, log(measured / forecast); what was fitted is left out.

    Columns beside those of BY: rows; median, of the error |forecast / measured - 1|; bias, the median of forecast over measured
    less one; share, of the sum of errors.
    """
    kept = rows[rows.split != "fitted"]
    kept = kept.assign(error=errors(kept), ratio=np.expm1(-kept.log_error))
    result = kept.groupby(BY, as_index=False).agg(
        rows=("error", "size"), median=("error", "median"), bias=("ratio", "median"), mass=("error", "sum")
    )
    result = result.sort_values(["mass", *BY], ascending=[False, True, True, True], ignore_index=True)
    return result.assign(share=result.pop("mass") / max(float(kept.error.sum()), 1e-30))


def ranking(rows: pd.DataFrame, *, most: int) -> str:
    """The first `most` lines of `ranked` as a Markdown table, and a last one for the rest."""
    lines = ranked(rows)
    cells = [
        [line.family, line.device, line.split, f"{line.rows:,}", f"{line.median:.1%}", f"{line.bias:+.1%}", f"{line.share:.1%}"]
        for line in lines.head(most).itertuples()
    ]
    rest = lines.iloc[most:]
    if len(rest):
        cells.append([f"{len(rest)} others", "", "", f"{rest.rows.sum():,}", "", "", f"{rest.share.sum():.1%}"])
    return table(["family", "device", "rows that were", "rows", "median error", "bias", "share of the error"], cells, words=3)
