"""Vision models on GPUs that have a few published steps each: how far pooled figures are off there, as scales of classes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pandas as pd

from benchmarks.fit.pieces import Context
from benchmarks.fit.scales import Scales, fit_scales, forecast_s, parts_of, rescaled
from benchmarks.fit.split import kept_out_model
from benchmarks.fit.steps import Step, Table, entries_of, table_of
from benchmarks.fit.store import Store, error_rows
from benchmarks.support.published import cases
from benchmarks.support.published_case import Case
from benchmarks.support.published_recordings import cached, step_of
from gpuwise.cost.calibration import LEVELS, names_of
from gpuwise.errors import UnsupportedError

SUBSETS = ("lambda resnet50", "DLE efficientnet", "DLE SSD")
SCALED = ("conv", "norm_batch", "pool")  # classes that language models do not have
# Factors on the width of scales (benchmarks.fit.scales): pooled figures are of other architectures; other classes stay.
FREE, FIXED = 2.0, 1e-3
WORTH = 0.005  # smaller changes are not written


def rows_of(context: Context) -> tuple[Table, list[Case]]:
    """Steps on one GPU of the catalog whose model was recorded, on tensor cores."""
    result, steps = [], []
    for case in cases(context.reference):
        known = case.subset in SUBSETS and case.count * case.machines == 1 and case.chip_id in context.catalog.chips
        if not known or not cached(case, context.cache):
            continue
        step = Step(context.catalog.chip(case.chip_id), step_of(case, context.cache), case.seconds, case.model, case.subset)
        try:
            keys = table_of([step]).parts
        except UnsupportedError:  # of a precision the chip lacks
            continue
        if any(key.startswith("conv") and key.endswith(".fp32") for key in keys):  # tables of kernels have these
            continue
        result.append(case)
        steps.append(step)
    return table_of(steps), result


def fit(context: Context, store: Store, own: Collection[str]) -> pd.DataFrame:
    """Scales on the pooled figures in the store. own: architectures with figures of their own, which stay."""
    table, result = rows_of(context)
    parts = parts_of(table, store, context.catalog)
    out = np.isin(table.chip.astype(str), sorted(store.without))
    left = np.array([kept_out_model(model) for model in table.model])
    theirs = np.array([names_of(context.catalog.chips[chip])["architecture"] in own for chip in table.chip])
    seen = ~out & ~left & ~theirs
    wide = {key.split(".")[0]: FREE if key.startswith(SCALED) else FIXED for key in parts}
    _put(fit_scales(table, parts, seen, context.catalog, wide=wide), table, own, context, store)
    errors = np.log(table.seconds / np.maximum(sum(parts_of(table, store, context.catalog).values()), table.host_s))
    # The figures of an architecture are those of one of its chips: the other ones are new to them.
    others = theirs & np.array([not _own(str(chip), store) for chip in table.chip])
    split = np.where(out | others, "unseen device", np.where(left, "unseen models", "fitted"))
    return _errors(table, result, split, errors)


def unseen(context: Context, store: Store, own: Collection[str]) -> pd.DataFrame:
    """Each GPU forecast by scales learned on the others. store: with pooled figures."""
    table, result = rows_of(context)
    parts = parts_of(table, store, context.catalog)
    wide = {key.split(".")[0]: FREE if key.startswith(SCALED) else FIXED for key in parts}
    theirs = np.array([names_of(context.catalog.chips[chip])["architecture"] in own for chip in table.chip])
    errors, split = np.zeros(len(table)), np.full(len(table), "", dtype=object)
    for chip in np.unique(table.chip[~theirs].astype(str)):
        out = table.chip == chip
        scales = fit_scales(table, parts, ~out & ~theirs, context.catalog, wide=wide)
        errors[out] = np.log(table.seconds / forecast_s(table, parts, scales, context.catalog))[out]
        split[out] = "unseen device"
    rows = _errors(table, result, split, errors)
    return rows[rows.split != ""]


def _own(chip: str, store: Store) -> bool:
    file = store.files.get(("chip", chip))
    return file is not None and any(key.startswith("conv") for key in file.entries)


def without_scales(store: Store, own: Collection[str]) -> Store:
    """The store without what earlier fits learned of the scaled classes from these steps, below the family."""
    files = {}
    for (level, of), file in store.files.items():
        if level != "family" and of not in own:
            entries = {key: entry for key, entry in file.entries.items() if not key.startswith(SCALED)}
            scale = {key: factor for key, factor in file.scale.items() if not key.startswith(SCALED)}
            file = replace(file, entries=entries, scale=scale)
        files[level, of] = file
    return Store(files, store.without)


def _put(scales: Scales, table: Table, own: Collection[str], context: Context, store: Store) -> None:
    """Worked into entries where a file has its own (the family's tf32 from fp16), beside them where the level above serves."""
    keys = [key for key in table.parts if key.startswith(SCALED)]
    chips = [chip for chip in context.catalog.chips.values() if names_of(chip)["architecture"] not in own]
    known = entries_of(store.calibration(context.catalog.chips[str(table.chip[0])], levels=("family",)), keys)
    store.put("family", "gpu", {key: rescaled(known[key], scales.of({"family": "gpu"}, key)) for key in keys if key in known})
    for index, level in enumerate(LEVELS[:-1]):
        for of, chip in {names_of(chip)[level]: chip for chip in chips if names_of(chip)["family"] == "gpu"}.items():
            names = {name: names_of(chip)[name] for name in LEVELS[index:]}
            file = store.files.get((level, of))
            entries = {key: file.entries[key] for key in keys if key in file.entries} if file else {}
            worked = {key: rescaled(entry, scales.of(names, key)) for key, entry in entries.items()}
            beside = {key: scales.of({level: of}, key) for key in keys if key not in entries}
            beside = {key: float(f"{factor:.3g}") for key, factor in beside.items() if abs(factor - 1) > WORTH}
            if worked:
                store.put(level, of, worked)
            if beside:
                store.put_scale(level, of, beside)


def _errors(table: Table, found: list[Case], split: np.ndarray, errors: np.ndarray) -> pd.DataFrame:
    columns = {
        "model": table.model,
        "group": table.group,
        "precision": [case.strategy.precision for case in found],
        "mode": [case.strategy.mode for case in found],
        "compiled": False,
        "seconds": table.seconds,
        "level": "architecture",
    }
    return error_rows("vision", "", "", errors, **columns, family="gpu").assign(split=split, device=table.chip)
