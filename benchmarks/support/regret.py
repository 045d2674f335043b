"""What it costs to take the plan that forecasts rank first, in groups of measured plans of one model.

A group has one model, as many devices and one global batch; its plans differ in mesh and micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

FEWEST = 3  # plans of a group
GROUP = ["group", "kept_out", "model", "heads", "devices", "global_batch"]
MESH = [*GROUP, "tp", "pp", "dp"]
PLAN = [*MESH, "micro_batch"]
_DRAWS = 20_000


@dataclass(frozen=True)
class Regret:
    """One group of measured plans.

    Attributes:
        plans: how many they are.
        regret: the measured time of the plan ranked first over the best one's, less 1.
        by_chance: the same of the mean plan.
        correlation: of the ranks of forecast and measured times (Spearman).
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
    correlation = float(np.corrcoef(*ranks)[0, 1]) if len(np.unique(measured_s)) > 1 else 1.0
    return Regret(len(measured_s), float(first / best - 1), float(measured_s.mean() / best - 1), correlation)


def with_batch(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of benchmarks.support.megatron_rows with their global batch, without runs that are listed twice."""
    rows = rows.assign(global_batch=rows.micro_batch * rows.accumulation * rows.dp)
    return rows.drop_duplicates([*PLAN, "seconds"])


def spread_of(rows: pd.DataFrame) -> float:
    """The standard deviation of the logarithm of measured over forecast times among rows that should have one ratio.

    Those are runs of the same plan, which measure noise alone. Where a group has none, they are plans that differ in the
    micro-batch alone: an upper bound of the noise, with what the forecast misses of a micro-batch in it. NaN without either.
    """
    for same in (PLAN, MESH):
        ratios = rows.groupby(same).log_error
        degrees = len(rows) - ratios.ngroups
        if degrees:
            return float(np.sqrt(np.sum((rows.log_error - ratios.transform("mean")) ** 2) / degrees))
    return float("nan")


def regret_of_spread(measured_s: np.ndarray, spread: float) -> float:
    """The mean regret of a forecast that is equal to these times, if each plan were measured again with such a spread."""
    if np.isnan(spread):
        return float("nan")
    again = measured_s * np.exp(spread * np.random.default_rng(0).standard_normal((_DRAWS, len(measured_s))))
    return float(np.mean(again[:, np.argmin(measured_s)] / again.min(axis=1) - 1))


def regrets(rows: pd.DataFrame) -> pd.DataFrame:
    """A row for each group: the fields of Regret; `peer`, the peer's regret (NaN where it has no forecasts); `spread`, and the
    regret that it explains. rows: of with_batch. Runs of the same plan count once, by their mean."""
    result = []
    for key, part in rows.groupby(GROUP):
        plans = part.groupby(PLAN, as_index=False)[["forecast", "seconds", "peer_s"]].mean()
        if len(plans) < FEWEST:
            continue
        measured_s, spread = plans.seconds.to_numpy(), spread_of(part)
        regret = regret_of(plans.forecast.to_numpy(), measured_s)
        peer = np.nan if plans.peer_s.isna().any() else regret_of(plans.peer_s.to_numpy(), measured_s).regret
        of_spread = {"peer": peer, "spread": spread, "of_spread": regret_of_spread(measured_s, spread)}
        result.append({**dict(zip(GROUP, key, strict=True)), **vars(regret), **of_spread})
    return pd.DataFrame(result)


def explained(groups: pd.DataFrame) -> float:
    """The share of all regret that is no larger than what the spread of a group explains."""
    return float(np.minimum(groups.regret, groups.of_spread.fillna(0.0)).sum() / groups.regret.sum())


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
