"""Piece "cpu": kernels of CPUs, fitted on whole steps.

Published: timm's results (huggingface/pytorch-image-models, Apache-2.0) of one image at a time, compiled by Inductor, on a Core
i9-10940X (586 models, PyTorch 2.2 and 2.4) and a Core i7-12700H. Own: eager steps on one core of a Zen 4 server, inference
and training (benchmarks.cpu_steps). Entries of the family stand on all three, those of a chip on its own rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks import cpu_steps
from benchmarks.fit.cpu_designs import CONTRACTIONS, OTHERS, SORT_SLOWER, design_of, prior_of
from benchmarks.fit.pieces import Context, Piece
from benchmarks.fit.split import kept_out_model
from benchmarks.fit.steps import Step, Table, entries_of, fit_steps, table_of
from benchmarks.fit.store import Store, error_rows, spread
from gpuwise.cost.calibration import CalibrationEntry, Term
from gpuwise.errors import GpuwiseError
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.detect import Cpu, local_cpu_chip
from gpuwise.measure.fitting.design import Design
from gpuwise.strategy import Strategy
from gpuwise.trace import Trace, load, save

CHIPS = {"i9_10940x": "i9-10940x", "CPU Intel i9-10940X": "i9-10940x", "CPU Intel i7-12700H": "i7-12700h"}
# What benchmarks.cpu_steps ran on: one core of an EPYC of family 25, model 17 (Zen 4).
HERE_CPU = Cpu("AMD EPYC", "AMD", 1, 1, 2.596e9, ("avx2", "avx512-halved"), {"L3": 32 * 2**20})
HERE = replace(local_cpu_chip(HERE_CPU, Catalog()), id="zen4-core")
EVIDENCE = "timm on i9-10940X and i7-12700H (one image, compiled); benchmarks/results/cpu_steps.csv (eager, one Zen 4 core)"

# Chosen by models left out among the fitted ones.
PULL, SMOOTH = 1e-3, 0.1

# --- rows ---


def rows(reference: Path) -> pd.DataFrame:
    """Published steps: chip, model, image_size, torch, seconds; a row that both files have once."""
    table = pd.read_parquet(reference / "published" / "timm.parquet")
    table = table[table.device.isin(CHIPS) & (table.precision == "fp32") & (table.batch == 1)]
    first = table.assign(chip=table.device.map(CHIPS), seconds=table.step_ms / 1e3)
    table = pd.read_csv(reference / "published" / "end_to_end.csv", low_memory=False)
    table = table[table.subsets.astype(str).str.contains("timm_infer_cpu")]
    torch = table.source_path.str.extract(r"pt(\d)(\d)(\d)").agg(".".join, axis=1)
    second = table.assign(chip=table.gpu.map(CHIPS), seconds=1 / table.throughput, torch=torch)
    columns = ["chip", "model", "image_size", "torch", "seconds"]
    joined = pd.concat([first[columns], second[columns]]).astype({"image_size": int})
    return joined.drop_duplicates(["chip", "model", "image_size", "torch"]).reset_index(drop=True)


def steps(context: Context) -> Iterator[Step]:
    yield from published(context)
    yield from measured_here(context)


def published(context: Context) -> Iterator[Step]:
    strategy = Strategy(precision="fp32", micro_batch=1, mode="infer", compile=True)
    for row in rows(context.reference).itertuples():
        name = f"timm_{row.model}-image_size{row.image_size}-fp32-none-infer-compile-cpu"
        trace = recorded(context.cache / f"{name}.npz", f"timm:{row.model}", strategy, image_size=row.image_size)
        if trace is not None:
            yield Step(context.catalog.chip(row.chip), trace, row.seconds, row.model, "vision, compiled")


def measured_here(context: Context) -> Iterator[Step]:
    if not cpu_steps.RESULTS.exists():
        return
    for row in pd.read_csv(cpu_steps.RESULTS).itertuples():
        name = f"{row.job}-seq_len{row.seq_len}-{row.samples}-fp32-{row.mode}-one-core".replace(":", "_")
        strategy = cpu_steps.strategy_of(row.samples, row.mode)
        trace = recorded(context.cache / f"{name}.npz", row.job, strategy, seq_len=row.seq_len or None)
        if trace is not None:
            group = "one core, compiled" if row.mode == "compile" else f"one core, {row.mode}"
            yield Step(HERE, trace.with_accumulation(1), row.median_s, row.job.removeprefix("timm:"), group)


def recorded(path: Path, job: str, strategy: Strategy, **sizes: int | None) -> Trace | None:
    """The step with the CPU's kernels, recorded where the cache lacks it; None where it cannot be."""
    if not path.exists():
        from gpuwise.job import resolve
        from gpuwise.tracing import record

        try:
            save(record(resolve(job, **sizes), strategy, target="cpu"), path)
        except GpuwiseError:
            return None
    trace = load(path)
    assert isinstance(trace, Trace)
    return trace


# --- the fit ---


