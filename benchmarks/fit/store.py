"""Store: calibration files in the making. Pieces read what was fitted before them and put what they fit."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from benchmarks.fit.write import remove_all, write
from gpuwise.cost.calibration import LEVELS, Calibration, CalibrationEntry, CalibrationFile, names_of, shipped
from gpuwise.hardware.types import Chip


@dataclass
class Store:
    """files: by (level, of). without: chip ids of which no row may be fitted, for forecasts of devices never seen."""

    files: dict[tuple[str, str], CalibrationFile] = field(default_factory=dict)
    without: frozenset[str] = frozenset()
    changed: dict[tuple[str, str], dict[str, CalibrationEntry]] = field(default_factory=dict)
    rescaled: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)
    said: dict[tuple[str, str], str] = field(default_factory=dict)  # comments for the head of a file
    fresh: bool = True  # made from nothing: what stands in the folder is not kept

    @classmethod
    def of_shipped(cls, without: frozenset[str] = frozenset()) -> Store:
        return cls(dict(shipped()), without, fresh=False)

    def copy(self, *, but: Collection[str] = (), without: frozenset[str] = frozenset()) -> Store:
        """Another store with the same files, except those of a chip, architecture or generation named in `but`."""
        return Store({key: file for key, file in self.files.items() if key[1] not in but}, without)

    def put(self, level: str, of: str, entries: dict[str, CalibrationEntry]) -> None:
        known = self.files.get((level, of)) or CalibrationFile(f"{level}-{of}", level, of, {}, {})
        self.files[level, of] = replace(known, entries={**known.entries, **entries})
        self.changed.setdefault((level, of), {}).update(entries)

    def put_scale(self, level: str, of: str, scale: dict[str, float]) -> None:
        """Factors on classes for which the file has no entry of its own, instead of those it has."""
        known = self.files.get((level, of)) or CalibrationFile(f"{level}-{of}", level, of, {}, {})
        self.files[level, of] = replace(known, scale={**known.scale, **scale})
        self.rescaled.setdefault((level, of), {}).update(scale)

    def calibration(self, chip: Chip, *, levels: tuple[str, ...] = LEVELS) -> Calibration:
        """The figures for a chip, of these levels only."""
        names = names_of(chip)
        return Calibration(tuple(self.files[key] for level in levels if (key := (level, names[level])) in self.files))

    def write(self) -> None:
        if self.fresh:
            remove_all()
        for key in {**self.changed, **self.rescaled}:
            write(*key, self.changed.get(key, {}), self.rescaled.get(key), said=self.said.get(key, ""))


def error_rows(piece: str, split: str, device: str, log_error: np.ndarray, **columns: object) -> pd.DataFrame:
    """Rows of the accuracy report: log(measured / forecast) of each measurement, what it was of and how it was split."""
    return pd.DataFrame({"piece": piece, "split": split, "device": device, "log_error": log_error, **columns})


def spread(log_errors: np.ndarray, *, least: float = 0.02) -> tuple[float, float]:
    """90 % interval of measured / forecast of rows that were not fitted, with 1 inside it."""
    low, high = np.exp(np.quantile(log_errors, [0.05, 0.95]))
    return min(float(f"{low:.3g}"), 1 - least), max(float(f"{high:.3g}"), 1 + least)
