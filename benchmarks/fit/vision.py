"""The piece "vision": whole steps of vision models on GPUs, from the results of pytorch-image-models.

Thousands of steps of hundreds of models on three GPUs tell how fast convolutions, and what stands between them, run where no
table of kernels exists: figures of those chips, of their architectures, and pooled ones for a GPU without any.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.fit import vision_others
from benchmarks.fit.pieces import Context, Piece
from benchmarks.fit.split import kept_out_model
from benchmarks.fit.steps import Step, Table, entries_of, fit_steps, table_of
from benchmarks.fit.store import Store, error_rows, spread
from benchmarks.fit.vision_designs import designs
from benchmarks.support.published_case import Case
from benchmarks.support.published_recordings import cached, recording_path, step_of
from benchmarks.support.published_timm import timm_cases
from gpuwise.cost.calibration import CalibrationEntry, names_of
from gpuwise.measure.fitting.design import Design
from gpuwise.trace import Axis, build_family
from gpuwise.trace.tables import KINDS
from gpuwise.trace.trace import Trace

SOURCE = "whole steps of vision models, eager PyTorch 1.12 to 2.9 (huggingface/pytorch-image-models, Apache-2.0)"
# Ways to run: (compiled, channels-last).
WAYS = ((False, False), (False, True), (True, False))
# Classes whose pooled figures stand for any GPU: those that no table of kernels has. Of others only a chip's own are kept.
POOLED = ("conv", "elementwise_", "reduction_fused", "copy_", "norm_batch", "pool")
OTHER_KERNELS = 0.25  # of the logarithm; versions otherwise differ by 3 %
# A pooled figure may move freely; one for a chip is drawn to it.
POOLED_PULL, CHIP_PULL, SMOOTH = 1e-3, 1e-3, 3e-3
# Of classes that are named: to the figures they had, of more rows. Chosen by leaving out thirds of the fitted models.
NAMED_PULL = 5e-2


@dataclass(frozen=True)
class Rows:
    """Measured steps with the published row behind each."""

    table: Table
    cases: list[Case]

    def merged(self, chosen: np.ndarray) -> Table:
        """The chosen steps; one that several versions of PyTorch ran is there once, with the geometric mean of its times, or
        with that of the newest where they are OTHER_KERNELS apart: it had other kernels."""
        rows = np.flatnonzero(chosen)
        alike = [(case.chip_id, case.job, case.size, case.strategy) for case in self.cases]
        number = {way: index for index, way in enumerate(dict.fromkeys(alike))}
        group = pd.Series([number[alike[row]] for row in rows])
        each = pd.Series(np.log(self.table.seconds[rows]))
        version = pd.Series([torch_version(self.cases[row]) for row in rows])
        newest = each.where(version == version.groupby(group).transform("max")).groupby(group).transform("mean")
        apart = each.groupby(group).transform("max") - each.groupby(group).transform("min") > OTHER_KERNELS
        log = newest.where(apart, each.groupby(group).transform("mean"))
        first = ~group.duplicated().to_numpy()
        once = np.zeros(len(self.table), dtype=bool)
        once[rows[first]] = True
        return replace(self.table.of(once), seconds=np.exp(log.to_numpy()[first]))

    @property
    def kept(self) -> np.ndarray:
        return np.array([kept_out_model(model) for model in self.table.model], dtype=bool)


def torch_version(case: Case) -> float:
    """Of PyTorch, as a number that grows with it: 2.004001 of 2.4.1."""
    return sum(int(part) / 1e3**place for place, part in enumerate(case.torch.split(".")))


@lru_cache(maxsize=2)
def rows_of(reference: Path, cache: Path, catalog_chips: tuple[str, ...]) -> Rows:
    """Eager steps on GPUs of the catalog whose model was recorded."""
    from gpuwise.hardware.catalog import Catalog

    catalog, result, steps = Catalog(), [], []
    for case in _cases(reference):
        if case.chip_id not in catalog_chips or (trace := _recorded(case, cache)) is None:
            continue
        result.append(case)
        steps.append(Step(catalog.chip(case.chip_id), trace, case.seconds, case.model, _group(case)))
    return Rows(table_of(steps), result)


def _cases(reference: Path) -> Iterator[Case]:
    results = [case for compiled, last in WAYS for case in timm_cases(reference, compiled=compiled, channels_last=last)]
    yield from sorted((case for case in results if "on a CPU" not in case.subset), key=lambda case: (case.job, case.size))


def _group(case: Case) -> str:
    how = " channels-last" * case.strategy.channels_last + " compiled" * case.strategy.compile
    return f"{case.strategy.mode}{how}, torch {case.torch}"


def _recorded(case: Case, cache: Path) -> Trace | None:
    """The case's step from the cache; None where its model is not recorded, or as another program than was measured.

    A step in bf16 is the same as in fp16. Fused attention came with torch 2.0; its reference implementation computes in fp32
    since 2.5 (`_safe_softmax` marks it).
    """
    in_bf16 = case.strategy.precision == "amp-bf16"
    precision = "amp-fp16" if in_bf16 else case.strategy.precision
    usual = replace(case, strategy=case.strategy.but(precision=precision))
    trace = step_of(usual, cache) if cached(usual, cache) else _between(usual, cache)
    if trace is None:
        return None
    if in_bf16:
        trace = replace(trace, operations=trace.operations.in_bf16())
    attention = (trace.operations.kind == KINDS.index("attention")).any()
    old = tuple(map(int, case.torch.split(".")[:2]))
    if (old < (2, 0) and attention) or (old < (2, 5) and any("_safe_softmax" in name for name in trace.operations.name)):
        return None
    return replace(trace, header=replace(trace.header, strategy=case.strategy))


def _between(case: Case, cache: Path) -> Trace | None:
    """A compiled step that was recorded at two other batches: its numbers are linear in the batch. None without them."""
    if not case.strategy.compile:
        return None
    pattern = recording_path(case, cache).name.replace(f"compiled{case.strategy.micro_batch}.", "compiled*.")
    batches = sorted(int(path.stem.rpartition("compiled")[-1]) for path in cache.glob(pattern))[:2]
    if len(batches) < 2:
        return None
    known = [step_of(replace(case, strategy=case.strategy.but(micro_batch=batch)), cache) for batch in batches]
    axis = Axis("micro_batch", start=batches[0], step=batches[1] - batches[0], degree=1)
    family = build_family({(batch,): trace for batch, trace in zip(batches, known, strict=True)}, (axis,), {})
    return family and family.at(micro_batch=case.strategy.micro_batch)


def fit(context: Context, store: Store) -> pd.DataFrame:
    """Pooled figures for the family, then each chip's, which speak for its architecture, too; scales for other GPUs."""
    rows = rows_of(context.reference, context.cache, tuple(context.catalog.chips))
    table, chips = rows.table, context.catalog.chips
    out = np.isin(table.chip.astype(str), sorted(store.without))
    seen = ~rows.kept & ~out
    _put(rows, seen, context, store)
    others = vision_others.fit(context, store, _architectures(table, seen, context)) if not context.classes else None
    errors = np.zeros(len(table))
    for chip in np.unique(table.chip.astype(str)):
        mine = table.chip == chip
        errors[mine] = _log_errors(table.of(mine), entries_of(store.calibration(chips[chip]), table.parts))
    split = np.where(out, "unseen device", np.where(rows.kept, "unseen models", "fitted"))
    return pd.concat([_errors(rows, split, errors), others], ignore_index=True)


