"""Compares forecasts with published runs of Megatron-LM and Megatron-DeepSpeed: tensor, pipeline and data parallelism.

    python -m benchmarks.megatron --reference FOLDER --cache FOLDER [--group TEXT] [--rows] [--write]
    python -m benchmarks.megatron --reference FOLDER --cache FOLDER --fit

Prints errors by group and by (devices, tp, pp, dp); --write writes docs/accuracy-megatron.md, with the errors under other
assumptions on communication (benchmarks.support.megatron_variants). --fit prints the mean errors of hosts on the rows that
are not kept out, of which megatron_forecast.HOST is the first. Needs PyTorch to record the models the first time (seconds
each); the recordings are kept in --cache.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.fit.split import kept_out_model
from benchmarks.support.accuracy_tables import errors, table
from benchmarks.support.composed_steps import composed
from benchmarks.support.megatron_cases import megatron_cases
from benchmarks.support.megatron_forecast import fit
from benchmarks.support.megatron_rows import FITTED, rows
from benchmarks.support.megatron_text import PAGE
from benchmarks.support.megatron_variants import variants
from gpuwise.hardware.catalog import Catalog

DOCS = Path(__file__).parent.parent / "docs"
HEAD = ("rows", "mean error", "median error", "90th percentile", "worst", "bias", "inside")


def cells(part: pd.DataFrame) -> list[str]:
    """Errors of rows, as HEAD names them."""
    if not len(part):
        return ["0", *["–"] * (len(HEAD) - 1)]
    size, bias = errors(part), np.expm1(np.median(-part.log_error))
    shares = [f"{share:.1%}" for share in (size.mean(), np.median(size), np.quantile(size, 0.9), size.max())]
    return [f"{len(part):,}", *shares, f"{bias:+.1%}", f"{part.inside.mean():.0%}"]


def by_group(rows: pd.DataFrame) -> str:
    """A line for each group; of rows behind a fit those that it saw apart from those it did not."""
    lines = []
    for group, part in rows.groupby("group"):
        if group != FITTED:
            lines.append([str(group), *cells(part)])
            continue
        lines += [
            [f"{group}, {name}", *cells(part[part.kept_out == out])] for name, out in (("kept out", True), ("seen", False))
        ]
    return table(["group", *HEAD], lines)


def of_memory(rows: pd.DataFrame) -> str:
    """The errors of memory in words."""
    error = rows.memory_error.dropna()
    worst = error.abs().max()
    return f"{len(error)} rows, median error {error.abs().median():.1%}, worst {worst:.1%}, bias {error.median():+.1%}"


def by_devices(rows: pd.DataFrame) -> str:
    """A line for each group and layout of its devices."""
    keys = ["group", "devices", "tp", "pp", "dp"]
    lines = [[*(str(part) for part in key), *cells(part)] for key, part in rows.groupby(keys)]
    return table([*keys, *HEAD], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--group", default="", help="only groups whose name holds this text")
    parser.add_argument("--rows", action="store_true", help="print every row")
    parser.add_argument("--fit", action="store_true", help="print the hosts of the fit, the best first")
    parser.add_argument("--write", action="store_true", help="write docs/accuracy-megatron.md")
    options = parser.parse_args()
    chosen = [case for case in megatron_cases(options.reference) if options.group in case.group]
    if options.fit:
        seen = [case for case in chosen if case.group == FITTED and not kept_out_model(case.shape.architecture)]
        for host, error in fit(seen, options.cache, Catalog()):
            print(f"{error:.2%}", host)
        return
    result = rows(chosen, options.cache)
    if options.rows:
        print(result.to_string(float_format=lambda x: f"{x:.3f}"))
    print(by_group(result), by_devices(result), sep="\n\n")
    print(f"\nmemory: {of_memory(result)}")
    if options.write:
        seen = sorted(result[(result.group == FITTED) & ~result.kept_out].model.unique())
        of_one = composed(result[result.group == FITTED])
        page = PAGE.format(
            groups=by_group(result),
            by_devices=by_devices(result),
            known=", ".join(seen),
            memory=of_memory(result),
            variants=variants(chosen, options.cache),
            composed_rows=of_one.rows,
            composed_layers=of_one.layers,
            composed_lines=of_one.lines,
            off_us=f"{1e6 * max(of_one.off_s, of_one.layers_off_s):.1f}",
        )
        (DOCS / "accuracy-megatron.md").write_text(page)


if __name__ == "__main__":
    main()
