"""Compares forecasts with published runs of Megatron-LM and Megatron-DeepSpeed: tensor, pipeline and data parallelism.

    python -m benchmarks.megatron --reference FOLDER --cache FOLDER [--group TEXT] [--rows]

Prints errors by group and by (devices, tp, pp, dp). Needs PyTorch to record the models the first time (seconds each); the
recordings are kept in --cache. No fit uses these rows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.support.megatron_cases import MegatronCase, megatron_cases
from benchmarks.support.megatron_recordings import whole_step
from benchmarks.support.megatron_step import megatron_ranks
from gpuwise.cost import Forecast
from gpuwise.cost.parameters import parameters
from gpuwise.cost.price import price, slowest_rank
from gpuwise.errors import GpuwiseError
from gpuwise.hardware.catalog import Catalog
from gpuwise.trace.parallel.ranks import splits_layers

# Seconds that Megatron-DeepSpeed's host spends on a call of an operation; other trainers: host_operation_s in
# gpuwise/cost/data/efficiency.toml.
HOST_OPERATION_S = {"forward": 22e-6, "recompute": 22e-6, "backward": 10e-6, "optimizer": 6e-6}


def forecast(case: MegatronCase, cache: Path, catalog: Catalog) -> Forecast:
    """The forecast of the slowest rank."""
    ranks = megatron_ranks(whole_step(case, cache), case.strategy, of_2022=case.of_2022)
    cluster, figures = case.cluster(catalog), replace(parameters(), host_operation_s=HOST_OPERATION_S)
    slowest = ranks[0] if len(ranks) == 1 else slowest_rank(ranks, cluster, parameters=figures)
    split = ranks if splits_layers(case.strategy) else ()
    return price(
        slowest.trace,
        slowest.communication,
        cluster,
        strategy=case.strategy,
        parameters=figures,
        replay=False,
        ranks=split,
    )


def rows(cases: Iterable[MegatronCase], cache: Path) -> pd.DataFrame:
    """One row a case that can be forecast: its group and sizes, log_error, whether the interval holds the measured time."""
    catalog, result = Catalog(), []
    for case in cases:
        try:
            step = forecast(case, cache, catalog)
        except GpuwiseError as error:
            print(f"refused: {case.group} {case.shape.name} {case.strategy.mesh}: {error}", file=sys.stderr)
            continue
        mesh, time = case.strategy.mesh, step.step_time_s
        result.append(
            {
                "group": case.group,
                "model": f"{case.shape.hidden} x {case.shape.layers}",
                "devices": case.devices,
                "tp": mesh.tp,
                "pp": mesh.pp,
                "dp": mesh.dp_replicate,
                "micro_batch": case.strategy.micro_batch,
                "accumulation": case.strategy.accumulation,
                "recompute": case.strategy.recompute,
                "seconds": case.seconds,
                "forecast": time.value,
                "log_error": np.log(case.seconds / time.value),
                "inside": time.low <= case.seconds <= time.high,
                **step.bound,
            }
        )
    return pd.DataFrame(result)


def line(part: pd.DataFrame) -> str:
    """Errors of rows in words."""
    if not len(part):
        return "no rows"
    size = np.abs(np.expm1(-part.log_error.to_numpy()))
    bias = np.expm1(np.median(-part.log_error))
    return (
        f"{len(part):4} rows, mean {size.mean():6.1%}, median {np.median(size):6.1%}, 90th percentile "
        f"{np.quantile(size, 0.9):6.1%}, worst {size.max():6.1%}, bias {bias:+6.1%}, inside {part.inside.mean():4.0%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--group", default="", help="only groups whose name holds this text")
    parser.add_argument("--rows", action="store_true", help="print every row")
    options = parser.parse_args()
    chosen = [case for case in megatron_cases(options.reference) if options.group in case.group]
    table = rows(chosen, options.cache)
    if options.rows:
        print(table.to_string(float_format=lambda x: f"{x:.3f}"))
    for group, part in table.groupby("group"):
        print(f"{group}: {line(part)}")
        for (devices, tp, pp, dp), same in part.groupby(["devices", "tp", "pp", "dp"]):
            print(f"    {devices:4} devices, tp {tp:2}, pp {pp:2}, dp {dp:2}: {line(same)}")


if __name__ == "__main__":
    main()
