"""Pieces `vector` and `conv`: kernels that move bytes, and fp32 convolutions, from tables of measured operators.

A family's figures come from the chips that an unknown chip is likeliest to be like, Volta and later; Pascal has a generation
of its own. Classes that no table has run at the chip's elementwise bandwidth times a factor of their class.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from benchmarks.fit import operator_tables as tables
from benchmarks.fit.operator_tables import Rows
from benchmarks.fit.pieces import Context, Piece
from benchmarks.fit.store import Store, error_rows, spread
from gpuwise.cost.calibration import CalibrationEntry, Term
from gpuwise.cost.kernels.classes import terms_of
from gpuwise.cost.kernels.shapes import KernelTerms
from gpuwise.measure.fitting.design import CurveDesign, Design, TermDesign
from gpuwise.measure.fitting.entry_model import ParameterBlock
from gpuwise.measure.fitting.solve import MeasuredSeconds, solve

SOURCE = "fp32 operators on single GPUs, PyTorch 2.1 (sitar-lab/NeuSight)"
# Chips left out together for forecasts of a device never seen: the two A100s are one device with other memory.
UNSEEN = (
    ("a100-40gb-pcie", "a100-80gb-pcie"),
    ("v100-pcie-32gb",),
    ("t4",),
    ("p4",),
    ("p100-pcie-16gb",),
    ("mi100",),
    ("mi210",),
)
# Levels between the family and a chip, with the chips of the tables that speak for them.
GROUPS = (
    ("generation", "Pascal", ("p100-pcie-16gb", "p4")),
    ("architecture", "sm_70", ("v100-pcie-32gb",)),
    ("architecture", "sm_80", ("a100-40gb-pcie", "a100-80gb-pcie")),
    ("architecture", "CDNA 1.0", ("mi100",)),
    ("architecture", "CDNA 2.0", ("mi210",)),
)
FEWEST_ROWS = 30  # of a chip with figures of its own
OLD = frozenset({"p100-pcie-16gb", "p4"})  # no part of the family
# AMD's backward layer norm takes twice as long as NVIDIA's, which most chips without a table are.
APART = {"norm_layer_backward": OLD | {"mi100", "mi210"}}


def _powers(low: int, high: int, step: int = 1) -> tuple[float, ...]:
    return tuple(2.0**i for i in range(low, high, step))


# What the cache holds need not come from memory.
_FROM_CACHE = (0.5, 0.55, 0.7, 1.0, 1.1, 1.15)
_CACHED = CurveDesign("cached", (0.125, 0.25, 0.5, 1.0, 2.0, 4.0), (0.0, 1.0))
_LENGTH = CurveDesign("length", _powers(6, 14), (-0.5, 0.7))
_ROW = TermDesign((0.01, 10.0), (CurveDesign("length", _powers(6, 14, 2), (0.0, 0.9)),))
DESIGNS = {
    "elementwise": Design({"memory": TermDesign((0.95, 1.8), (_CACHED,))}, floor_s=(2e-6, 4e-6)),
    "softmax": Design({"memory": TermDesign((0.95, 4.0), (_CACHED, _LENGTH)), "rows": _ROW}, floor_s=(2e-6, 4e-6)),
    "softmax_backward": Design({"memory": TermDesign((0.95, 4.0), (_CACHED, _LENGTH))}, floor_s=(2e-6, 4e-6)),
    "norm_layer": Design({"memory": TermDesign((0.95, 4.0), (_CACHED, _LENGTH)), "rows": _ROW}, floor_s=(2e-6, 6e-6)),
    "norm_layer_backward": Design({"memory": TermDesign((0.95, 8.0), (_CACHED,))}, floor_s=(4e-6, 1e-5)),
    "embedding": Design({"memory": TermDesign((0.95, 5.0))}, floor_s=(2e-6, 1e-5)),
    "conv.fp32": Design(
        {
            "winograd": TermDesign(
                (0.5, 4.0),
                (
                    CurveDesign("k", _powers(4, 15, 2), (-0.4, 0.2)),
                    CurveDesign("winograd_waves", _powers(-8, 10, 2), (-0.5, 0.1)),
                    CurveDesign("n", _powers(2, 12, 2), (-0.3, 0.2)),
                ),
            ),
            "memory": TermDesign((0.8, 4.0)),
        },
        sharpness=(1.0, 8.0),
        floor_s=(2e-6, 1e-5),
    ),
}
# Time at equal bytes relative to elementwise kernels, for classes that no table here has; whole steps change some of them on
# chips that have steps. random: dropout forward in fp32_model_op_traces. The others as the first fit of whole steps gave them.
LIKE_ELEMENTWISE = {
    "copy": 1.0,
    "reduction": 1.25,
    "random": 1.25,
    "optimizer": 1.1,
    "pool": 1.7,
    "scatter": 2.8,
    "sort": 8.4,
    "norm_batch": 1.6,
    "norm_batch_backward": 2.1,
    "norm_group": 1.07,  # of three passes; a batch norm's 1.6 are of the two that it is counted with
    "norm_group_backward": 1.26,  # of five
    "other": 1.7,
}
# fp32 convolutions that no table has. Backward: two passes, the weights' with less to share out; assumed.
LIKE_CONV = {"conv_backward.fp32": 1.2, "conv_grouped.fp32": 1.0, "conv_grouped_backward.fp32": 1.2}


@dataclass(frozen=True)
class Table:
    """Rows of one class with what terms they have. key: of the entry."""

    key: str
    rows: Rows
    terms: KernelTerms

    @classmethod
    def of(cls, key: str, rows: Rows, context: Context) -> Table:
        kind = key.split(".")[0]
        return cls(key, rows, terms_of(kind, rows.shapes, rows.hardware(context.catalog, kind=kind)))

    def chips(self, without: Iterable[str]) -> list[str]:
        return sorted({str(chip) for chip in self.rows.chip} - set(without))

    def of_chips(self, chips: Iterable[str]) -> np.ndarray:
        return np.isin(self.rows.chip, list(chips))

    def block(self, rows: np.ndarray) -> ParameterBlock:
        seconds = {name: values[rows] for name, values in self.terms.seconds.items()}
        features = {name: values[rows] for name, values in self.terms.features.items()}
        return ParameterBlock(
            KernelTerms(seconds, features), self.rows.shapes.kernels[rows], np.arange(rows.sum()), np.ones(rows.sum())
        )

    def measured(self, rows: np.ndarray) -> MeasuredSeconds:
        """Each chip counts as much as any other, and each operator of a chip."""
        groups = pd.Series([f"{c} {o}" for c, o in zip(self.rows.chip[rows], self.rows.op[rows], strict=True)])
        weight = 1 / groups.map(groups.value_counts()).to_numpy(float)
        return MeasuredSeconds(self.rows.seconds[rows], weight, self.rows.launch_s[rows], self.rows.least_s[rows])

    def log_errors(self, entry: CalibrationEntry) -> np.ndarray:
        """log(measured / forecast) with the host's share of a measurement in the forecast. Shape (rows,)."""
        kernel = self.rows.shapes.kernels * entry.floor_s + entry.join_s(entry.parts_s(self.terms.seconds, self.terms.features))
        return np.log(self.rows.seconds / np.maximum(self.rows.launch_s + kernel, self.rows.least_s))


