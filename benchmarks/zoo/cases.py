"""Rows of published/end_to_end.csv that no fit and no other page uses, as cases of the zoo's models or as reasons why not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.support.published_case import CHIPS, Case
from benchmarks.support.published_updates import of_nvidia_examples
from benchmarks.zoo.entry import Reading, Unscored, step_seconds
from benchmarks.zoo.registry import ENTRIES
from gpuwise.cost.host import host_factor, launches_s
from gpuwise.cost.inputs import READY, DataPipeline
from gpuwise.cost.parameters import parameters
from gpuwise.hardware.catalog import load_catalog
from gpuwise.strategy import Mesh, Strategy
from gpuwise.trace.parallel.launches import HostLaunches

# Frameworks whose programs are not PyTorch's, by what their name in the table holds.
OTHERS = ("tensorflow", "tensorrt", "jax", "mxnet", "oneflow", "paddle", "hugectr", "caffe2", "torch7", "triton")
PRECISIONS = ("fp32", "tf32", "amp-fp16", "amp-bf16", "bf16", "fp16")
# (source_repo, how the model's name begins) of rows that other pages score, and of LLM systems that pages of their own treat.
ELSEWHERE = {
    ("huggingface/pytorch-image-models", ""): "accuracy.md",
    ("sitar-lab/NeuSight", "bert"): "accuracy.md",
    ("sitar-lab/NeuSight", "gpt"): "accuracy.md",
    ("sitar-lab/NeuSight", "opt"): "accuracy.md",
    ("stas00/ml-engineering", "Llama"): "accuracy.md",
    ("lambdal/deeplearning-benchmark", "ResNet"): "accuracy.md",
    ("lambdal/deeplearning-benchmark", "BERT"): "accuracy.md",
    ("lambdal/deeplearning-benchmark", "Transformer-XL"): "accuracy.md",
    ("NVIDIA/DeepLearningExamples", "ConvNets/efficientnet"): "accuracy.md",
    ("Oneflow-Inc/DLPerf", "ResNet"): "accuracy.md",
    ("mosaicml/llm-foundry", ""): "accuracy-several.md",
    ("pytorch/torchtitan", ""): "accuracy-several.md",
    ("bigscience-workshop/bigscience", ""): "accuracy-megatron.md",
    ("NVIDIA-NeMo/Megatron-Bridge", ""): "accuracy-bridge.md",
}


@dataclass(frozen=True)
class ZooCase:
    """A row that can be forecast.

    Fields:
        row, model, precision: its id in the table, its model's name and precision there.
        case: the step that stands for all.
        parts: steps of the sizes that the row averages, each with the share of the throughput's units that its steps have,
            all alike as long; only the case itself by default.
        loads: whether the measured step waits for a data loader as well.
    """

    row: str
    model: str
    precision: str
    case: Case
    parts: tuple[tuple[Case, float], ...] = ()
    loads: bool = False

    @property
    def steps(self) -> tuple[tuple[Case, float], ...]:
        return self.parts or ((self.case, 1.0),)


def zoo_rows(reference: Path) -> tuple[list[ZooCase], pd.DataFrame]:
    """Cases, and the rows without one: framework, source, model, mode and reason."""
    table = pd.read_csv(reference / "published" / "end_to_end.csv", low_memory=False)
    cases, unscored = [], []
    for row in table.itertuples():
        reading = reading_of(row)
        result = _case(row, reading) if isinstance(reading, Reading) else reading
        if isinstance(result, Case):
            assert isinstance(reading, Reading)
            parts = tuple(
                (replace(result, size=part.size), part.share * part.per_sample / reading.per_sample) for part in reading.parts
            )
            precision = row.precision if row.precision in PRECISIONS else result.strategy.precision
            cases.append(ZooCase(row.id, row.model, precision, result, parts, reading.loads))
        else:
            mode = "infer" if row.task == "infer" else "train"
            unscored.append((str(row.framework), row.source_repo, str(row.model), mode, result.reason))
    return cases, pd.DataFrame(unscored, columns=["framework", "source", "model", "mode", "reason"])


def read(row: Any) -> Case | Unscored:
    """The case of a row, or why it has none."""
    reading = reading_of(row)
    return _case(row, reading) if isinstance(reading, Reading) else reading


def reading_of(row: Any) -> Reading | Unscored:
    """What one device did in a row's step, or why nobody can tell."""
    entry = ENTRIES.get((row.source_repo, str(row.model)))
    if any(name in str(row.framework).lower() for name in OTHERS):
        return Unscored(f"{str(row.framework).split(' ')[0]}, not PyTorch")
    elsewhere = [page for (source, begins), page in ELSEWHERE.items() if _is(row, source, begins)]
    if entry is None:
        return Unscored(f"see {elsewhere[0]}" if elsewhere else "no model of it in the zoo")
    if row.gpu not in CHIPS:
        return Unscored(f"{row.gpu} is not in the catalog")
    reading = entry.read(row)
    if isinstance(reading, Reading) and not reading.precision and row.precision not in PRECISIONS:
        return Unscored(f"precision {row.precision}")
    return reading


def _is(row: Any, source: str, begins: str) -> bool:
    return row.source_repo == source and str(row.model).startswith(begins)


def _case(row: Any, reading: Reading) -> Case | Unscored:
    """A case on machines of at most eight GPUs, whose devices are replicas."""
    micro_batch = reading.micro_batch or row.batch_per_gpu
    if not micro_batch >= 1 or micro_batch != int(micro_batch):
        return Unscored("batch of a GPU unknown")
    if not (row.step_time_s > 0 or row.throughput > 0):
        return Unscored("neither step time nor throughput")
    devices, infers = int(row.num_gpus), row.task == "infer"
    inside = min(8, devices)
    strategy = Strategy(
        precision=reading.precision or ("bf16" if reading.half else row.precision),
        micro_batch=int(micro_batch),
        accumulation=reading.accumulation,
        mode="infer" if infers else "train",
        channels_last=reading.channels_last,
        mesh=Mesh() if infers or not reading.collectives else Mesh(dp_replicate=devices),
    )
    chip_id = CHIPS[row.gpu]
    return Case(
        f"zoo {row.model}",
        reading.job,
        strategy,
        reading.size,
        chip_id,
        1 if infers or not reading.collectives else inside,
        1 if infers or not reading.collectives else devices // inside,
        step_seconds(row, reading, strategy),
        half=reading.half,
        update=reading.update,
        update_bytes=0 if infers else of_nvidia_examples(reading.job, half=reading.half),
        network="ib-hdr" if row.gpu.startswith("A100") else "ib-edr",  # DGX A100: a 200 Gbit/s port a GPU; DGX-1, DGX-2: 100
        data=_data(reading, chip_id, 1 if infers else inside),
    )


def _data(reading: Reading, chip_id: str, devices: int) -> DataPipeline:
    """What a step waits for before it starts: calls sample by sample go on beside each other on all devices of a machine."""
    if not reading.calls_per_sample:
        return DataPipeline(prefetched=False) if reading.waits_for_batch else READY
    figures = parameters()
    each_s = float(launches_s(HostLaunches(casts=reading.calls_per_sample, kernels=reading.calls_per_sample), figures))
    rate = devices / (each_s * host_factor(load_catalog().chip(chip_id), figures))
    return DataPipeline(samples_per_s=rate, prefetched=False)
