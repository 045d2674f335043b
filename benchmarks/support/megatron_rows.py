"""Published Megatron runs beside their forecasts, a row each."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.fit.split import kept_out_model
from benchmarks.support.megatron_cases import MegatronCase
from benchmarks.support.megatron_forecast import Change, as_composed, forecast
from gpuwise.errors import GpuwiseError
from gpuwise.hardware.catalog import Catalog

FITTED = "one machine"  # the group with rows behind HOST of megatron_forecast


def rows(cases: Iterable[MegatronCase], cache: Path, *, change: Change = as_composed) -> pd.DataFrame:
    """One row a case that can be forecast: its group and sizes, log_error, whether the interval holds the measured time.

    change: of each collective of the forecast; none by default."""
    catalog, result = Catalog(), []
    for case in cases:
        try:
            forecast_of_case = forecast(case, cache, catalog, change=change)
        except GpuwiseError as error:
            print(f"refused: {case.group} {case.shape.name} {case.strategy.mesh}: {error}", file=sys.stderr)
            continue
        mesh, time = case.strategy.mesh, forecast_of_case.step_time_s
        result.append(
            {
                "group": case.group,
                "model": case.shape.architecture,
                "heads": case.shape.heads,
                "kept_out": kept_out_model(case.shape.architecture),
                "devices": case.devices,
                "tp": mesh.tp,
                "pp": mesh.pp,
                "dp": mesh.dp_replicate,
                "micro_batch": case.strategy.micro_batch,
                "accumulation": case.strategy.accumulation,
                "recompute": case.strategy.recompute,
                "seconds": case.seconds,
                "peer_s": np.nan if case.peer_seconds is None else case.peer_seconds,
                "forecast": time.value,
                "log_error": np.log(case.seconds / time.value),
                "inside": time.low <= case.seconds <= time.high,
                "memory_error": forecast_of_case.memory.device_bytes / case.peak_bytes - 1 if case.peak_bytes else np.nan,
                **forecast_of_case.bound,
            }
        )
    return pd.DataFrame(result)
