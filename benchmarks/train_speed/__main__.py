"""Measures how fast gpuwise trains, beside loops by hand, accelerate, Lightning and Hugging Face's Trainer.

    python -m benchmarks.train_speed [--write] [--rounds N] [--only small|models|saves] [--page]

About 10 minutes on two quiet cores. --write replaces benchmarks/results/train_speed.json (with --only, that part of it) and
docs/train-speed.md; --page alone writes the page again from the results. Needs transformers, accelerate, lightning and timm.
"""

from __future__ import annotations

import argparse
import json

from benchmarks.train_speed.children import CONTESTANTS, serve
from benchmarks.train_speed.page import PAGE, RESULTS, page
from benchmarks.train_speed.rounds import measured

PARTS = ("small", "models", "saves")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.train_speed", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--write", action="store_true", help="replace results and page")
    parser.add_argument("--rounds", type=int, default=3, help="of the models; small steps take twice as many")
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--page", action="store_true", help="only write the page again")
    parser.add_argument("--serve", choices=CONTESTANTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    before = json.loads(RESULTS.read_text()) if RESULTS.exists() and (options.page or options.only) else {}
    results = before if options.page else {**before, **measured([options.only] if options.only else PARTS, options.rounds)}
    print(page(results))
    if options.write:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    if options.write or options.page:
        PAGE.write_text(page(results))


if __name__ == "__main__":
    main()