def fit(context: Context, store: Store) -> pd.DataFrame:
    table = table_of(step for step in steps(context) if step.chip.id not in store.without)
    kept = np.array([kept_out_model(model) for model in table.model])
    chips = sorted(set(CHIPS.values()) & set(table.chip))
    family = fitted_family(table.of(~kept))
    wide = spread(np.concatenate([of_others(table, chip) for chip in chips]))
    store.put("family", "cpu", {key: stated(entry, wide) for key, entry in family.items()} | assumed(family, wide))
    for chip in chips:
        own = table.of((table.chip == chip) & ~kept)
        entries = solved(own, family)
        unseen = table.of((table.chip == chip) & kept)
        store.put("chip", chip, {key: stated(entry, spread(errors(unseen, entries))) for key, entry in entries.items()})
    return pd.concat(list(reported(table, kept, context, store)), ignore_index=True)


def fitted_family(table: Table) -> dict[str, CalibrationEntry]:
    """Entries for all CPUs: first those of compiled steps, then those of eager ones and of training, pulled towards them."""
    compiled = table.of(np.array([group.endswith("compiled") for group in table.group]))
    start = {key: design.start() for key, design in designs(table).items()}
    first = solved(compiled, start, weight=balanced(compiled.chip))
    priors = {key: prior_of(key, first) or entry for key, entry in start.items()}
    return solved(table, priors, weight=balanced(table.chip))


def solved(
    table: Table, priors: Mapping[str, CalibrationEntry], weight: np.ndarray | None = None
) -> dict[str, CalibrationEntry]:
    entries, _ = fit_steps(table, designs(table), priors, weight=weight, pull=PULL, smooth=SMOOTH, iterations=150)
    return entries


def designs(table: Table) -> dict[str, Design]:
    return {key: design_of(key) for key in table.parts}


def balanced(chip: np.ndarray) -> np.ndarray:
    """Weights under which a chip with four times the rows of another counts twice as much."""
    _, index, count = np.unique(chip, return_inverse=True, return_counts=True)
    weight: np.ndarray = (1 / np.sqrt(count))[index]
    return weight


def errors(table: Table, entries: Mapping[str, CalibrationEntry]) -> np.ndarray:
    """log(measured / forecast) of every step."""
    return np.log(table.seconds / table.step_s(entries))


def of_others(table: Table, chip: str) -> np.ndarray:
    """Errors of a chip's steps with entries that no row of it was fitted to."""
    of_chip = table.chip == chip
    kept = np.array([kept_out_model(model) for model in table.model])
    return errors(table.of(of_chip), fitted_family(table.of(~of_chip & ~kept)))


def stated(entry: CalibrationEntry, interval: tuple[float, float]) -> CalibrationEntry:
    """With its interval: kernels are off by more than the steps they add up to; twice the logarithm is assumed."""
    return replace(entry, spread=(round(interval[0] ** 2, 3), round(interval[1] ** 2, 3)), evidence={"source": EVIDENCE})


def assumed(known: Mapping[str, CalibrationEntry], interval: tuple[float, float]) -> dict[str, CalibrationEntry]:
    """Entries for what no row decides: like the class most like it; products in bf16 like those in fp32."""
    results = {}
    for name in [f"{name}.fp32" for name in CONTRACTIONS] + list(OTHERS):
        if name not in known:
            entry = prior_of(name, known) or known["gemm.fp32"]
            if name == "sort":
                entry = replace(entry, terms=entry.terms | {"memory": Term(SORT_SLOWER)})
            results[name] = replace(stated(entry, interval), evidence={"source": "assumed: like a class that was measured"})
    half = {name: entry for name, entry in {**known, **results}.items() if name.endswith(".fp32")}
    source = {"source": "assumed: half as near to their own peak as in fp32, as tiles of bf16 are harder to feed"}
    for name, entry in half.items():
        slower = {
            key: replace(t, scale=2 * t.scale if key.startswith("compute") else t.scale) for key, t in entry.terms.items()
        }
        results[name.replace(".fp32", ".bf16")] = replace(stated(entry, interval), terms=slower, evidence=source)
    return results


def reported(table: Table, kept: np.ndarray, context: Context, store: Store) -> Iterator[pd.DataFrame]:
    for chip in dict.fromkeys(table.chip):
        for split, chosen in (("fitted", ~kept), ("unseen models", kept)):
            part = table.of(chosen & (table.chip == chip))
            if len(part):
                result = HERE if chip == HERE.id else context.catalog.chip(chip)
                entries = entries_of(store.calibration(result), part.parts)
                level = "family" if chip == HERE.id else "chip"
                yield error_rows("cpu", split, chip, errors(part, entries), **described(part, level))


def unseen(context: Context, before: Store) -> pd.DataFrame:
    """Each published CPU forecast by the family's entries, fitted without it."""
    table, result = table_of(steps(context)), []
    for chip in sorted(set(CHIPS.values())):
        part = table.of(table.chip == chip)
        result.append(error_rows("cpu", "unseen device", chip, of_others(table, chip), **described(part, "family")))
    return pd.concat(result, ignore_index=True)


def described(table: Table, level: str) -> dict[str, object]:
    mode = ["train" if group.endswith("train") else "infer" for group in table.group]
    return {
        "model": table.model,
        "group": table.group,
        "family": "cpu",
        "level": level,
        "mode": mode,
        "precision": "fp32",
        "seconds": table.seconds,
        "compiled": [group.endswith("compiled") for group in table.group],
    }


PIECE = Piece("cpu", fit, unseen)
