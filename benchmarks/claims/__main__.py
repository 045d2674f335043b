"""Writes docs/claims.md and its figures: what people say of this field, next to what gpuwise computes and machines measured.

    python -m benchmarks.claims [--write] [--measure] [--only NAME]

Without --write the page goes to stdout. --measure runs the benchmarks on this machine first (about 3 minutes, with every core)
and rewrites benchmarks/results/claims_measured.json; with --only, those whose name begins with NAME.
"""

from __future__ import annotations

import argparse
import warnings

from benchmarks.claims import measured, page


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.claims", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write docs/claims.md and its figures")
    parser.add_argument("--measure", action="store_true", help="run the benchmarks on this machine")
    parser.add_argument("--only", default="", metavar="NAME", help="with --measure: those whose name begins so")
    options = parser.parse_args()
    if options.only and not options.measure:
        parser.error("--only chooses what --measure runs.")
    warnings.simplefilter("ignore")
    if options.measure:
        from benchmarks.claims.benches import measure  # PyTorch

        measure(options.only)
    text = page.page(measured.load())
    if options.write:
        from benchmarks.claims import pictures  # matplotlib

        pictures.write()
        page.PATH.write_text(text, encoding="utf-8")
    elif not options.measure:
        print(text)


if __name__ == "__main__":
    main()
