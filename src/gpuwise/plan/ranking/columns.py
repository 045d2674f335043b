"""PlanColumns: the figures of many plans, an array each, to rank them by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class PlanColumns:
    """One row a plan. All arrays have the same length.

    Attributes:
        hours: expected calendar time of the run.
        usd: expected cost of the run.
        energy_j: energy of the run on all devices; nan where no power is known.
        memory_bytes: memory that the step takes on all devices together.
        usd_per_sample: price of one more sample: machine time while it trains, without setup, minimum or a term's rest.
    """

    hours: FloatArray
    usd: FloatArray
    energy_j: FloatArray
    memory_bytes: FloatArray
    usd_per_sample: FloatArray

    def __len__(self) -> int:
        return len(self.usd)
