"""Scales: how much longer classes of kernels take inside whole steps than their entries say, learned together.

A handful of steps a chip cannot tell the shape of a curve, but how far each class is off as a whole. log(scale) of a class on
a chip is a sum of what holds on every chip, on its generation, its architecture, and on it alone; each part is drawn towards
0, so that little evidence moves little and a chip without steps takes what its likes have (a maximum a posteriori fit).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares
from scipy.sparse import csr_matrix, identity, vstack

from benchmarks.fit.steps import Table, entries_of
from benchmarks.fit.store import Store
from gpuwise.cost.calibration import LEVELS, CalibrationEntry, names_of
from gpuwise.cost.calibration.entry import Term
from gpuwise.cost.kernels.times import GENERIC
from gpuwise.hardware.catalog import Catalog

# How far log(scale) parts are expected to lie from 0 at each level, where a class has been measured on its own.
WIDTH = {"family": 0.15, "generation": 0.07, "architecture": 0.07, "chip": 0.05}
OWN_WIDTH = 0.15  # of a chip's own part, once what it shares with others is known
NOISE = 0.05  # of a published step: identical machines differ by 2 to 6 %


def alike(key: str) -> str:
    """Classes that run alike share a scale: in fp16 as in bf16."""
    return key.replace(".bf16", ".fp16")


@dataclass(frozen=True)
class Scales:
    """log(scale) by (level, of, class key); keys as `alike` has them."""

    log: Mapping[tuple[str, str, str], float]

    def of(self, names: Mapping[str, str], key: str) -> float:
        """The factor on a class for a chip of these names (gpuwise.cost.calibration.names_of), or a part of them."""
        return float(np.exp(sum(self.log.get((level, of, alike(key)), 0.0) for level, of in names.items())))


def parts_of(table: Table, store: Store, catalog: Catalog) -> dict[str, np.ndarray]:
    """Seconds of each class in each step by the entries in the store. Shape (steps,) each."""
    parts = {key: np.zeros(len(table)) for key in table.parts}
    for chip in np.unique(table.chip.astype(str)):
        rows = np.flatnonzero(table.chip == chip)
        some = table.of(table.chip == chip)
        entries = entries_of(store.calibration(catalog.chip(chip)), some.parts)
        for key in some.parts:
            parts[key][rows] = some.part_s(key, entries.get(key, GENERIC.entry))
    return parts


def fit_scales(
    table: Table,
    parts: Mapping[str, np.ndarray],
    chosen: np.ndarray,
    catalog: Catalog,
    *,
    wide: Mapping[str, float] | None = None,
    own_width: float = OWN_WIDTH,
    levels: Sequence[str] = LEVELS,
) -> Scales:
    """Scales from the chosen steps. wide: factor on the width by key or class, above 1 for what no table of kernels
    has measured. levels: that have scales.

    First all levels together, where what one chip does alone is kept small, so that chips without steps profit most; then
    each chip's own part again, with more freedom.
    """
    shared = _fit(table, parts, chosen, catalog, levels, WIDTH, wide or {}).log
    shared = {name: value for name, value in shared.items() if name[0] != "chip"}
    carried = scaled_parts(table, parts, Scales(shared), catalog)
    own = _fit(table, carried, chosen, catalog, ("chip",), {"chip": own_width}, wide or {})
    return Scales({**shared, **own.log})


def _fit(
    table: Table,
    parts: Mapping[str, np.ndarray],
    chosen: np.ndarray,
    catalog: Catalog,
    levels: Sequence[str],
    width: Mapping[str, float],
    wide: Mapping[str, float],
) -> Scales:
    rows = np.flatnonzero(chosen)
    keys = [key for key, seconds in parts.items() if seconds[rows].any()]
    names = [names_of(catalog.chip(chip)) for chip in table.chip[rows]]
    seconds = np.stack([parts[key][rows] for key in keys], axis=1)
    index: dict[tuple[str, str, str], int] = {}
    cells: list[tuple[int, int]] = []  # (row × class, parameter)
    for row, of in enumerate(names):
        for column, key in enumerate(keys):
            if seconds[row, column] > 0:
                for level in levels:
                    cells.append((row * len(keys) + column, index.setdefault((level, of[level], alike(key)), len(index))))
    at, to = np.array(cells).T
    design = csr_matrix((np.ones(len(cells)), (at, to)), shape=(len(rows) * len(keys), len(index)))
    prior = np.array([width[level] * _width(wide, key) for level, _, key in index])
    log_measured, least = np.log(table.seconds[rows]), table.host_s[rows]
    group = csr_matrix(
        (np.ones(len(rows) * len(keys)), (np.repeat(np.arange(len(rows)), len(keys)), np.arange(design.shape[0])))
    )

    def scaled(z: np.ndarray) -> np.ndarray:
        return seconds * np.exp(design @ (z * prior)).reshape(seconds.shape)

    def residual(z: np.ndarray) -> np.ndarray:
        busy = scaled(z).sum(axis=1)
        return np.concatenate([_robust((log_measured - np.log(np.maximum(busy, least))) / NOISE), z])

    def jacobian(z: np.ndarray) -> csr_matrix:
        parts_s = scaled(z)
        busy = parts_s.sum(axis=1)
        error = (log_measured - np.log(np.maximum(busy, least))) / NOISE
        share = parts_s / busy[:, None] * (busy > least)[:, None] * (_robust_slope(error) / NOISE)[:, None]
        by_parameter = group @ design.multiply(-share.reshape(-1, 1)).tocsr() @ _diagonal(prior)
        return vstack([by_parameter, identity(len(prior))]).tocsr()

    result = least_squares(residual, np.zeros(len(prior)), jac=jacobian, method="trf", tr_solver="lsmr", max_nfev=60)
    return Scales({of: float(value) for of, value in zip(index, result.x * prior, strict=True)})


def _width(wide: Mapping[str, float], key: str) -> float:
    """wide: by key (`gemm.fp16`) or by class."""
    return wide.get(key, wide.get(key.split(".")[0], 1.0))


def scaled_parts(table: Table, parts: Mapping[str, np.ndarray], scales: Scales, catalog: Catalog) -> dict[str, np.ndarray]:
    """Seconds of each class in each step, scaled. Shape (steps,) each."""
    results = {key: seconds.copy() for key, seconds in parts.items()}
    for chip in np.unique(table.chip.astype(str)):
        rows, names = table.chip == chip, names_of(catalog.chip(chip))
        for key, seconds in results.items():
            seconds[rows] *= scales.of(names, key)
    return results


def forecast_s(table: Table, parts: Mapping[str, np.ndarray], scales: Scales, catalog: Catalog) -> np.ndarray:
    """Steps by the scaled parts. Shape (steps,)."""
    busy = sum(scaled_parts(table, parts, scales, catalog).values(), start=np.zeros(len(table)))
    return np.maximum(busy, table.host_s)


def rescaled(entry: CalibrationEntry, factor: float) -> CalibrationEntry:
    """The same entry with all its seconds times a factor."""
    terms = {name: Term(float(f"{term.scale * factor:.4g}"), term.curves) for name, term in entry.terms.items()}
    return CalibrationEntry(terms, entry.sharpness, float(f"{entry.floor_s * factor:.3g}"), entry.spread, entry.evidence)


def _robust(error: np.ndarray) -> np.ndarray:
    """Whose square is the soft L1 loss: rows of a faulty measurement pull no harder than those three times off."""
    return np.sign(error) * np.sqrt(2 * 9 * (np.sqrt(1 + error**2 / 9) - 1))


def _robust_slope(error: np.ndarray) -> np.ndarray:
    value = np.abs(_robust(error))
    return np.where(value > 1e-6, np.abs(error) / np.sqrt(1 + error**2 / 9) / np.maximum(value, 1e-6), 1.0)


def _diagonal(values: np.ndarray) -> csr_matrix:
    return csr_matrix((values, (np.arange(len(values)), np.arange(len(values)))))
