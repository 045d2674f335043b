"""Fits matrix products: bf16, fp8 and fp32, by chip, architecture and family. Piece "gemm"."""

from __future__ import annotations

from collections.abc import Mapping
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
from gpuwise.cost.kernels.shapes import USUAL_CLOCK_HZ, KernelTerms
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
CLOCKS_A_ROW = 1000.0
SOURCES = {
    "bf16": "ai-dynamo/aiconfigurator (Apache-2.0, 2026-08): linear layers of vLLM",
    "fp32": "sitar-lab/NeuSight (MIT): torch 2.1, CUDA 12.1",
}


def _powers(low: int, high: int) -> tuple[float, ...]:
    return tuple(2.0**i for i in range(low, high + 1))


# Slopes: `waves`, `unit_bytes` and `unit_results` are what their terms are made of, k is a factor of its terms, `cached` only
# adds: all of them keep a larger product from being quicker.
DEPTH = CurveDesign("k", _powers(4, 16), (-0.7, 0.1))
# Each step along the depth waits for the one before, each wave of tiles for its first operands: nothing hides either, and both
# last as many clocks on one chip as on another. So traffic needs no curve: a chip with more bandwidth has no less to wait for.
DESIGN = Design(
    {
        "compute": TermDesign((0.3, 4.0), (DEPTH, CurveDesign("waves", _powers(-9, 10), (-0.8, 0.2)))),
        "compute_even": TermDesign((0.3, 4.0), (DEPTH, CurveDesign("even_waves", _powers(-9, 10), (-0.5, 0.2)))),
        "traffic": TermDesign((0.5, 4.0)),
        "latency_depth": TermDesign((0.01, 10.0), (CurveDesign("k", _powers(4, 16), (-0.9, 0.1)),)),
        "latency_waves": TermDesign((0.01, 10.0)),
    },
    sharpness=(1.5, 8.0),
    floor_s=(0.8e-6, 4e-6),
)
# Batches: cuBLAS 12.1 took 128 x 128 for 99 % of the A100's rows, 128 x 64 for all of the P100's, at every size.
FIXED_TILES = {
    f"compute_{tile}": TermDesign((0.02, 4.0), (DEPTH, CurveDesign(f"waves_{tile}", _powers(-2, 12), (-0.8, 0.2))))
    for tile in ("128x128", "64x128")
}
# What tells products of one chip apart, and misleads on other chips: what its units read and write through their cache, and
# how traffic of each size runs. `memory`, which has curves for it, is instead of `traffic`.
OWN = {
    "memory": TermDesign(
        (0.5, 4.0),
        (CurveDesign("unit_bytes", _powers(5, 23), (-0.8, 0.2)), CurveDesign("cached", _powers(-5, 1), (0.0, 1.0))),
    ),
    "operands": TermDesign((0.1, 10.0), (DEPTH,)),
    "results": TermDesign((0.02, 10.0), (CurveDesign("unit_results", _powers(4, 24), (-0.8, 0.2)),)),
}
# vLLM's cast takes each row with a block of threads: clocks of a multiprocessor for a row, and for a number of it.
CAST = Design(
    {"rows": TermDesign((0.01, 10.0)), "numbers": TermDesign((0.001, 10.0)), "memory": TermDesign((0.5, 5.0))},
    sharpness=(1.0, 8.0),
    floor_s=(0.5e-6, 4e-6),
)


@dataclass(frozen=True)
class Table:
    """Rows of one key with their terms. cast: of the input's cast to fewer bits, where the measured layer does it."""

    rows: Rows
    terms: KernelTerms
    cast: KernelTerms | None

    def of(self, chosen: np.ndarray) -> Table:
        return Table(self.rows.of(chosen), _of(self.terms, chosen), _of(self.cast, chosen) if self.cast else None)

    def fit(self, prior: CalibrationEntry | None, weight: np.ndarray) -> dict[str, CalibrationEntry]:
        """Entries of the product, `gemm`, and of the `cast`. Rows of weight 0 are not fitted. prior: the level's above."""
        chosen = weight > 0
        part, weight = self.of(chosen), weight[chosen]
        fixed_tiles = FIXED_TILES if self.rows.op[0] == "bmm" else {}
        terms = {**DESIGN.terms, **fixed_tiles, **(OWN if prior else {})}
        design = replace(DESIGN, terms={name: term for name, term in terms.items() if not (prior and name == "traffic")})
        start = design.start()
        priors = {"gemm": replace(prior, terms={**start.terms, **prior.terms}) if prior else start, "cast": CAST.start()}
        designs, index, one = {"gemm": design, "cast": CAST}, np.arange(len(weight)), np.ones(len(weight))
        blocks = {key: ParameterBlock(each, one * each.floor, index, one) for key, each in part.parts.items()}
        measured = MeasuredSeconds(part.rows.seconds, weight, part.rows.launch_s, part.rows.least_s)
        return solve(blocks, {key: designs[key] for key in blocks}, priors, measured, pull=1e-5, smooth=1e-3)[0]

    @property
    def parts(self) -> dict[str, KernelTerms]:
        return {"gemm": self.terms, **({"cast": self.cast} if self.cast else {})}

    def log_errors(self, entries: Mapping[str, CalibrationEntry]) -> np.ndarray:
        """log(measured / forecast) of every row."""
        seconds = self.rows.launch_s
        for key, terms in self.parts.items():
            entry = entries[key]
            seconds = seconds + entry.floor_s * terms.floor + entry.join_s(entry.parts_s(terms.seconds, terms.features))
        return np.log(self.rows.seconds / np.maximum(seconds, self.rows.least_s))


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
        rows_s = rows.shapes.m / hardware.units / hardware.clock_hz
        cast_bytes = rows.shapes.m * rows.shapes.k * (2 + rows.shapes.element_bytes)
        cast = KernelTerms(
            {
                "rows": rows_s * CLOCKS_A_ROW,
                "numbers": rows_s * rows.shapes.k,
                "memory": cast_bytes / hardware.bandwidth_bytes_per_s,
            },
            {},
            floor=USUAL_CLOCK_HZ / hardware.clock_hz,
        )
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
    entries = table.fit(prior, _weights(table.rows, chips))
    return entries["gemm"], np.empty(0) if others is None else table.of(others).log_errors(entries)


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