def _fit(table: Table, rows: np.ndarray, prior: CalibrationEntry, *, pull: float, most: int = 2000) -> CalibrationEntry:
    """rows: mask. At most `most` of them, every so many, so that a fit stays short."""
    chosen = np.flatnonzero(rows)
    mask = np.zeros(len(rows), dtype=bool)
    mask[chosen[:: max(1, -(-len(chosen) // most))]] = True
    entries, _ = solve(
        {"": table.block(mask)}, {"": DESIGNS[table.key]}, {"": prior}, table.measured(mask), pull=pull, iterations=100
    )
    return entries[""]


def _start(design: Design) -> CalibrationEntry:
    """The prior of a family: caches are faster than memory, which only the A100's is large enough to show behind the host."""
    entry = design.start()
    terms = {
        name: replace(term, curves=tuple(replace(c, factor=_FROM_CACHE) if c.over == "cached" else c for c in term.curves))
        for name, term in entry.terms.items()
    }
    return replace(entry, terms=terms)


def fit_groups(table: Table, without: frozenset[str]) -> dict[tuple[str, str], CalibrationEntry]:
    """Entries by (level, of): the family's, and those of GROUPS."""
    known = ~table.rows.kept_out & ~table.of_chips(without)
    family = _fit(table, known & ~table.of_chips(APART.get(table.key, OLD)), _start(DESIGNS[table.key]), pull=1e-4)
    results = {("family", "gpu"): family}
    for level, of, members in GROUPS:
        rows = known & table.of_chips(members)
        if rows.any():
            results[level, of] = _fit(table, rows, family, pull=1e-3)
    return results


def fit_chips(table: Table, without: frozenset[str]) -> dict[tuple[str, str], CalibrationEntry]:
    """Those of fit_groups, and each chip's that has rows enough."""
    result = fit_groups(table, without)
    for chip in table.chips(without):
        rows = ~table.rows.kept_out & table.of_chips([chip])
        if rows.sum() >= FEWEST_ROWS:
            result["chip", chip] = _fit(table, rows, applying(result, chip), pull=1e-3)
    return result


def applying(found: Mapping[tuple[str, str], CalibrationEntry], chip: str) -> CalibrationEntry:
    """The most telling entry for a chip."""
    groups = [found[level, of] for level, of, members in GROUPS if chip in members and (level, of) in found]
    return found.get(("chip", chip)) or (groups or [found["family", "gpu"]])[0]


def _errors(piece: str, table: Table, entries: Mapping[str, CalibrationEntry], split: np.ndarray) -> pd.DataFrame:
    """entries: by chip. split: of each row. host_bound: rows of which a third or more may be the host's."""
    frames = []
    for chip, entry in entries.items():
        mask = table.of_chips([chip])
        rows = table.rows.of(mask)
        frame = error_rows(
            piece,
            "",
            chip,
            table.log_errors(entry)[mask],
            kernel=table.key,
            op=rows.op,
            seconds=rows.seconds,
            host_bound=rows.seconds < 3 * rows.least_s,
        )
        frames.append(frame.assign(split=split[mask]))
    return pd.concat(frames, ignore_index=True)


def unseen_errors(piece: str, table: Table, without: frozenset[str] = frozenset()) -> pd.DataFrame:
    """Errors of each device by fits without any row of it, nor of `without`. The host is known: see operator_tables."""
    frames, split = [], np.full(len(table.rows.chip), "unseen device")
    for chips in UNSEEN:
        there = [chip for chip in table.chips(without) if chip in chips]
        if there:
            result = fit_groups(table, without | frozenset(chips))
            frames.append(_errors(piece, table, {chip: applying(result, chip) for chip in there}, split))
    return pd.concat(frames, ignore_index=True)


def _put(store: Store, piece: str, table: Table) -> pd.DataFrame:
    """Fits, puts the entries into the store, and gives the errors of fitted and kept-out rows and of devices never seen, which
    set the interval of what is carried from chip to chip."""
    result = fit_chips(table, store.without)
    chips = table.chips(store.without)
    split = np.where(table.rows.kept_out, "unseen shapes", "fitted")
    errors = _errors(piece, table, {chip: applying(result, chip) for chip in chips}, split)
    unseen = unseen_errors(piece, table, store.without)
    carried = spread(_of_kernels(unseen), least=0.1)
    members = {("family", "gpu"): chips, **{(level, of): list(known) for level, of, known in GROUPS}}
    for (level, of), entry in result.items():
        own = _of_kernels(errors[(errors.split == "unseen shapes") & (errors.device == of)])
        interval = spread(own, least=0.05) if level == "chip" and len(own) >= FEWEST_ROWS else carried
        count = int(table.of_chips(members.get((level, of), [of])).sum())
        evidence = {"source": SOURCE, "rows": str(count)}
        store.put(level, of, {table.key: replace(entry, spread=interval, evidence=evidence)})
    return pd.concat([errors, unseen], ignore_index=True)


def _of_kernels(errors: pd.DataFrame) -> np.ndarray:
    """Errors of rows that say more of the kernel than of the host, each device as often as any other."""
    parts = [part.log_error.to_numpy() for _, part in errors[~errors.host_bound].groupby("device")]
    return np.concatenate([np.resize(part, 500) for part in parts]) if parts else np.zeros(0)


def _merged(one: Mapping[str, Rows], other: Mapping[str, Rows]) -> dict[str, Rows]:
    return {name: Rows.joined([part[name] for part in (one, other) if name in part]) for name in {**one, **other}}


def _tables(context: Context) -> list[Table]:
    rows = _merged(tables.vector(context.reference), tables.in_models(context.reference))
    return [Table.of(key, rows[key], context) for key in DESIGNS if key in rows]


def fit_vector(context: Context, store: Store) -> pd.DataFrame:
    errors = pd.concat([_put(store, "vector", table) for table in _tables(context)], ignore_index=True)
    for (level, of), entries in [(key, dict(entries)) for key, entries in store.changed.items()]:
        if "elementwise" in entries:
            store.put(level, of, {name: like(entries["elementwise"], factor) for name, factor in LIKE_ELEMENTWISE.items()})
        if "softmax" in entries:
            loss = {"source": "as softmax, over rows as long as a vocabulary"}
            store.put(level, of, {"loss": replace(entries["softmax"], evidence=loss)})
    return errors


def like(entry: CalibrationEntry, factor: float, other: str = "elementwise") -> CalibrationEntry:
    """An entry that takes a factor of the time of another class."""
    terms = {name: Term(round(term.scale * factor, 4), term.curves) for name, term in entry.terms.items()}
    low, high = entry.spread
    evidence = {"source": f"as {other}, times {factor:g}"}
    return replace(entry, terms=terms, spread=(round(low * 0.8, 3), round(high * 1.25, 3)), evidence=evidence)


def fit_conv(context: Context, store: Store) -> pd.DataFrame:
    table = _conv(context)
    errors = _put(store, "conv", table)
    for (level, of), entries in [(key, dict(entries)) for key, entries in store.changed.items()]:
        if table.key in entries:
            store.put(level, of, {name: like(entries[table.key], factor, "conv.fp32") for name, factor in LIKE_CONV.items()})
    return errors


def _conv(context: Context) -> Table:
    return Table.of("conv.fp32", tables.convolutions(context.reference), context)


VECTOR, CONV = Piece("vector", fit_vector), Piece("conv", fit_conv)
