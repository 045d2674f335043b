"""Writes docs/accuracy-zoo.md: forecasts of models that no fit has seen, next to what others measured and published.

    python -m benchmarks.zoo_report --reference FOLDER --cache FOLDER [--model TEXT] [--write] [--rows FILE]

FOLDER holds published/ (its README names origin and licence). Models are recorded the first time and kept in --cache. Prints a
line a group. --model: only models whose name in the table holds this text. --write: writes the page. --rows: every row as CSV,
for a closer look; not to be published. Needs PyTorch and the `bench` extra.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.zoo.cases import zoo_rows
from benchmarks.zoo.page import page, summary
from benchmarks.zoo.scores import scored

PAGE = Path(__file__).parent.parent / "docs" / "accuracy-zoo.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--model", default="", help="only models whose name holds this text")
    parser.add_argument("--write", action="store_true", help="write the page")
    parser.add_argument("--rows", type=Path, help="a CSV file for every row")
    options = parser.parse_args()
    cases, unscored = zoo_rows(options.reference)
    result, refused = scored([case for case in cases if options.model in case.model], options.cache)
    print(summary(result, refused))
    if options.rows:
        result.to_csv(options.rows, index=False)
    if options.write:
        PAGE.write_text(page(result, refused, unscored), encoding="utf-8")


if __name__ == "__main__":
    main()
