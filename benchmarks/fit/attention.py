"""Piece `attention`: kernels of inference engines from tables of measured ones, and those of PyTorch from published speeds.

The tables (ai-dynamo/aiconfigurator) are forward kernels of inference engines: `attention_engine` is a prompt, with its keys
written to a paged cache; `attention_encoder` all to all; `attention_decode` one query a sequence. Where PyTorch runs other
kernels, `attention`, `attention_cudnn` and `attention_efficient` have figures of their own (attention_published).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from benchmarks.fit.attention_published import published
from benchmarks.fit.attention_tables import CHIPS, engine_rows, hardware, shapes
from benchmarks.fit.pieces import Context, Piece
from benchmarks.fit.split import kept_out_shapes
from benchmarks.fit.store import Store, error_rows, spread
from gpuwise.cost.calibration import CalibrationEntry, Term, names_of
from gpuwise.cost.kernels.classes import terms_of
from gpuwise.cost.kernels.shapes import KernelTerms
from gpuwise.hardware.catalog import Catalog
from gpuwise.measure.fitting.design import CurveDesign, Design, TermDesign
from gpuwise.measure.fitting.entry_model import ParameterBlock
from gpuwise.measure.fitting.solve import MeasuredSeconds, solve

SOURCE = "ai-dynamo/aiconfigurator (Apache-2.0, 2026-08), attention"
SHAPE = ["batch_size", "queries", "keys", "num_heads", "num_key_value_heads", "head_dim", "window_size"]
MOST_ROWS = {"family": 600, "generation": 1200, "architecture": 2500, "chip": 6000}  # of a chip, so that a fit stays short
PULL = {"family": 1e-4, "generation": 2e-4, "architecture": 2e-4, "chip": 2e-4}
# Architectures without rows whose libraries run another's kernels.
SIBLINGS = {"sm_100": ("sm_103",)}
FEW_ROWS = 300  # fewer have the less to say against the level above
FEW_SPREAD = (0.7, 1.45)  # where no twenty rows of a chip are kept out: assumed
WIDER = {"generation": 1.0, "family": 1.15}  # how much wider than the errors on architectures left out


def _powers(low: int, high: int, step: int = 2) -> tuple[float, ...]:
    return tuple(2.0**i for i in range(low, high + 1, step))


# Kernels pad heads to sizes that they are made for, which 72 and 80 are not.
_HEAD = (64.0, 72.0, 80.0, 128.0, 256.0, 512.0)
_PER_KEY, _PER_HEAD = CurveDesign("keys", _powers(5, 15), (-0.7, 0.1)), CurveDesign("head", _HEAD, (-0.6, 3.0))
_WAVES = CurveDesign("waves", (2**-6, 2**-4, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 32.0, 128.0, 512.0), (-0.7, 0.1))
_GROWS = CurveDesign("head", _HEAD, (0.0, 3.0))
FORWARD = Design(
    {
        "compute": TermDesign((1.0, 8.0), (_PER_KEY, _PER_HEAD, _WAVES)),
        "compute_last": TermDesign((0.2, 4.0), (_PER_KEY, _PER_HEAD)),
        "compute_tiles": TermDesign((0.01, 20.0), (_GROWS,)),
        "compute_heads": TermDesign((0.01, 20.0), (_GROWS,)),
        "memory_queries": TermDesign((0.3, 8.0), (CurveDesign("query_bulk", _powers(-8, 8), (-0.7, 0.2)),)),
        "memory_keys": TermDesign((0.3, 20.0), (CurveDesign("key_bulk", _powers(-8, 8), (-0.7, 0.2)),)),
    },
    sharpness=(1.0, 8.0),
    floor_s=(2e-6, 1.2e-5),
)
BACKWARD = Design(
    {
        "compute": TermDesign((1.0, 8.0), (_PER_KEY, _PER_HEAD, _WAVES)),
        "compute_last": TermDesign((0.2, 4.0)),
        "memory": TermDesign((1.0, 4.0)),
    },
    sharpness=(1.0, 8.0),
    floor_s=(2e-6, 4e-6),
)
_SIZES = (64.0, 128.0, 256.0, 512.0)
_UP = CurveDesign("head", _SIZES, (0.0, 0.5))
_LONGER = CurveDesign("keys", _powers(5, 13), (0.0, 0.5))
# What stays in the cache does not come from memory.
_CACHED = CurveDesign("cached", _powers(-3, 3, 1), (0.0, 2.0))
_BULK = CurveDesign("bulk", _powers(-8, 8), (-0.8, 0.1))
DECODE = Design(
    {
        "memory": TermDesign((0.5, 8.0), (_CACHED, _BULK)),
        "compute_tasks": TermDesign((0.01, 50.0), (_UP, _LONGER)),
        "compute_grouped_tasks": TermDesign((0.01, 50.0), (_UP, _LONGER)),
        "compute_latency": TermDesign((0.01, 20.0), (CurveDesign("keys", _powers(4, 13, 1), (0.0, 1.0)),)),
    },
    sharpness=(1.0, 8.0),
    floor_s=(1e-6, 1.2e-5),
)
ENGINE: Mapping[str, tuple[str, str, Design]] = {  # key: table, type of the cache, form
    "attention_engine.bf16": ("prefill", "bfloat16", FORWARD),
    "attention_engine.fp8": ("prefill", "fp8", FORWARD),
    "attention_encoder.bf16": ("encoder", "bfloat16", FORWARD),
    "attention_decode.bf16": ("decode", "bfloat16", DECODE),
    "attention_decode.fp8": ("decode", "fp8", DECODE),
}
PYTORCH: Mapping[str, tuple[str, bool]] = {  # key: kernel, backward
    "attention.bf16": ("flash", False),
    "attention_backward.bf16": ("flash", True),
    "attention_cudnn.bf16": ("cudnn", False),
    "attention_cudnn_backward.bf16": ("cudnn", True),
}


class Rows:
    """MeasuredSeconds kernels of one class, with their terms. key: of the entry; frame: see attention_tables."""

    def __init__(self, key: str, frame: pd.DataFrame, catalog: Catalog) -> None:
        self.key, self.frame, self.catalog = key, frame.reset_index(drop=True), catalog
        kernel_class, numerics = key.split(".")
        self.terms = terms_of(kernel_class, shapes(frame, numerics), hardware(frame, catalog, numerics))
        self.kernels = (3.0 if "backward" in key else 1.0) * np.broadcast_to(self.terms.floor, len(frame))
        self.kept = kept_out_shapes(*(frame[name].to_numpy(float) for name in SHAPE))
        self.seconds = frame.seconds.to_numpy(float)
        self.names = {chip: names_of(catalog.chip(chip)) for chip in frame.chip.unique()}

    def named(self, level: str) -> np.ndarray:
        return self.frame.chip.map({chip: names[level] for chip, names in self.names.items()}).to_numpy(str)

    def fit(self, design: Design, prior: CalibrationEntry, chosen: np.ndarray, level: str) -> CalibrationEntry:
        """On the chosen rows (a mask) that are not kept out. Each chip counts as much as any other."""
        rows = np.flatnonzero(chosen & ~self.kept)
        if not len(rows):
            return prior
        chip = self.frame.chip.to_numpy(str)[rows]
        parts = [rows[chip == name] for name in np.unique(chip)]
        parts = [part[:: -(-len(part) // MOST_ROWS[level])] for part in parts]
        rows, weight = np.concatenate(parts), np.concatenate([np.full(len(part), 1 / len(part)) for part in parts])
        seconds, features = self.terms.seconds, self.terms.features
        terms = KernelTerms({name: x[rows] for name, x in seconds.items()}, {name: x[rows] for name, x in features.items()})
        block = ParameterBlock(terms, self.kernels[rows], np.arange(len(rows)), np.ones(len(rows)))
        entries, _ = solve(
            {self.key: block},
            {self.key: design},
            {self.key: prior},
            MeasuredSeconds(self.seconds[rows], weight),
            pull=PULL[level] * max(1.0, FEW_ROWS / len(rows)),
            smooth=1e-3,
            iterations=200,
        )
        return entries[self.key]

    def log_errors(self, entry: CalibrationEntry, chosen: np.ndarray) -> np.ndarray:
        parts = entry.parts_s(self.terms.seconds, self.terms.features)
        return np.log(self.seconds / (self.kernels * entry.floor_s + entry.join_s(parts)))[chosen]

    def left_out(self, design: Design, prior: CalibrationEntry) -> dict[str, np.ndarray]:
        """Errors on each chip, of a fit to the chips of all other architectures."""
        errors, architecture = {}, self.named("architecture")
        for name in np.unique(architecture):
            others = architecture != name
            if not others.any():
                continue
            entry = self.fit(design, prior, others, "family")
            for chip in np.unique(self.frame.chip[~others]):
                errors[chip] = self.log_errors(entry, (self.frame.chip == chip).to_numpy())
        return errors


def fit_levels(rows: Rows, design: Design, prior: CalibrationEntry, store: Store, source: str) -> pd.DataFrame:
    """Puts entries from the family's to the chips' into the store; error rows of the chips' own."""
    left_out = rows.left_out(design, prior)
    far = spread(np.concatenate([*left_out.values()]) if left_out else np.log([0.5, 2.0]), least=0.1)
    evidence = {"source": source, "rows": f"{len(rows.frame)}, of which one shape in five kept out"}
    everything = np.ones(len(rows.frame), dtype=bool)
    above = {"gpu": rows.fit(design, prior, everything, "family")}
    wide = (round(far[0] / WIDER["family"], 3), round(far[1] * WIDER["family"], 3))
    store.put("family", "gpu", {rows.key: replace(above["gpu"], spread=wide, evidence=evidence)})
    table, upper = [], "family"
    for level in ("generation", "architecture", "chip"):
        fitted = {}
        names, uppers = rows.named(level), rows.named(upper)
        for name in np.unique(names):
            chosen = names == name
            fitted[name] = rows.fit(design, above[uppers[chosen][0]], chosen, level)
            kept = rows.log_errors(fitted[name], chosen & rows.kept)
            near = spread(kept, least=0.05) if len(kept) >= 20 else FEW_SPREAD
            between = (round(float(np.sqrt(near[0] * far[0])), 3), round(float(np.sqrt(near[1] * far[1])), 3))
            stated = {"generation": far, "architecture": between, "chip": near}[level]
            # One architecture of Blackwell says nothing of the other, so a generation needs several.
            if level != "generation" or len(np.unique(rows.named("architecture")[chosen])) > 1:
                for like in (name, *(SIBLINGS.get(name, ()) if level == "architecture" else ())):
                    store.put(level, like, {rows.key: replace(fitted[name], spread=stated, evidence=evidence)})
            if level == "chip":
                for split, mask in (("fitted", chosen & ~rows.kept), ("unseen shapes", chosen & rows.kept)):
                    table.append(error_rows("attention", split, name, rows.log_errors(fitted[name], mask), kernel=rows.key))
        above, upper = fitted, level
    return pd.concat(table, ignore_index=True)


