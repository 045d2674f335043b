"""Published steps on several GPUs: data parallel in one machine, and FSDP on up to 128. No fit sees them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.check_published import forecast
from benchmarks.support import accuracy_text
from benchmarks.support.accuracy_tables import by
from benchmarks.support.published import cases
from gpuwise.cost.parameters import parameters
from gpuwise.errors import GpuwiseError
from gpuwise.hardware.catalog import Catalog


def rows(reference: Path, cache: Path) -> pd.DataFrame:
    """One row a published step that can be forecast: log_error, device, devices, sharded, inside its interval."""
    catalog, result = Catalog(), []
    for case in cases(reference):
        if case.count * case.machines == 1:
            continue
        try:
            step = forecast(case, cache, catalog, parameters()).step_time_s
        except GpuwiseError:
            continue
        result.append(
            {
                "device": case.chip_id,
                "devices": case.count * case.machines,
                "sharded": case.strategy.mesh.dp_shard > 1,
                "log_error": np.log(case.seconds / step.value),
                "inside": step.low <= case.seconds <= step.high,
            }
        )
    return pd.DataFrame(result)


def part(reference: Path, cache: Path) -> str:
    """The part of the page."""
    result = rows(reference, cache)
    parallel, sharded = result[~result.sharded], result[result.sharded]
    size = np.where(sharded.devices <= 8, "8 GPUs", "more than 8 GPUs")
    return accuracy_text.SEVERAL.format(
        inside=f"{result.inside.mean():.0%}",
        by_count=by(parallel, "devices"),
        by_chip=by(parallel, "device"),
        by_mpt_chip=by(sharded.assign(GPUs=size), "device", "GPUs"),
    )
