"""Ranks families of kernels and models, by device, by their share of the error of rows kept out of the fit.

    python -m benchmarks.error_mass --cache FOLDER [--most 20]

The error is |forecast / measured - 1|, added up over rows. FOLDER is the --cache of `python -m benchmarks.fit`, which leaves
the error of every row there (errors-*.parquet); pieces that it lacks are missing from the ranking. The same tables stand
in docs/accuracy.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from benchmarks.accuracy_report import mass_tables
from benchmarks.fit.order import PIECES, errors_of
from benchmarks.fit.pieces import Context
from gpuwise.hardware.catalog import Catalog


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--most", type=int, default=20, help="lines of each table")
    options = parser.parse_args()
    context = Context(Path(), options.cache, Catalog())
    present = [rows for piece in PIECES if (rows := errors_of(context, [piece])) is not None]
    if not present:
        parser.error(f"{options.cache} has no errors-*.parquet: run `python -m benchmarks.fit --unseen` first")
    for title, text in mass_tables(pd.concat(present, ignore_index=True), most=options.most).items():
        print(f"{title}\n\n{text}\n")


if __name__ == "__main__":
    main()