def engine(context: Context, store: Store, key: str) -> Rows:
    table, cache, _ = ENGINE[key]
    frame = engine_rows(context.reference, table, cache)
    return Rows(key, frame[~frame.chip.isin(store.without)], context.catalog)


def pytorch(context: Context, store: Store, key: str) -> Rows:
    kernel, backward = PYTORCH[key]
    frame = published(kernel, backward=backward)
    if key == "attention.bf16":  # engines have no other kernel for this chip than FlashAttention-2 either
        prompts = engine_rows(context.reference, "prefill", "bfloat16")
        prompts = prompts[(prompts.queries >= 1024) & (prompts.window_size == 0)]  # the cache they write costs little there
        same = pd.concat([engine_rows(context.reference, "encoder", "bfloat16"), prompts])
        frame = pd.concat([frame, same[same.chip == CHIPS["rtx_pro_6000_server"]]], ignore_index=True)
    return Rows(key, frame[~frame.chip.isin(store.without)], context.catalog)


def fit(context: Context, store: Store) -> pd.DataFrame:
    tables = []
    for key, (_, _, design) in ENGINE.items():
        tables.append(fit_levels(engine(context, store, key), design, design.start(), store, SOURCE))
    encoder = store.files["family", "gpu"].entries["attention_encoder.bf16"]
    for key, (_, backward) in PYTORCH.items():
        rows, design, prior = pytorch(context, store, key), FORWARD, encoder
        if backward:
            design, prior = BACKWARD, BACKWARD.start()
        tables.append(fit_levels(rows, design, prior, store, "; ".join(rows.frame.source.dropna().unique())))
    derived(store)
    return pd.concat(tables, ignore_index=True)


