"""How good the plan is that forecasts rank first, on published groups of measured plans of one model.

    python -m benchmarks.search_regret --reference FOLDER --cache FOLDER [--group TEXT] [--plans]

A group is one model on as many GPUs with the same global batch, under several meshes and micro-batches (VIA-Research/vTrain,
its validation data). Regret: how much longer the plan that the forecast ranks first took than the best measured one.
Beside it, what a plan taken by chance would have cost, and the rank correlation of forecast and measured times (Spearman).
Nothing is fitted here. The host's figures behind these forecasts were fitted on one machine's models that are not kept out (see
benchmarks.megatron): groups of those are shown apart. Recordings are made into --cache the first time, which needs PyTorch.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.megatron import FITTED, rows
from benchmarks.support.accuracy_tables import table
from benchmarks.support.megatron_cases import megatron_cases

GROUPS = ("one machine", "several machines")
FEWEST = 3  # plans of a group
BY = ["group", "kept_out", "model", "devices", "global_batch"]
HEAD = ("plans", "regret", "by chance", "rank correlation")


@dataclass(frozen=True)
class Regret:
    """One group of measured plans.

    Attributes:
        plans: how many they are.
        regret: the measured time of the plan ranked first over the best one's, less 1.
        by_chance: the same of the mean plan.
        correlation: of the ranks of forecast and measured times.
    """

    plans: int
    regret: float
    by_chance: float
    correlation: float


def regret_of(forecast_s: np.ndarray, measured_s: np.ndarray) -> Regret:
    """The regret of ranking plans by their forecasts."""
    best = measured_s.min()
    first = measured_s[np.argmin(forecast_s)]
    ranks = [pd.Series(seconds).rank().to_numpy() for seconds in (forecast_s, measured_s)]
    correlation = float(np.corrcoef(*ranks)[0, 1]) if len(best_first(measured_s)) > 1 else 1.0
    return Regret(len(measured_s), float(first / best - 1), float(measured_s.mean() / best - 1), correlation)


def best_first(seconds: np.ndarray) -> np.ndarray:
    """The distinct times, ascending."""
    return np.unique(seconds)


def regrets(plans: pd.DataFrame) -> pd.DataFrame:
    """A row for each group of plans. plans: as benchmarks.megatron.rows has them."""
    plans = plans.assign(global_batch=plans.micro_batch * plans.accumulation * plans.dp)
    result = []
    for key, part in plans.groupby(BY):
        if len(part) >= FEWEST:
            regret = regret_of(part.forecast.to_numpy(), part.seconds.to_numpy())
            result.append({**dict(zip(BY, key, strict=True)), **vars(regret)})
    return pd.DataFrame(result)


def cells(of_group: pd.Series) -> list[str]:
    """The figures of one group, as HEAD names them."""
    return [str(of_group.plans), f"{of_group.regret:.1%}", f"{of_group.by_chance:.1%}", f"{of_group.correlation:.3f}"]


def summary(groups: pd.DataFrame) -> str:
    """Groups in one line."""
    if not len(groups):
        return "no groups"
    within = (groups.regret <= 0.01).mean()
    return (
        f"{len(groups)} groups, {groups.plans.sum()} plans: regret median {groups.regret.median():.1%}, mean "
        f"{groups.regret.mean():.1%}, worst {groups.regret.max():.1%}, within 1 % in {within:.0%}; a plan by chance "
        f"{groups.by_chance.mean():.1%}; rank correlation median {groups.correlation.median():.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--group", default="", help="only groups whose name holds this text")
    parser.add_argument("--plans", action="store_true", help="print every plan")
    options = parser.parse_args()
    chosen = [case for case in megatron_cases(options.reference) if case.group in GROUPS and options.group in case.group]
    plans = rows(chosen, options.cache)
    groups = regrets(plans)
    if options.plans:
        print(plans.to_string(float_format=lambda x: f"{x:.3f}"))
    print(table([*BY, *HEAD], [[*(str(of_group[name]) for name in BY), *cells(of_group)] for _, of_group in groups.iterrows()]))
    for group, part in groups.groupby("group"):
        if group == FITTED:
            print(f"\n{group}, kept out: {summary(part[part.kept_out])}")
            print(f"{group}, seen: {summary(part[~part.kept_out])}")
        else:
            print(f"\n{group}: {summary(part)}")


if __name__ == "__main__":
    main()
