"""The 90 % intervals of whole steps, by how far their figures were carried, and whether they hold.

A row serves only where no fit saw it. Known devices: half of the models, by a checksum, set the intervals, and coverage is
reported on the other half. Unseen devices: all of them set the intervals, each counting once however many rows it has, and
coverage is that of every device by the interval that the other ones set.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd
from scipy.stats import norm, t

from gpuwise.cost.calibration import LEVELS

BY = ["family", "level", "mode", "compiled"]
FEWEST_ROWS = 20  # a 90 % interval needs at least that many: one in twenty lies beyond each end
FEWEST_DEVICES = 3
COVERED = 0.90
MOSTLY_COMPUTING = 0.2  # steps with a smaller share of communication


def spreads(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """[[spread]] tables of cost/data/calibration/steps.toml from rows that no fit saw.

    rows: of whole steps, with the columns of BY, split, device, model and log_error (log(measured / forecast)).
    """
    results: list[dict[str, Any]] = []
    nearer: dict[object, tuple[float, float]] = {}
    known = {key: part for key, part in _setting(rows).groupby(BY) if _enough(part)}
    for key in sorted(known, key=lambda key: LEVELS.index(key[1])):
        family, _, *how = key
        low, high = _interval(known[key])
        above = nearer.get((family, *how), (1.0, 1.0))  # what is carried further is no surer
        low, high = nearer[family, *how] = min(low, above[0]), max(high, above[1])
        results.append({**dict(zip(BY, key, strict=True)), "low": low, "high": high, "rows": len(known[key])})
    return [*results, *_compiled_elsewhere(results)]


def _compiled_elsewhere(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compiled steps where none were measured, as wide as eager ones there and compiled ones on known devices: assumed."""
    by_key = {tuple(row[name] for name in BY): row for row in found}
    assumed = []
    for (family, level, mode, compiled), row in by_key.items():
        known = by_key.get((family, "chip", mode, True))
        if not compiled and level != "chip" and known and (family, level, mode, True) not in by_key:
            low, high = min(row["low"], known["low"]), max(row["high"], known["high"])
            assumed.append({**row, "compiled": True, "low": low, "high": high, "rows": 0})
    return assumed


def coverage(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that say whether the intervals hold, with columns low, high and inside (see the head of this module)."""
    checked = []
    setting = _setting(rows)
    for key, part in rows[rows.split.isin(("unseen models", "unseen device"))].groupby(BY):
        known = setting[(setting[BY] == list(key)).all(axis=1)]
        if not _enough(known):
            continue
        models = part[(part.split == "unseen models") & ~_first_half(part)]
        checked.append(_inside(models, known))
        for device, own in part[part.split == "unseen device"].groupby("device"):
            others = known[known.device != device]
            if _enough(others):
                checked.append(_inside(own, others))
    return pd.concat(checked, ignore_index=True)


def spread_of_several(rows: pd.DataFrame) -> dict[str, Any]:
    """The [[spread]] table of training steps on several known GPUs, from half of the models by the same checksum.

    What communication adds to a step has a spread of its own, so steps that mostly compute set it.

    rows: that no fit saw, with the columns device, model, level, communication (share of the step) and log_error.
    """
    computes = (rows.level == "chip") & (rows.communication < MOSTLY_COMPUTING)
    setting = rows[computes & _first_half(rows)].assign(split="unseen models")
    low, high = _interval(setting, few=_few(setting.model.nunique()))  # a handful of models: the next one is none of them
    kind = {"family": "gpu", "level": "chip", "mode": "train", "several": True}
    return {**kind, "low": low, "high": high, "rows": len(setting)}


def checks_several(rows: pd.DataFrame) -> np.ndarray:
    """Which rows are the test of spread_of_several."""
    return ~_first_half(rows)


def _first_half(rows: pd.DataFrame) -> np.ndarray:
    """By model."""
    return np.array([crc32(f"interval {model}".encode()) % 2 == 0 for model in rows.model], dtype=bool)


def _setting(rows: pd.DataFrame) -> pd.DataFrame:
    """What is carried to a chip is judged by chips that it was carried to."""
    models = (rows.split == "unseen models") & (rows.level == "chip") & _first_half(rows)
    return rows[models | ((rows.split == "unseen device") & (rows.level != "chip"))]


def _enough(rows: pd.DataFrame) -> bool:
    return len(rows) >= FEWEST_ROWS and ((rows.level == "chip").all() or rows.device.nunique() >= FEWEST_DEVICES)


def _inside(rows: pd.DataFrame, known: pd.DataFrame) -> pd.DataFrame:
    low, high = _interval(known)
    ratio = np.exp(rows.log_error)
    return rows.assign(low=low, high=high, inside=(ratio >= low) & (ratio <= high))


def _few(draws: int) -> float:
    """By how much an interval (log) is widened that so few devices or models set: they differ more than their rows do, and the
    next one is none of these. Student's prediction interval of one more draw, over the normal one's."""
    tail = (1 - COVERED) / 2
    return float(t.ppf(1 - tail, max(draws - 1, 1)) * np.sqrt(1 + 1 / draws) / norm.ppf(1 - tail))


def _interval(part: pd.DataFrame, *, few: float = 1.0) -> tuple[float, float]:
    """The 5th and 95th weighted percentile of measured / forecast, with 1 inside. A model of a known device counts once,
    however many ways it was measured in; so does a device that no fit saw. few: by how much the interval (log) is widened."""
    once = np.where(part.split == "unseen device", part.device, part.device + " " + part.model)
    weight = 1 / pd.Series(once).map(pd.Series(once).value_counts()).to_numpy(float)
    errors = part.log_error.to_numpy()
    order = np.argsort(errors)
    share = (np.cumsum(weight[order]) - weight[order] / 2) / weight.sum()
    tail = (1 - COVERED) / 2
    ends = few * np.interp([tail, 1 - tail], share, errors[order])
    if (part.level != "chip").all():
        ends = ends * _few(part.device.nunique())
    low, high = np.exp(ends)
    return min(round(float(low), 3), 0.98), max(round(float(high), 3), 1.02)