def _designs(keys: Iterable[str], context: Context) -> dict[str, Design]:
    """Designs of the classes that are to be fitted."""
    every = designs(keys)
    return {key: design for key, design in every.items() if not context.classes or key.split(".")[0] in context.classes}


def _pull(context: Context, usual: float) -> float:
    return NAMED_PULL if context.classes else usual


def _put(rows: Rows, seen: np.ndarray, context: Context, store: Store) -> None:
    """Entries fitted on the steps seen, into the store."""
    table, chips = rows.table, context.catalog.chips
    pooled = _pooled(rows.merged(seen), store, context)
    # Scales of other GPUs stand on the figures that the family has.
    there = store.files["family", "gpu"].entries if context.classes else ()
    store.put(
        "family",
        "gpu",
        {
            key: replace(entry, evidence={"source": SOURCE})
            for key, entry in pooled.items()
            if key in _designs(pooled, context) and key.startswith(POOLED) and key not in there
        },
    )
    for chip in np.unique(table.chip[seen].astype(str)):
        mine = table.chip == chip
        # What stays is as the chip has it; what is fitted starts from what chips have in common.
        start = {**pooled, **entries_of(store.calibration(chips[chip]), table.parts)} if context.classes else pooled
        entries, _ = fit_steps(
            rows.merged(seen & mine),
            _designs(table.parts, context),
            start,
            pull=_pull(context, CHIP_PULL),
            smooth=SMOOTH,
            iterations=80,
        )
        errors = _log_errors(table.of(mine), {**start, **entries})
        entries = _described(entries, errors[rows.kept[mine]])
        store.put("chip", chip, entries)
        # GeForce cards have half the tensor rate of the professional ones beside them: only what carries over is shared.
        shared = {key: entry for key, entry in entries.items() if key.startswith(POOLED)}
        store.put("architecture", names_of(chips[chip])["architecture"], shared)


