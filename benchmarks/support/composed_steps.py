"""Whether published step times were measured, or composed of the times of a few layers.

Steps that are measured one by one scatter by tenths of a percent. The "one machine" rows (VIA-Research/vTrain,
data/ground_truth_single.csv) do not: their seconds are a line in the number of micro-batches to the last digit, and the
slope of that line is a line in the number of layers. A row then says no more than the layer behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

_RUN = ["model", "tp", "pp", "dp", "micro_batch"]  # what runs have in common that differ in the number of micro-batches


@dataclass(frozen=True)
class Composed:
    """What steps are composed of.

    Attributes:
        rows: steps.
        layers: different layers behind them: a width, a tensor-parallel degree and a micro-batch.
        lines: runs with at least three numbers of micro-batches.
        off_s: the farthest that a step is from its line, in seconds.
        layers_off_s: the farthest that the slope of a line is from one line in the number of layers, in seconds a micro-batch.
    """

    rows: int
    layers: int
    lines: int
    off_s: float
    layers_off_s: float


def composed(rows: pd.DataFrame) -> Composed:
    """What the steps are composed of. rows: as benchmarks.support.megatron_rows has them."""
    size = rows.model.str.extract(r"(?P<hidden>\d+)x(?P<layers>\d+)").astype(int)
    rows = rows.assign(hidden=size.hidden, layers=size.layers)
    lines, off_s = [], [0.0]
    for key, run in rows.groupby([*_RUN, "hidden", "layers"]):
        if run.accumulation.nunique() >= 3:
            slope, off = _line(run.accumulation, run.seconds)
            off_s.append(off)
            lines.append((*key, slope))
    slopes = pd.DataFrame(lines, columns=[*_RUN, "hidden", "layers", "slope"])
    by_layers = slopes.groupby(["hidden", "tp", "pp", "micro_batch", "layers"], as_index=False).slope.mean()
    off_layers = [
        _line(part.layers, part.slope)[1]
        for _, part in by_layers.groupby(["hidden", "tp", "pp", "micro_batch"])
        if len(part) >= 3
    ]
    layers = rows.groupby(["hidden", "tp", "micro_batch"]).ngroups
    return Composed(len(rows), layers, len(lines), max(off_s), max(off_layers, default=0.0))


def _line(x: pd.Series, y: pd.Series) -> tuple[float, float]:
    """The slope of the best line, and the farthest that a point is from it."""
    slope, start = np.polyfit(x.to_numpy(float), y.to_numpy(float), 1)
    return float(slope), float(np.max(np.abs(start + slope * x - y)))
