"""Writes docs/accuracy-several.md: forecasts of steps on several GPUs, next to what others measured and published.

    python -m benchmarks.several_report --reference FOLDER --cache FOLDER [--spreads] [--write] [--rows FILE]

FOLDER holds published/ (its README names origin and licence). Models are recorded the first time, which takes half an hour,
and kept in --cache. Prints a line a group. --spreads: sets the interval of steps on several GPUs in
cost/data/calibration/steps.toml first. --write: writes the page. --rows: every row as CSV, for a closer look; not to be
published. Needs PyTorch, transformers, timm and the `bench` extra.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.fit.intervals import spread_of_several
from benchmarks.fit.write_spreads import write_spreads
from benchmarks.support.accuracy_several import page, rows, summary
from gpuwise.cost.calibration import shipped_steps

PAGE = Path(__file__).parent.parent / "docs" / "accuracy-several.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--spreads", action="store_true", help="set the interval")
    parser.add_argument("--write", action="store_true", help="write the page")
    parser.add_argument("--rows", type=Path, help="a CSV file for every row")
    options = parser.parse_args()
    result = rows(options.reference, options.cache)
    if options.spreads:
        write_spreads([spread_of_several(result[result.split == "unseen"])])
        shipped_steps.cache_clear()
        result = rows(options.reference, options.cache)
    print(summary(result))
    if options.rows:
        result.to_csv(options.rows, index=False)
    if options.write:
        PAGE.write_text(page(result), encoding="utf-8")


if __name__ == "__main__":
    main()
