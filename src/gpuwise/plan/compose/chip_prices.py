"""The prices of a job's blocks on several chips, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class ChipPrices:
    """The seconds of a job's blocks on several chips.

    Attributes:
        chip: of each cluster, an index.
        batch_s: as JobArrays.batch_s, with an axis of chips before that of entries.
        update_s: as JobArrays.update_s, with an axis of chips before the last.
    """

    chip: np.ndarray
    batch_s: np.ndarray
    update_s: np.ndarray

    def of(self, clusters: Sequence[int]) -> ChipPrices:
        """The same of some of the clusters."""
        chips, chip = np.unique(self.chip[list(clusters)], return_inverse=True)
        return ChipPrices(chip, self.batch_s[:, :, :, chips], self.update_s[:, chips])
