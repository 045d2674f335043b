"""The piece "language": steps of language and other models on one GPU, eager, as far as tables of kernels leave them open.

fp32 transformers on 12 GPUs (NeuSight); BERT and Transformer-XL on Lambda's 30 GPUs; collaborative filtering (NVIDIA); Llama on
a B200. Most chips have a few such steps, so only scales of classes are learned from them (benchmarks.fit.scales), level by
level. Steps of vision models, which share classes with them, are learned from again and reported by the piece "vision".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from zlib import crc32

import numpy as np
import pandas as pd

from benchmarks.fit.pieces import Context, Piece
from benchmarks.fit.scales import Scales, fit_scales, forecast_s, parts_of, rescaled
from benchmarks.fit.split import kept_out_model
from benchmarks.fit.steps import Step, Table, entries_of, table_of
from benchmarks.fit.store import Store, error_rows
from benchmarks.fit.vision import _cases as vision_cases
from benchmarks.fit.vision import _recorded as recorded
from benchmarks.fit.vision import torch_version
from benchmarks.support.published import cases
from benchmarks.support.published_case import Case
from benchmarks.support.published_recordings import step_of
from gpuwise.cost.calibration import LEVELS, Calibration, CalibrationFile, names_of
from gpuwise.cost.calibration.levels import ALIASES, likely
from gpuwise.cost.rates import family, precisions_of
from gpuwise.hardware.types import Chip

JOBS = ("hf-", "bert-", "transformer_xl-", "llama", "ncf")
VISION_JOBS = ("resnet50", "ssd300")  # and what DLE has of timm
# Classes that no table of kernels measures, or only forward: their scales are less certain beforehand, by this factor.
WIDE = {
    **dict.fromkeys(("loss", "random", "copy", "reduction", "scatter", "embedding"), 2.0),
    **dict.fromkeys(("loss_backward", "random_backward", "scatter_backward"), 2.0),
    **dict.fromkeys(("softmax_backward", "norm_layer_backward"), 1.5),
    "gemm_unaligned": 10.0,
    # Measured on their own, shape by shape: what whole steps leave over is not theirs.
    **dict.fromkeys(("gemm.fp16", "attention.fp16", "attention_backward.fp16"), 0.01),
    # The published programs' optimizers are counted by hand (benchmarks.support.published_updates).
    "optimizer": 0.01,
}
ANCHOR_EVERY = 2  # of the steps of vision models one is taken
WORTH = 0.005  # smaller changes are not written


@dataclass(frozen=True)
class Rows:
    """Measured steps with the row of the publication behind each. fits: not to be learned from where False. anchor: steps of
    vision models, which keep what was fitted to thousands of them where it is, and are not reported."""

    table: Table
    cases: list[Case]
    fits: np.ndarray
    anchor: np.ndarray

    @property
    def kept(self) -> np.ndarray:
        return np.array([kept_out_model(model) for model in self.table.model], dtype=bool)


@lru_cache(maxsize=1)
def rows_of(context: Context) -> Rows:
    """Published steps on one GPU of the catalog. Compiled ones are forecast, but not learned from."""
    known = context.catalog.chips
    chosen = [c for c in cases(context.reference) if c.job.startswith(JOBS + VISION_JOBS) or c.subset.startswith("DLE")]
    chosen = [c for c in chosen if c.count * c.machines == 1 and c.chip_id in known and _able(known[c.chip_id], c)]
    steps = [
        Step(known[c.chip_id], step_of(c, context.cache), c.seconds, c.model, f"{c.subset} {_precision(c)}") for c in chosen
    ]
    anchors = [(case, trace) for case in _some_vision(context) if (trace := recorded(case, context.cache)) is not None]
    steps += [Step(known[case.chip_id], trace, case.seconds, case.model, case.subset) for case, trace in anchors]
    chosen += [case for case, _ in anchors]
    fits = np.array([not c.strategy.compile for c in chosen])
    return Rows(table_of(steps), chosen, fits, np.array([not c.job.startswith(JOBS) for c in chosen]))


def _some_vision(context: Context) -> list[Case]:
    """A part of the steps of vision models, by a checksum that looks at no result; of several versions of PyTorch the newest,
    as older ones have kernels that are many times as slow."""
    newest: dict[object, Case] = {}
    for case in vision_cases(context.reference):
        way = case.chip_id, case.job, case.size, case.strategy
        if way not in newest or torch_version(case) > torch_version(newest[way]):
            newest[way] = case
    return [case for case in newest.values() if crc32(f"{case.job}{case.size}".encode()) % ANCHOR_EVERY == 0]


def fit(context: Context, store: Store) -> pd.DataFrame:
    rows = rows_of(context)
    chip = rows.table.chip.astype(str)
    parts = parts_of(rows.table, store, context.catalog)
    out = np.isin(chip, sorted(store.without))
    seen = rows.fits & ~rows.kept & ~out & (np.isin(chip, context.chips) if context.chips else True)
    levels = ("chip",) if context.chips else LEVELS
    scales = fit_scales(rows.table, parts, seen, context.catalog, wide=WIDE, levels=levels)
    errors = _errors(rows, parts, scales, context)
    split = np.where(out, "unseen device", np.where(rows.kept, "unseen models", np.where(seen, "fitted", "not fitted")))
    results = [_report(rows, split, errors, _levels(chip, chip[seen], context))[~rows.anchor]]
    if not store.without:  # models that are learned from, forecast by the others
        for model in sorted(set(rows.table.model[seen & ~rows.anchor])):
            own = rows.table.model == model
            scales_without = fit_scales(rows.table, parts, seen & ~own, context.catalog, wide=WIDE, levels=levels)
            errors = _errors(rows, parts, scales_without, context)
            known = _levels(chip, chip[seen & ~own], context)
            results.append(_report(rows, np.full(len(own), "unseen models"), errors, known)[own & rows.fits & ~rows.anchor])
    put(scales, rows.table.parts, context, store, learned=set(chip[seen & ~rows.anchor]))
    return pd.concat(results, ignore_index=True)


def unseen(context: Context, before: Store) -> pd.DataFrame:
    """Every chip forecast by scales learned on the others. Of kernels only what was not measured on it: where it has a file of
    its own, its architecture's and generation's rest on its rows, too, and are left out."""
    rows, result = rows_of(context), []
    chip, known = rows.table.chip.astype(str), before.files
    for name in sorted(set(chip[~rows.anchor])):
        names = names_of(context.catalog.chip(name))
        own = {names[level] for level in LEVELS[:3]} if _measured(name, known) else {name}
        store = before.copy(but=own, without=frozenset({name}))
        parts = parts_of(rows.table, store, context.catalog)
        seen = rows.fits & ~rows.kept & (chip != name)
        errors = _errors(rows, parts, fit_scales(rows.table, parts, seen, context.catalog, wide=WIDE), context)
        split = np.full(len(chip), "unseen device", dtype=object)
        result.append(_report(rows, split, errors, _levels(chip, chip[seen], context))[(chip == name) & ~rows.anchor])
    return pd.concat(result, ignore_index=True)


def _measured(chip: str, known: Mapping[tuple[str, str], CalibrationFile]) -> bool:
    """Whether kernels or many steps of the chip itself were fitted: it has entries of its own, not only scales."""
    return ("chip", chip) in known and bool(known["chip", chip].entries)


def put(scales: Scales, keys: Iterable[str], context: Context, store: Store, *, learned: Collection[str]) -> None:
    """Scales into the store: worked into an entry where a file has its own, beside it where the level above serves.

    learned: chips that steps were learned from. What was measured on others, or for architectures without any of them, stays.
    """
    touched = {(level, of) for chip in learned for level, of in names_of(context.catalog.chip(chip)).items()}
    keys = sorted({like for key in keys for like in (key, key.replace(".bf16", ".fp16"), key.replace(".fp16", ".bf16"))})
    wanted = {(level, of) for level, of, _ in scales.log}
    new = []
    for level, of in sorted(wanted if context.chips else {*store.files, *wanted}):
        chip = _chip_of(level, of, context)
        if chip is None or family(chip) != "gpu":
            continue
        names = {name: names_of(chip)[name] for name in LEVELS[LEVELS.index(level) :]}
        calibration = store.calibration(chip, levels=tuple(names))
        own = store.files.get((level, of))
        entries, scale = {}, {}
        for key, base in entries_of(calibration, keys).items():
            serving = _serving(key, calibration)
            if own and any(name in own.entries for name in serving):
                if (level, of) not in touched:
                    continue
                factor = scales.of(names, key)
                if abs(factor - 1) > WORTH or key.split(".")[0] != serving[0].split(".")[0]:
                    entries[key] = rescaled(base, factor)
                continue
            factor = scales.of({level: of}, key)
            if abs(factor - 1) > WORTH:
                scale[key] = float(f"{factor * (own.scale.get(key, 1.0) if own else 1.0):.3g}")
        new.append((level, of, entries, scale))
    for level, of, entries, scale in new:
        if entries:
            store.put(level, of, entries)
        if scale:
            store.put_scale(level, of, scale)


def _serving(key: str, calibration: Calibration) -> list[str]:
    """Names of the entries that serve a key: of its own class, or of the one it is a case of where no level has any."""
    kernel_class, _, numerics = key.partition(".")
    for kind in likely(kernel_class):
        names = [f"{kind}.{name}" for name in (numerics, *ALIASES.get(numerics, ()))] if numerics else [kind]
        if any(name in file.entries for file in calibration.files for name in names):
            return names
    return [key]


def _chip_of(level: str, of: str, context: Context) -> Chip | None:
    """A chip of the catalog that is called so at the level."""
    return next((chip for chip in context.catalog.chips.values() if names_of(chip)[level] == of), None)


def _able(chip: Chip, case: Case) -> bool:
    return case.half or case.strategy.precision in precisions_of(chip)


def _precision(case: Case) -> str:
    return "fp16" if case.half else case.strategy.precision


def _errors(rows: Rows, parts: Mapping[str, np.ndarray], scales: Scales, context: Context) -> np.ndarray:
    return np.log(rows.table.seconds / forecast_s(rows.table, parts, scales, context.catalog))


def _levels(chips: np.ndarray, seen: np.ndarray, context: Context) -> np.ndarray:
    """The most telling level at which each chip is one of those learned from. Shape of chips."""
    names = {chip: names_of(context.catalog.chip(chip)) for chip in {*chips, *seen}}
    known = {(level, names[chip][level]) for chip in set(seen) for level in LEVELS}
    return np.array([next(level for level in LEVELS if (level, names[chip][level]) in known) for chip in chips], dtype=object)


def _report(rows: Rows, split: np.ndarray, errors: np.ndarray, level: np.ndarray) -> pd.DataFrame:
    table = rows.table
    columns = {
        "model": table.model,
        "group": table.group,
        "precision": [_precision(c) for c in rows.cases],
        "mode": [c.strategy.mode for c in rows.cases],
        "compiled": [c.strategy.compile for c in rows.cases],
        "seconds": table.seconds,
        "level": level,
    }
    return error_rows("language", "", "", errors, **columns, family="gpu").assign(split=split, device=table.chip)


PIECE = Piece("language", fit, unseen)
