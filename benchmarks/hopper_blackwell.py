"""Compares forecasts with published runs of Megatron-Bridge on H100, B200, B300 and GB200, in bf16, fp8 and fp4.

    python -m benchmarks.hopper_blackwell --reference FOLDER --cache FOLDER [--model TEXT] [--rows] [--write]

Prints errors by model, device, precision and release; --write writes docs/accuracy-bridge.md. Nothing is fitted on these rows.
Needs PyTorch to record the models the first time (seconds each); the recordings are kept in --cache.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.support.accuracy_tables import errors, table
from benchmarks.support.bridge_cases import BridgeCase, bridge_cases
from benchmarks.support.bridge_shape import RankShape
from benchmarks.support.bridge_step import core_ranks
from benchmarks.support.bridge_text import PAGE
from gpuwise.cost import Forecast
from gpuwise.cost.price import price_ranks
from gpuwise.cost.rank_time import rank_times
from gpuwise.errors import GpuwiseError
from gpuwise.hardware.catalog import Catalog
from gpuwise.strategy import Strategy
from gpuwise.trace import Trace, TraceFamily, load, save

DOCS = Path(__file__).parent.parent / "docs"
HEAD = ("rows", "median error", "mean error", "90th percentile", "worst", "bias", "inside")


def whole_step(shape: RankShape, micro_batch: int, accumulation: int, cache: Path) -> Trace:
    """The recorded step of one rank with all layers."""
    return _step(shape, micro_batch, cache).with_accumulation(accumulation)


@lru_cache(maxsize=8)
def _step(shape: RankShape, micro_batch: int, cache: Path) -> Trace:
    path = cache / f"{shape.name}.npz"
    if not path.exists():
        from benchmarks.support.bridge_model import decoder_job
        from gpuwise.tracing.family import trace_family

        cache.mkdir(parents=True, exist_ok=True)
        save(trace_family(decoder_job(shape), Strategy(precision="bf16")), path)
    family = load(path)
    assert isinstance(family, TraceFamily)
    return family.at(micro_batch=micro_batch)


def forecast(case: BridgeCase, cache: Path, catalog: Catalog) -> Forecast:
    """The forecast of the slowest rank."""
    strategy = case.strategy
    whole = whole_step(case.shape, strategy.micro_batch, strategy.accumulation, cache)
    ranks = core_ranks(whole, case.shape.whole, strategy, case.options)
    cluster = case.cluster(catalog)
    return price_ranks(rank_times(ranks, cluster, strategy=strategy), cluster, strategy=strategy, replay=False)


def rows(cases: Iterable[BridgeCase | str], cache: Path) -> tuple[pd.DataFrame, Counter[str]]:
    """One row a case: its sizes, log_error, whether the interval holds the measured time; and why others have no forecast."""
    catalog, result, refused = Catalog(), [], Counter[str]()
    for case in cases:
        if isinstance(case, str):
            refused[case] += 1
            continue
        try:
            one = forecast(case, cache, catalog)
        except GpuwiseError as error:
            refused[f"{case.model}: {error}"] += 1
            continue
        time, mesh = one.step_time_s, case.strategy.mesh
        result.append(
            {
                "model": case.model,
                "device": case.system.chip_id,
                "precision": case.precision,
                "release": case.release,
                "devices": mesh.devices,
                "mesh": str(mesh),
                "stages": case.strategy.parallelism.stages_per_rank,
                "micro_batch": case.strategy.micro_batch,
                "accumulation": case.strategy.accumulation,
                "seconds": case.seconds,
                "forecast": time.value,
                "log_error": np.log(case.seconds / time.value),
                "inside": time.low <= case.seconds <= time.high,
                **one.step_shares,
            }
        )
    return pd.DataFrame(result), refused


def cells(part: pd.DataFrame) -> list[str]:
    """Errors of rows, as HEAD names them."""
    size, bias = errors(part), np.expm1(np.median(-part.log_error))
    shares = [f"{share:.1%}" for share in (np.median(size), size.mean(), np.quantile(size, 0.9), size.max())]
    return [f"{len(part):,}", *shares, f"{bias:+.1%}", f"{part.inside.mean():.0%}"]


def by(rows: pd.DataFrame, *keys: str) -> str:
    """A line for each group of rows."""
    lines = [[*(str(part) for part in key), *cells(part)] for key, part in rows.groupby(list(keys))]
    return table([*keys, *HEAD], lines)


def newest(rows: pd.DataFrame) -> pd.Series:
    """Whether each row is of the newest release of its model, device and precision."""
    number = rows.release.map(lambda release: sum(int(part) / 1000**index for index, part in enumerate(release.split("."))))
    latest: pd.Series = number == number.groupby([rows.model, rows.device, rows.precision]).transform("max")
    return latest


def summary(rows: pd.DataFrame) -> str:
    """Dense models and mixtures, the newest releases of each apart."""
    dense, last = rows.model.str.startswith("LLAMA"), newest(rows)
    parts = {
        "all": rows,
        "dense": rows[dense],
        "mixtures of experts": rows[~dense],
        "newest": rows[last],
        "newest, dense": rows[last & dense],
        "newest, mixtures": rows[last & ~dense],
    }
    return table(["rows of", *HEAD], [[name, *cells(part)] for name, part in parts.items()])


def page(rows: pd.DataFrame, refused: Counter[str]) -> str:
    """docs/accuracy-bridge.md."""
    same = rows.groupby(["model", "device", "precision", "mesh", "stages", "micro_batch", "accumulation"]).seconds
    spread = same.max() / same.min()
    widest = spread.idxmax()
    return PAGE.format(
        summary=summary(rows),
        models=by(rows, "model"),
        devices=by(rows, "device"),
        precisions=by(rows, "precision"),
        releases=by(rows, "release"),
        all=by(rows, "model", "device", "precision"),
        refused="\n".join(f"- {count} rows, {why}." for why, count in refused.items()),
        spread=f"{spread.max():.1f}",
        spread_of=f"{widest[0]} on {widest[1]}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--model", default="", help="only models whose name holds this text")
    parser.add_argument("--rows", action="store_true", help="print every row")
    parser.add_argument("--write", action="store_true", help="write docs/accuracy-bridge.md")
    options = parser.parse_args()
    cases = bridge_cases(options.reference)
    chosen = [case for case in cases if options.model in (case if isinstance(case, str) else case.model)]
    result, refused = rows(chosen, options.cache)
    if options.rows:
        print(result.to_string(float_format=lambda x: f"{x:.3f}"))
    for why, count in refused.items():
        print(f"no forecast, {count} rows: {why}", file=sys.stderr)
    print(summary(result), by(result, "model", "device", "precision"), by(result, "release"), sep="\n\n")
    if options.write:
        (DOCS / "accuracy-bridge.md").write_text(page(result, refused))


if __name__ == "__main__":
    main()
