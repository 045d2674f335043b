"""Peak memory that others published, and the forecast of it.

    python -m benchmarks.memory_published --reference FOLDER --cache FOLDER [--only TEXT]

Every row of published/end_to_end.csv with a peak is either expressed as a job and forecast, or counted with the reason
why it cannot be. Projects mean different things by peak: tensors (PyTorch's allocated), the allocator's segments
(reserved), or what nvidia-smi shows; each row is compared with the same of the forecast.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.check_published import forecast
from benchmarks.support import memory_jobs, published
from gpuwise.cost.forecast import MemoryForecast
from gpuwise.cost.memory.device import memory_forecast
from gpuwise.cost.parameters import parameters
from gpuwise.errors import GpuwiseError
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.job import Job, resolve
from gpuwise.strategy import Mesh, Strategy
from gpuwise.trace.parallel.data_parallel import data_parallel
from gpuwise.trace.parallel.variant import recorded_as
from gpuwise.tracing import record

NOT_A_READING_GIB = 0.5  # Lambda's tables print 0 where nvidia-smi gave nothing
GB_IN_GIB = 1e9 / 2**30
CHIPS = {
    "A100-40GB": "a100-40gb-sxm",
    "A100-40GB-SXM": "a100-40gb-sxm",
    "A10G-24GB": "a10g",
    "RTX4090": "rtx-4090",
    "RTX-A6000": "rtx-a6000",
    "H100-96GB-HBM2e-500W": "h100-96gb-hbm2e",
}


@dataclass(frozen=True)
class Row:
    """A published peak and its forecast, in GiB. quantity: allocated | reserved | device (nvidia-smi)."""

    source: str
    name: str
    quantity: str
    measured_gib: float
    forecast_gib: float

    @property
    def ratio(self) -> float:
        return self.forecast_gib / self.measured_gib


def compare(reference: Path, cache: Path, only: str = "") -> tuple[list[Row], Counter[tuple[str, str]]]:
    """Rows forecast, and (source, reason) of those that are not."""
    table = pd.read_csv(reference / "published" / "end_to_end.csv", low_memory=False)
    table["subsets"] = table.subsets.astype(str)
    table = table[table.peak_mem_gb.notna() & table.source_repo.str.contains(only, case=False)]
    catalog, left_out = Catalog(), Counter[tuple[str, str]]()
    rows: list[Row] = []
    for source, part in table.groupby("source_repo"):
        how = {
            "lambdal/deeplearning-benchmark": _lambda,
            "pytorch/torchtitan": _torchtitan,
            "pytorch/torchtune": _torchtune,
            "Lightning-AI/litgpt": _litgpt,
        }.get(str(source))
        if how is None:
            left_out[str(source), OTHERS.get(str(source), "not expressed")] += len(part)
            continue
        for index in part.index:
            result = how(part.loc[[index]], cache, catalog)
            if isinstance(result, str):
                left_out[str(source), result] += 1
            else:
                rows.append(result)
    return rows, left_out


OTHERS = {
    "facebookresearch/detectron2": "detection: what it keeps (proposals) depends on the data, and is assumed",
    "KellerJordan/modded-nanogpt": "a model, kernels and optimizer of its own for every record",
    "bigscience-workshop/bigscience": "tensor and pipeline parallel under Megatron-LM",
    "Oneflow-Inc/DLPerf": "not PyTorch",
    "huggingface/accelerate": "inference spread over devices",
    "huggingface/peft": "batch and length are not given",
}


def _lambda(row: pd.DataFrame, cache: Path, catalog: Catalog) -> Row | str:
    measured = float(row.peak_mem_gb.iloc[0])
    if measured <= NOT_A_READING_GIB:
        return "no reading (0 GiB)"
    if row.model.iloc[0] not in ("ResNet-50 v1.5", "BERT-large SQuAD"):
        return "GNMT and Transformer-XL: models that are not here"
    known = row.assign(subsets="lambda_multi_gpu", step_time_s=row.step_time_s.fillna(1.0))  # memory alone is compared
    case = next(iter(published._lambda(known)), None)
    if case is None:
        return "fp16 by apex O2, more than 8 GPUs, or a card that the catalog lacks"
    if measured > (catalog.chip(case.chip_id).memory_bytes or 0) / 2**30:
        return "prints more memory than the card has"
    try:
        memory = forecast(case, cache, catalog, parameters()).memory
    except GpuwiseError as error:
        return error.what
    name = f"{case.job}, {case.strategy.precision}, {case.count} × {case.chip_id}"
    return Row("Lambda", name, "device", measured, _gib(memory, "device"))


def _torchtitan(row: pd.DataFrame, cache: Path, catalog: Catalog) -> Row | str:
    values: Any = next(row.itertuples())
    if values.model != "Llama 3.1 8B" or int(values.seq_len) != 8192:
        return "tensor, pipeline or context parallel"
    if values.precision == "fp8":
        return "fp8 under FSDP"
    compiled = values.compile_or_fused_notes != "eager"
    strategy = Strategy(
        precision="amp-bf16",
        micro_batch=int(values.batch_per_gpu),
        recompute=values.recompute,
        optimizer="adamw",
        mesh=Mesh(dp_shard=int(values.num_gpus)),
        compile=compiled,
    )
    try:
        memory = _memory(resolve("llama3-8b", seq_len=8192), strategy, CHIPS[values.gpu], catalog)
    except GpuwiseError as error:
        return error.what
    kind = "compiled" if compiled else "eager"
    return Row(
        "torchtitan",
        f"Llama 3.1 8B, FSDP on {strategy.mesh.dp_shard}, {kind}",
        "reserved",
        float(values.peak_mem_gb),
        _gib(memory, "reserved"),
    )


def _torchtune(row: pd.DataFrame, cache: Path, catalog: Catalog) -> Row | str:
    values: Any = next(row.itertuples())
    if values.model != "Llama 3.1 8B":
        return "FSDP with frozen or offloaded weights"
    method = values.model_detail.lower().replace("full finetune", "full")
    strategy = Strategy(precision="bf16", micro_batch=2, recompute="full")
    if method == "full":  # PagedAdamW8bit: its state is managed memory, outside the allocator
        strategy = strategy.but(optimizer="sgd", optimizer_in_backward=True)
    else:
        strategy = strategy.but(adapter=method, adapter_rank=memory_jobs.ADAPTER_RANK)
    try:
        memory = _memory(memory_jobs.torchtune(2048), strategy, CHIPS[values.gpu], catalog)
    except GpuwiseError as error:
        return error.what
    return Row(
        "torchtune",
        f"Llama 3.1 8B, {method}, {CHIPS[values.gpu]}",
        "reserved",
        float(values.peak_mem_gb),
        _gib(memory, "reserved"),
    )


def _litgpt(row: pd.DataFrame, cache: Path, catalog: Catalog) -> Row | str:
    values: Any = next(row.itertuples())
    if str(values.task) != "train" and "pretrain" not in str(values.task) and "tune" not in str(values.task):
        return "generation: a growing cache, not a step"
    name, detail, batch = values.model, str(values.model_detail), int(values.batch_per_gpu)
    chip = CHIPS.get(values.gpu)
    if name not in memory_jobs.DECODERS or chip is None:
        return "a model that is not here"
    if name == "TinyLlama 1.1B":
        return _tiny_llama(values, chip, catalog)
    if "lora" not in detail:
        return "adapters other than LoRA" if "adapter" in detail else "generation: a growing cache, not a step"
    if int(values.num_gpus) > 1:
        return "FSDP with frozen weights"
    quantized = "nf4-dq" if "nf4-dq" in detail else "nf4" if "nf4" in detail else ""
    seq_len = int(next(word for word in str(values.seq_len).split() if word.isdigit()))
    job = memory_jobs.litgpt_adapters(name, quantized, seq_len)
    try:
        memory = _memory(job, Strategy(precision="bf16", micro_batch=batch), chip, catalog)
    except GpuwiseError as error:
        return error.what
    method = f"LoRA{', ' + quantized if quantized else ''}"
    return Row(
        "litgpt",
        f"{name}, {method}, {batch} × {seq_len}",
        "allocated",
        values.peak_mem_gb * GB_IN_GIB,
        _gib(memory, "allocated"),
    )


def _tiny_llama(values: Any, chip: str, catalog: Catalog) -> Row | str:
    if "Eager" not in str(values.compile_or_fused_notes):
        return "compiled by Thunder"
    mesh = {"Fully-sharded ZeRO 3": Mesh(dp_shard=8), "Replicated": Mesh(dp_replicate=8)}.get(values.parallelism, Mesh())
    strategy = Strategy(precision="bf16", micro_batch=4, optimizer="adamw", mesh=mesh)
    memory = _memory(memory_jobs.pretraining("TinyLlama 1.1B", 2048), strategy, chip, catalog)
    return Row(
        "litgpt",
        f"TinyLlama 1.1B, pre-training, {values.parallelism}",
        "allocated",
        values.peak_mem_gb * GB_IN_GIB,
        _gib(memory, "allocated"),
    )


def _memory(job: Job, strategy: Strategy, chip_id: str, catalog: Catalog) -> MemoryForecast:
    recorded = recorded_as(strategy).but(mesh=Mesh())
    trace, _ = data_parallel(record(job, recorded).with_accumulation(1), strategy)
    devices = strategy.mesh.devices
    return memory_forecast(trace, Cluster(catalog.chip(chip_id), devices), parameters=parameters())


def _gib(memory: MemoryForecast, quantity: str) -> float:
    sizes = {"allocated": memory.peak_allocated_bytes, "reserved": memory.peak_reserved_bytes, "device": memory.device_bytes}
    return sizes[quantity] / 2**30


def grouped(rows: list[Row]) -> dict[str, list[Row]]:
    """Lambda's many rows by job and precision; every other row by itself under its source."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        head = ", ".join(row.name.split(", ")[:2]) if row.source == "Lambda" else ""
        groups.setdefault(f"{row.source}: {head}" if head else row.source, []).append(row)
    return groups


def distribution(rows: list[Row]) -> Iterator[tuple[str, int, float, float, float, int]]:
    """Group, rows, median ratio, 10th and 90th percentile, rows more than 10 % off."""
    for name, group in {"all": rows, **dict(sorted(grouped(rows).items()))}.items():
        ratios = np.array([row.ratio for row in group])
        low, middle, high = np.quantile(ratios, [0.1, 0.5, 0.9])
        yield name, len(group), float(middle), float(low), float(high), int((abs(ratios - 1) > 0.1).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--only", default="", help="sources whose repository contains this text")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows, left_out = compare(options.reference, options.cache, options.only)
    for row in rows:
        sizes = f"{row.measured_gib:>7.2f} {row.forecast_gib:>7.2f} {row.ratio:>6.3f}"
        print(f"{row.source:<11} {row.name:<52} {row.quantity:<10} {sizes}")
    for name, count, middle, low, high, far in distribution(rows):
        print(f"{name}: {count} rows, median {middle:.2f}, 10th to 90th percentile {low:.2f} to {high:.2f}, {far} over 10 %")
    for (source, reason), count in sorted(left_out.items()):
        print(f"left out {count} of {source}: {reason}")


if __name__ == "__main__":
    main()
