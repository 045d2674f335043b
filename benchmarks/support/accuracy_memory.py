"""The memory part of docs/accuracy.md: forecast bytes against CPU runs that recorded every allocation, and against what
published GPU runs say they held."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.check_published import forecast
from benchmarks.support import accuracy_text, published
from gpuwise.cost.forecast import MemoryForecast
from gpuwise.cost.parameters import parameters
from gpuwise.hardware.catalog import Catalog
from gpuwise.strategy import Mesh, Strategy

# Rows of cpu_ground_truth.csv that a preset is: the others mask, force eager attention, or are models of their own.
CPU_MODELS = {"resnet50": ("resnet50", "image_size"), "bert_base": ("bert-base", "seq_len")}
NOT_A_READING_GIB = 0.5  # published tables print 0 where nvidia-smi gave nothing


@dataclass(frozen=True)
class Reading:
    """A published row's memory in GiB, and the forecast of it."""

    job: str
    chip_id: str
    devices: int
    precision: str
    measured_gib: float
    memory: MemoryForecast

    @property
    def ratio(self) -> float:
        return self.memory.device_bytes / 2**30 / self.measured_gib


def part(reference: Path, cache: Path) -> str:
    """The memory part."""
    catalog = Catalog()
    cpu, skipped = _cpu_rows(reference)
    readings = _nvidia_smi(reference, cache, catalog)
    groups: dict[str, list[Reading]] = {}
    for reading in readings:
        groups.setdefault(f"{reading.job}, {reading.precision}", []).append(reading)
    adapters = len(pd.read_csv(reference / "memory" / "t4_finetune.csv"))
    head = ["job", "rows", "forecast / measured, median", "10th to 90th percentile", "forecast below measured"]
    lines = [
        [name, str(len(rows)), f"{np.median(r := [x.ratio for x in rows]):.2f}",
         f"{np.quantile(r, 0.1):.2f} to {np.quantile(r, 0.9):.2f}", f"{sum(v < 1 for v in r)} of {len(r)}"]
        for name, rows in sorted(groups.items())
    ]  # fmt: skip
    return accuracy_text.MEMORY.format(
        cpu=accuracy_text.table(["run", "measured, bytes", "forecast, bytes", "error"], cpu),
        cpu_skipped=skipped,
        nvidia_smi=accuracy_text.table(head, lines),
        llama=accuracy_text.table(
            ["run", "measured, GiB reserved", "forecast, GiB reserved", "ratio"], _torchtitan(reference, catalog)
        ),
        adapters=adapters,
    )


def _cpu_rows(reference: Path) -> tuple[list[list[str]], int]:
    """A line for each run that a preset expresses, and how many are none."""
    from benchmarks.memory_on_cpu import predicted_bytes
    from gpuwise.job import resolve
    from gpuwise.tracing.record import record

    table = pd.read_csv(reference / "memory" / "cpu_ground_truth.csv")
    lines = []
    for row in table.itertuples():
        if row.model not in CPU_MODELS or row.attention == "eager" or row.mask:
            continue
        preset, size = CPU_MODELS[row.model]
        precision = {"fp32": "fp32", "amp-bfloat16": "amp-bf16"}[row.precision]
        optimizer = {"AdamW": "adamw", "SGD": "momentum"}[row.optimizer]
        strategy = Strategy(precision=precision, micro_batch=int(row.batch), optimizer=optimizer)
        job = resolve(preset, **{size: int(row.seq_or_image)})
        predicted = predicted_bytes(record(job, strategy, substrate="cpu"))
        name = f"{preset}, {row.batch} × {row.seq_or_image:.0f}, {precision}, {optimizer}"
        if "foreach" in row.optimizer_args:
            name += " (foreach)"
        error = predicted / row.measured_peak_bytes - 1
        shown = f"{error:+.5%}" if abs(error) < 1e-3 else f"{error:+.2%}"
        lines.append([name, f"{row.measured_peak_bytes:,}", f"{predicted:,}", shown])
    return lines, len(table) - len(lines)


def _nvidia_smi(reference: Path, cache: Path, catalog: Catalog) -> list[Reading]:
    """Rows of benchmarks.published that print the memory nvidia-smi showed."""
    table = pd.read_csv(reference / "published" / "end_to_end.csv", low_memory=False)
    table["subsets"] = table.subsets.astype(str)
    table = table[table.subsets.str.contains("lambda_(?:single|multi)_gpu") & (table.peak_mem_gb > NOT_A_READING_GIB)]
    found = []
    for index in table.index:
        for case in published._lambda(table.loc[[index]]):
            memory = forecast(case, cache, catalog, parameters()).memory
            measured = float(table.peak_mem_gb[index])
            found.append(Reading(case.job, case.chip_id, case.count, case.strategy.precision, measured, memory))
    return found


def _torchtitan(reference: Path, catalog: Catalog) -> list[list[str]]:
    """Llama 3.1 8B under eager FSDP (pytorch/torchtitan), by the preset at the precision and recompute it used."""
    from gpuwise.cost.memory import memory_forecast
    from gpuwise.job import resolve
    from gpuwise.trace.sharded import data_parallel, recorded_as
    from gpuwise.tracing import trace_family

    table = pd.read_csv(reference / "published" / "end_to_end.csv", low_memory=False)
    chosen = (table.source_repo == "pytorch/torchtitan") & (table.model == "Llama 3.1 8B") & (table.precision == "bf16")
    table = table[chosen & (table.compile_or_fused_notes == "eager") & table.peak_mem_gb.notna()]
    chip, lines = catalog.chip("h100-96gb-hbm2e"), []
    for row in table.itertuples():
        devices = int(row.num_gpus)
        strategy = Strategy(
            precision="amp-bf16",
            micro_batch=int(row.batch_per_gpu),
            recompute=row.recompute,
            optimizer="adamw",
            mesh=Mesh(dp_shard=devices),
        )
        job = resolve("llama3-8b", seq_len=int(row.seq_len))
        family = trace_family(job, recorded_as(strategy).but(micro_batch=1, accumulation=1, mesh=Mesh()))
        trace, _ = data_parallel(family.at(micro_batch=strategy.micro_batch, accumulation=1), strategy)
        memory = memory_forecast(trace, chip, devices=devices, capacity_bytes=None, parameters=parameters())
        gib = memory.peak_reserved_bytes / 2**30
        lines.append([f"llama3-8b, FSDP on {devices}, {row.recompute} recompute", f"{row.peak_mem_gb:.1f}", f"{gib:.1f}",
                      f"{gib / row.peak_mem_gb:.2f}"])  # fmt: skip
    return lines
