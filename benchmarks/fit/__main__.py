"""Fits the calibration files of gpuwise on public measurements.

    python -m benchmarks.fit --reference FOLDER --cache FOLDER [PIECE ...] [--unseen] [--write]

FOLDER of --reference holds kernels/*.parquet and published/ (its README names origin and licence of each table). Recordings of
the published models, and the error of every row, are kept in --cache, from which `python -m benchmarks.accuracy_report`
makes docs/accuracy.md. All pieces together start from nothing, named ones from the files there are. --unseen fits once more
without each device, to know how well figures carry over.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.fit import intervals
from benchmarks.fit.order import PIECES, STEPS, errors_of, fit_all
from benchmarks.fit.pieces import Context
from benchmarks.fit.store import Store
from benchmarks.fit.write_spreads import write_spreads
from gpuwise.hardware.catalog import Catalog


def _ids(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pieces", nargs="*", metavar="PIECE", help=f"of {', '.join(p.name for p in PIECES)}; all without any")
    parser.add_argument("--reference", type=Path, required=True, help="folder of the reference measurements")
    parser.add_argument("--cache", type=Path, required=True, help="recordings of models and errors of rows are kept here")
    parser.add_argument("--unseen", action="store_true", help="forecast every device without its own rows, too")
    parser.add_argument(
        "--chips",
        default="",
        help="ids, comma between: learn from language steps of these alone, and move only their own figures",
    )
    parser.add_argument(
        "--classes",
        default="",
        help="classes of kernels, comma between: learn these alone from steps of vision models (after a change of how they are "
        "counted, from a sample too small for all)",
    )
    parser.add_argument("--write", action="store_true", help="change the calibration files in place")
    options = parser.parse_args()
    context, store = (
        Context(options.reference, options.cache, Catalog(), _ids(options.chips), _ids(options.classes)),
        Store.of_shipped() if options.pieces else Store(),
    )
    fit_all(context, store, unseen=options.unseen, names=options.pieces)
    if options.write:
        store.write()
        if options.unseen and not options.pieces:
            rows = errors_of(context, STEPS)
            assert rows is not None  # fit_all has just left them
            write_spreads(intervals.spreads(rows))


if __name__ == "__main__":
    main()
