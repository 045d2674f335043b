"""Fits matrix products: bf16, fp8 and fp32, by chip, architecture and family. Piece "gemm"."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import pandas as pd

from benchmarks.fit.gemm_tables import engine_products, fp32_products, hardware_of_rows
from benchmarks.fit.operator_tables import Rows
from benchmarks.fit.pieces import Context, Piece
from benchmarks.fit.store import Store, error_rows, spread
from gpuwise.cost.calibration import CalibrationEntry, names_of
from gpuwise.cost.kernels import gemm
from gpuwise.cost.kernels.shapes import KernelTerms
from gpuwise.measure.fitting.design import CurveDesign, Design, TermDesign
from gpuwise.measure.fitting.entry_model import ParameterBlock
from gpuwise.measure.fitting.solve import MeasuredSeconds, solve

KEYS = ("gemm.bf16", "gemm.fp8", "gemm.fp32", "gemm_batched.fp32")
# Where nothing else is known of batched products, they run as single ones do: the same libraries, the same tiles.
BATCHED = {"gemm.bf16": "gemm_batched.bf16", "gemm.fp8": "gemm_batched.fp8"}
# Architectures without rows whose libraries run another's kernels.
SIBLINGS = {"sm_100": ("sm_103",)}
# The P4's single products ran throttled, by up to three times and by when they ran (its batched ones did not): figures of
# others are not fitted on them.
UNSTEADY = {"gemm.fp32": ("p4",)}
POOLED_ROWS = 1500  # of each chip where several are fitted together
SOURCES = {
    "bf16": "ai-dynamo/aiconfigurator (Apache-2.0, 2026-08): linear layers of vLLM",
    "fp32": "sitar-lab/NeuSight (MIT): torch 2.1, CUDA 12.1",
}


def _powers(low: int, high: int) -> tuple[float, ...]:
    return tuple(2.0**i for i in range(low, high + 1))


# Slopes: `waves`, `unit_bytes` and `unit_results` are what their terms are made of, k is a factor of its terms, `cached` only
# adds: all of them keep a larger product from being quicker.
DEPTH = CurveDesign("k", _powers(4, 16), (-0.7, 0.1))
DESIGN = Design(
    {
        "compute": TermDesign((0.3, 4.0), (DEPTH, CurveDesign("waves", _powers(-9, 10), (-0.8, 0.2)))),
        "compute_even": TermDesign((0.3, 4.0), (DEPTH, CurveDesign("even_waves", _powers(-9, 10), (-0.5, 0.2)))),
        "compute_chain": TermDesign((0.01, 4.0), (CurveDesign("k", _powers(4, 16), (-0.9, 0.1)),)),
        "memory": TermDesign(
            (0.5, 4.0),
            (CurveDesign("unit_bytes", _powers(5, 23), (-0.8, 0.2)), CurveDesign("cached", _powers(-5, 1), (0.0, 1.0))),
        ),
        "results": TermDesign((0.02, 10.0), (CurveDesign("unit_results", _powers(4, 24), (-0.8, 0.2)),)),
    },
    sharpness=(1.5, 8.0),
    floor_s=(0.8e-6, 4e-6),
)
# Batches: cuBLAS 12.1 took 128 x 128 for 99 % of the A100's rows, 128 x 64 for all of the P100's, at every size.
FIXED_TILES = {
    f"compute_{tile}": TermDesign((0.02, 4.0), (DEPTH, CurveDesign(f"waves_{tile}", _powers(-2, 12), (-0.8, 0.2))))
    for tile in ("128x128", "64x128")
}
# What units read through their cache tells products of one chip apart, and misleads on other chips.
OPERANDS = {"operands": TermDesign((0.1, 10.0), (DEPTH,))}
CAST = Design({"rows": TermDesign((0.01, 10.0)), "memory": TermDesign((0.5, 5.0))}, floor_s=(0.5e-6, 4e-6))


@dataclass(frozen=True)
class Table:
    """Rows of one key with their terms. cast: of the input's cast to fewer bits, where the measured layer does it."""

    rows: Rows
    terms: KernelTerms
    cast: KernelTerms | None

    def of(self, chosen: np.ndarray) -> Table:
        return Table(self.rows.of(chosen), _of(self.terms, chosen), _of(self.cast, chosen) if self.cast else None)

    def fit(self, prior: CalibrationEntry | None, weight: np.ndarray) -> tuple[CalibrationEntry, np.ndarray]:
        """An entry, and log(measured / forecast) of every row; those of weight 0 are not fitted. prior: the level's above."""
        fixed_tiles = FIXED_TILES if self.rows.op[0] == "bmm" else {}
        design = replace(DESIGN, terms={**DESIGN.terms, **fixed_tiles, **(OPERANDS if prior else {})})
        start = design.start()
        prior = replace(prior, terms={**start.terms, **prior.terms}) if prior else start
        index, one = np.arange(len(weight)), np.ones(len(weight))
        blocks = {"gemm": ParameterBlock(self.terms, one * self.terms.floor, index, one)}
        if self.cast:
            blocks["cast"] = ParameterBlock(self.cast, one * self.cast.floor, index, one)
        designs = {"gemm": design, "cast": CAST}
        measured = MeasuredSeconds(self.rows.seconds, weight, self.rows.launch_s, self.rows.least_s)
        entries, log_errors = solve(
            blocks,
            {key: designs[key] for key in blocks},
            {"gemm": prior, "cast": CAST.start()},
            measured,
            pull=1e-5,
            smooth=1e-3,
        )
        return entries["gemm"], log_errors