def unseen(context: Context, before: Store) -> pd.DataFrame:
    """Every architecture of the engines' tables forecast by the others."""
    tables = []
    for key, (_, _, design) in ENGINE.items():
        for chip, errors in engine(context, Store(), key).left_out(design, design.start()).items():
            tables.append(error_rows("attention", "unseen device", chip, errors, kernel=key))
    return pd.concat(tables, ignore_index=True)


def slower(entry: CalibrationEntry, factor: float, spread_: tuple[float, float], **evidence: str) -> CalibrationEntry:
    """The same kernel model with arithmetic that takes `factor` times as long."""
    terms = {
        name: replace(term, scale=float(f"{term.scale * factor:.4g}")) if name.startswith("compute") else term
        for name, term in entry.terms.items()
    }
    return replace(entry, terms=terms, spread=spread_, evidence=evidence)


def at(scale: float, spread_: tuple[float, float], source: str, *, backward: bool = False) -> CalibrationEntry:
    """An entry of one rate: 1 / scale of the peak on whole tiles."""
    memory = {"memory": Term(1.5)} if backward else {"memory_queries": Term(1.5), "memory_keys": Term(1.5)}
    return CalibrationEntry(
        {"compute": Term(scale), "compute_last": Term(scale), **memory}, 2.0, 3e-6, spread_, {"source": source}
    )


