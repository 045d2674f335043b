"""Forecasts of the zoo's cases beside what was measured."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.check_published import forecast
from benchmarks.zoo.cases import ZooCase
from gpuwise.cost.parameters import parameters
from gpuwise.errors import GpuwiseError
from gpuwise.hardware.catalog import Catalog

UNSCORED = ["framework", "source", "model", "mode", "reason"]


def scored(cases: Iterable[ZooCase], cache: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """One row a case that can be forecast; and those that are refused, as the rows without a case."""
    catalog = Catalog()
    rows: list[dict[str, Any]] = []
    refused: list[tuple[str, str, str, str, str]] = []
    for zoo in cases:
        try:
            rows.append(_row(zoo, cache, catalog))
        except GpuwiseError as error:
            refused.append(("PyTorch", "", zoo.model, zoo.case.strategy.mode, error.what))
    return pd.DataFrame(rows), pd.DataFrame(refused, columns=UNSCORED)


def _row(zoo: ZooCase, cache: Path, catalog: Catalog) -> dict[str, Any]:
    case = zoo.case
    results = [(forecast(part, cache, catalog, parameters()), weight) for part, weight in zoo.steps]
    low_s, value_s, high_s = (
        mean_step_s([(getattr(result.step_time_s, name), weight) for result, weight in results])
        for name in ("low", "value", "high")
    )
    whole = sum(weight for _, weight in results)
    bound = {name: sum(result.bound[name] * weight for result, weight in results) / whole for name in results[0][0].bound}
    return {
        "row": zoo.row,
        "model": zoo.model,
        "job": case.job,
        "device": case.chip_id,
        "devices": case.count * case.machines,
        "precision": zoo.precision,
        "mode": case.strategy.mode,
        "batch": case.strategy.micro_batch,
        "measured_s": case.seconds,
        "forecast_s": value_s,
        "log_error": np.log(case.seconds / value_s),
        "loads": zoo.loads,
        "inside": low_s <= case.seconds <= high_s,
        **{f"bound_{name}": share for name, share in bound.items()},
    }


def mean_step_s(steps: Iterable[tuple[float, float]]) -> float:
    """Seconds of the step whose rate is the mean of those of steps, each (seconds, share of the units that are counted)."""
    return 1.0 / sum(weight / seconds for seconds, weight in steps)