def final(context: Context, store: Store, errors: pd.DataFrame) -> pd.DataFrame:
    """The errors of steps on known GPUs as the figures are at last: the piece "language" moves some of them."""
    table = rows_of(context.reference, context.cache, tuple(context.catalog.chips)).table
    result = np.zeros(len(table))
    for chip in np.unique(table.chip.astype(str)):
        mine = table.chip == chip
        result[mine] = _log_errors(table.of(mine), entries_of(store.calibration(context.catalog.chips[chip]), table.parts))
    assert (errors.device[: len(table)] == table.chip).all()  # fit reports them first, in this order
    return errors.assign(log_error=np.concatenate([result, errors.log_error[len(table) :]]))


def unseen(context: Context, before: Store) -> pd.DataFrame:
    """Each GPU forecast by figures pooled over the other ones."""
    rows = rows_of(context.reference, context.cache, tuple(context.catalog.chips))
    results = []
    for chip in np.unique(rows.table.chip.astype(str)):
        errors = fit(context, before.copy(but=_names(chip, context), without=frozenset({chip})))
        results.append(errors[(errors.split == "unseen device") & errors.group.str.contains("torch")].assign(level="family"))
    own = _architectures(rows.table, ~rows.kept, context)
    store = vision_others.without_scales(before, own)
    _put(rows, ~rows.kept, context, store)
    results.append(vision_others.unseen(context, store, own))
    return pd.concat(results, ignore_index=True)


def _architectures(table: Table, seen: np.ndarray, context: Context) -> set[str]:
    """Those with figures of their own."""
    return {names_of(context.catalog.chips[chip])["architecture"] for chip in set(table.chip[seen])}


def _names(chip: str, context: Context) -> set[str]:
    """What a chip is called below its family: files of these hold its own rows."""
    names = names_of(context.catalog.chips[chip])
    return {names[level] for level in ("chip", "architecture", "generation")}


def _pooled(table: Table, store: Store, context: Context) -> dict[str, CalibrationEntry]:
    """Entries of the family for every class of the table; each chip counts as much as any other.

    Only the pooled classes are fitted, beside the figures that the family has of the others: what stands for a GPU without
    steps must add up with those.
    """
    chip = context.catalog.chips[str(table.chip[0])]
    known = entries_of(store.calibration(chip, levels=("family",)), table.parts)
    wanted = _designs(table.parts, context)
    wanted = {key: design for key, design in wanted.items() if key.startswith(POOLED) or key not in known}
    priors = {**known, **{key: design.start(known.get(key)) for key, design in wanted.items()}}
    counts = pd.Series(table.chip.astype(str)).map(pd.Series(table.chip.astype(str)).value_counts()).to_numpy(float)
    entries, _ = fit_steps(
        table, wanted, priors, weight=1 / counts, pull=_pull(context, POOLED_PULL), smooth=SMOOTH, iterations=50
    )
    return {**known, **entries}


def _log_errors(table: Table, entries: Mapping[str, CalibrationEntry]) -> np.ndarray:
    """log(measured / forecast) of each step."""
    return np.log(table.seconds / table.step_s(entries))


def _described(entries: Mapping[str, CalibrationEntry], left: np.ndarray) -> dict[str, CalibrationEntry]:
    """Entries with the spread and evidence of the steps left out of their fit. left: log(measured / forecast) of these."""
    evidence = {"source": SOURCE, "kept_out": f"{len(left)} steps, median error {np.median(np.abs(np.expm1(left))):.1%}"}
    return {key: replace(entry, spread=spread(left), evidence=evidence) for key, entry in entries.items()}


def _errors(rows: Rows, split: Iterable[str], errors: np.ndarray) -> pd.DataFrame:
    table, strategies = rows.table, [case.strategy for case in rows.cases]
    columns = {
        "model": table.model,
        "group": table.group,
        "precision": [strategy.precision for strategy in strategies],
        "mode": [strategy.mode for strategy in strategies],
        "compiled": [strategy.compile for strategy in strategies],
        "seconds": table.seconds,
        "level": "chip",
    }
    return error_rows("vision", "", "", errors, **columns, family="gpu").assign(split=split, device=table.chip)


PIECE = Piece("vision", fit, unseen, final)