# Time of the memory-efficient kernel over FlashAttention-2's: 2.3 forward on consumer Blackwell (NVIDIA/TileGym, pull request
# 49), 2.7 forward and backward on H200 (NVIDIA/cudnn-frontend, Llama-3.2-1B training by kernel, difference at 16,384 tokens),
# 2.9 forward on A100 (facebookresearch/xformers, pull request 587: 64 TFLOP/s at heads of 64).
EFFICIENT = 2.6
EFFICIENT_SOURCE = "2.6 times FlashAttention-2: TileGym 49, cudnn-frontend Llama-3.2-1B on H200, xformers 587"
V100_SOURCE = "Dao-AILab/flash-attention, benchmarks/v100_comparison (GPT of 512 to 2048 tokens, differences): 29, 19 TFLOP/s"
XFORMERS_SOURCE = "facebookresearch/xformers, pull requests 387 and 587: about 20 TFLOP/s in float32 on A100 (3 TF32 passes)"
SM_120_SOURCE = "1.1 times cuDNN's, between FlashAttention-2's lag forward and huggingface/transformers, pull request 48163"
MI300X_SOURCE = "ROCm/flash-attention, issue 142: 350 and 205 TFLOP/s at heads of 128"


def derived(store: Store) -> None:
    """Entries that follow from others or from single figures: wide intervals, and the source says why."""
    wide, wider = (0.6, 1.7), (0.5, 2.0)
    files = store.files
    for key in ("attention.bf16", "attention_backward.bf16"):  # Ada runs the kernels of Ampere without HBM
        if (known := files.get(("architecture", "sm_86"))) and key in known.entries:
            store.put("architecture", "sm_89", {key: slower(known.entries[key], 1.0, wide, source="as on sm_86")})
    if (known := files.get(("architecture", "sm_120"))) and "attention_cudnn_backward.bf16" in known.entries:
        like = slower(known.entries["attention_cudnn_backward.bf16"], 1.1, wide, source=SM_120_SOURCE)
        store.put("architecture", "sm_120", {"attention_backward.bf16": like})
    for (level, of), file in list(files.items()):
        for key in ("attention.bf16", "attention_backward.bf16"):
            if level != "chip" and key in store.changed.get((level, of), {}):
                named = key.replace("attention", "attention_efficient")
                store.put(level, of, {named: slower(file.entries[key], EFFICIENT, wide, source=EFFICIENT_SOURCE)})
    # chip, numerics, forward and backward time on whole tiles over that at the peak, interval, source
    single = (
        ("family", "gpu", "fp32", 2.0, 2.6, wider, XFORMERS_SOURCE),
        ("family", "gpu", "tf32", 7.5, 10.0, wider, XFORMERS_SOURCE),
        ("architecture", "sm_80", "fp32", 1.05, 1.6, wide, XFORMERS_SOURCE),
        ("architecture", "sm_70", "fp16", 4.1, 6.2, wide, V100_SOURCE),
        ("architecture", "sm_75", "fp16", 4.1, 6.2, wider, f"as on Volta: {V100_SOURCE}"),
        ("architecture", "CDNA 3.0", "bf16", 3.6, 6.2, wide, MI300X_SOURCE),
    )
    for level, of, numerics, forward, backward, interval, source in single:
        for name in ("attention", "attention_efficient"):
            store.put(level, of, {f"{name}.{numerics}": at(forward, interval, source)})
            store.put(level, of, {f"{name}_backward.{numerics}": at(backward, interval, source, backward=True)})


PIECE = Piece("attention", fit, unseen)