def _of(terms: KernelTerms, chosen: np.ndarray) -> KernelTerms:
    seconds = {name: x[chosen] for name, x in terms.seconds.items()}
    features = {name: x[chosen] for name, x in terms.features.items()}
    return KernelTerms(seconds, features, np.broadcast_to(terms.floor, chosen.shape)[chosen])


@lru_cache
def table(context: Context, key: str) -> Table:
    kind, figure = key.split(".")
    if figure == "fp32":
        rows = fp32_products(context.reference, "bmm" if kind == "gemm_batched" else "linear")
    else:
        rows = engine_products(context.reference, figure)
    hardware, cast = hardware_of_rows(rows.chip, context.catalog, figure), None
    if figure == "fp8":
        cast_bytes = rows.shapes.m * rows.shapes.k * (2 + rows.shapes.element_bytes)
        # A block of threads a row: its start is what short rows take.
        cast = KernelTerms({"rows": rows.shapes.m * 1e-8, "memory": cast_bytes / hardware.bandwidth_bytes_per_s}, {})
    return Table(rows, gemm.terms(rows.shapes, hardware), cast)


def _weights(rows: Rows, chips: list[str]) -> np.ndarray:
    """Each chip counts the same; what is kept out counts nothing."""
    weight = np.zeros(len(rows.chip))
    for chip in chips:
        own = (rows.chip == chip) & ~rows.kept_out
        step = max(1, own.sum() // POOLED_ROWS) if len(chips) > 1 else 1
        chosen = np.flatnonzero(own)[::step]
        weight[chosen] = 1 / len(chosen)
    return weight


def _pooled(
    table: Table, chips: list[str], prior: CalibrationEntry | None = None, others: np.ndarray | None = None
) -> tuple[CalibrationEntry, np.ndarray]:
    """An entry for some chips; log errors of the rows `others`, none by default."""
    weight = _weights(table.rows, chips)
    requested = np.zeros(len(weight), dtype=bool) if others is None else others
    needed = (weight > 0) | requested
    entry, log_errors = table.of(needed).fit(prior, weight[needed])
    return entry, log_errors[requested[needed]]


def _architecture(context: Context, chip: str) -> str:
    return names_of(context.catalog.chip(chip))["architecture"]


@lru_cache
def _left_out(context: Context, key: str) -> pd.DataFrame:
    """Errors of every architecture from the family's figures fitted without it."""
    result, frames = table(context, key), []
    chips = sorted(set(result.rows.chip))
    for architecture in sorted({_architecture(context, chip) for chip in chips}):
        own = [chip for chip in chips if _architecture(context, chip) == architecture]
        rest = [chip for chip in chips if chip not in own and chip not in UNSTEADY.get(key, ())]
        if rest:
            requested = np.isin(result.rows.chip, own)
            _, log_errors = _pooled(result, rest, others=requested)
            frames.append(_errors(key, "unseen device", result.rows.of(requested), log_errors))
    return pd.concat(frames, ignore_index=True)


def _errors(key: str, split: str, rows: Rows, log_errors: np.ndarray) -> pd.DataFrame:
    frames = [
        error_rows(
            "gemm",
            split,
            chip,
            log_errors[rows.chip == chip],
            kernel=key,
            seconds=rows.seconds[rows.chip == chip],
            host_bound=rows.seconds[rows.chip == chip] < 3 * rows.least_s[rows.chip == chip],
        )
        for chip in sorted(set(rows.chip))
    ]
    return pd.concat(frames, ignore_index=True)


def fit(context: Context, store: Store) -> pd.DataFrame:
    return pd.concat([_fit(context, store, key) for key in KEYS], ignore_index=True)


def _fit(context: Context, store: Store, key: str) -> pd.DataFrame:
    result, frames = table(context, key), []
    chips = sorted(set(result.rows.chip) - store.without)
    family, _ = _pooled(result, [chip for chip in chips if chip not in UNSTEADY.get(key, ())])
    # Forecasts of devices never seen need no interval, only the figures.
    carried = None if store.without else _left_out(context, key)
    if carried is not None:
        family = _stated(family, key, carried.log_error.to_numpy(), chips, "architectures left out")
    _put(store, "family", "gpu", key, family)
    for architecture in sorted({_architecture(context, chip) for chip in chips}):
        own = [chip for chip in chips if _architecture(context, chip) == architecture]
        pooled = family
        if len(own) > 1:
            pooled, _ = _pooled(result, own, family)
        for chip in own:
            rows = result.rows.chip == chip
            entry, log_errors = _pooled(result, [chip], pooled, rows)
            kept = result.rows.kept_out[rows]
            frames += [
                _errors(key, split, result.rows.of(rows).of(where), log_errors[where])
                for split, where in (("fitted", ~kept), ("unseen shapes", kept))
            ]
            entry = _stated(entry, key, log_errors[kept], [chip], "shapes kept out")
            _put(store, "chip", chip, key, entry)
        pooled = entry if len(own) == 1 else pooled
        if set(own) <= set(UNSTEADY.get(key, ())):
            continue
        if carried is not None:
            pooled = _stated(pooled, key, _of_siblings(result, own, carried), own, "chips left out")
        for name in (architecture, *SIBLINGS.get(architecture, ())):
            _put(store, "architecture", name, key, pooled)
    return pd.concat(frames, ignore_index=True)


def _of_siblings(found: Table, chips: list[str], carried: pd.DataFrame) -> np.ndarray:
    """Errors of chips of one architecture from each other's figures; from other architectures' where there is one chip."""
    errors = []
    for chip in chips:
        rest = [other for other in chips if other != chip]
        if rest:
            errors.append(_pooled(found, rest, others=found.rows.chip == chip)[1])
    return np.concatenate(errors) if errors else carried.log_error.to_numpy()


def _stated(entry: CalibrationEntry, key: str, errors: np.ndarray, chips: list[str], what: str) -> CalibrationEntry:
    source = SOURCES["fp32" if key.endswith("fp32") else "bf16"]
    median = float(np.median(np.abs(np.expm1(-errors))))
    evidence = {"source": source, "chips": ", ".join(chips), "error": f"median {median:.1%} of {len(errors)} rows, {what}"}
    return replace(entry, spread=spread(errors), evidence=evidence)


def _put(store: Store, level: str, of: str, key: str, entry: CalibrationEntry) -> None:
    entries = {key: entry}
    if key in BATCHED:
        evidence = {**(entry.evidence or {}), "note": "single products' figures: no batched ones were measured"}
        low, high = (float(f"{side**1.5:.3g}") for side in entry.spread)
        entries[BATCHED[key]] = replace(entry, spread=(low, high), evidence=evidence)
    store.put(level, of, entries)


def unseen(context: Context, before: Store) -> pd.DataFrame:
    return pd.concat([_left_out(context, key) for key in KEYS], ignore_index=True)


PIECE = Piece("gemm", fit, unseen)
