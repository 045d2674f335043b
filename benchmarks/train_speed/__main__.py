"""Measures how fast gpuwise trains, beside loops by hand, accelerate, Lightning and Hugging Face's Trainer.

    python -m benchmarks.train_speed [--write] [--rounds N] [--only TEXT] [--page]

About 10 minutes on two quiet cores. --only: the rows with this in their names alone, such as "models", "saves" or
"resnet18 amp-bf16". --write puts what ran into benchmarks/results/train_speed.json, where other rows stay as they were, and
writes docs/train-speed.md; --page alone writes the page again from the results. Needs transformers, accelerate, lightning and
timm.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from benchmarks.train_speed.children import CONTESTANTS, serve
from benchmarks.train_speed.page import PAGE, RESULTS, page
from benchmarks.train_speed.rounds import about, measured, names


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.train_speed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="put what ran into results and page")
    parser.add_argument("--rounds", type=int, default=3, help="of the models; small steps take twice as many")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows with this in their names")
    parser.add_argument("--page", action="store_true", help="only write the page again")
    parser.add_argument("--serve", choices=CONTESTANTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    results: dict[str, Any] = {"rows": {}}
    if options.page or (options.write and options.only):
        results = json.loads(RESULTS.read_text(encoding="utf-8"))
    if not options.page:
        rows = [name for name in names() if options.only in name]
        if not rows:
            parser.error(f"no row has {options.only!r} in its name; there are {', '.join(names())}")
        here = about()
        if results.get("about", here) != here:
            parser.error("the results are of another machine or of other versions: measure all rows again, without --only")
        result = results["rows"] | dict(measured(rows, options.rounds))
        results = {"about": here, "rows": {name: result[name] for name in names() if name in result}}
    print(page(results))
    if options.write:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if options.write or options.page:
        PAGE.write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
