"""Published end-to-end results as cases: a job, a strategy and a chip of ours, and the seconds a step was measured to take.

Only rows that gpuwise can express are taken: PyTorch, and strategies that it forecasts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from benchmarks.support.published_case import CHIPS, Case
from benchmarks.support.published_several import several_cases
from benchmarks.support.published_timm import timm_cases
from benchmarks.support.published_updates import of_nvidia_examples
from gpuwise.strategy import Mesh, Strategy

# What Lambda trained: our job, the size of an input, its value.
LAMBDA_JOBS = {
    "ResNet-50 v1.5": ("resnet50", "image_size", 224),
    "BERT-large SQuAD": ("bert-large-qa", "seq_len", 384),
    "Transformer-XL base": ("transformer_xl-base", "seq_len", 192),
    "Transformer-XL large": ("transformer_xl-large", "seq_len", 256),
}
# GPUs that Lambda measured before Ampere, in containers of January 2020.
OLD_CONTAINERS = (
    "V100-16GB",
    "V100-32GB",
    "QuadroRTX5000",
    "QuadroRTX6000",
    "QuadroRTX8000",
    "RTX2080Ti",
    "TITAN-RTX",
    "GTX1080Ti",
    "RTX2070-MaxQ",
    "RTX2080-MaxQ",
)
EFFICIENTNETS = {"efficientnet-b0": "timm:efficientnet_b0", "efficientnet-b4": "timm:efficientnet_b4"}


def cases(folder: Path) -> Iterator[Case]:
    """All rows; vision models of timm eager and in the default layout (published_timm has the others)."""
    published = pd.read_csv(folder / "published" / "end_to_end.csv", low_memory=False)
    published["subsets"] = published.subsets.astype(str)
    yield from _lambda(published)
    yield from _transformers_fp32(published)
    yield from _examples(published)
    yield from _dlperf(published)
    yield from _llama(published)
    yield from several_cases(published)
    yield from timm_cases(folder)


def _lambda(table: pd.DataFrame) -> Iterator[Case]:
    """ResNet-50, BERT-large question answering and Transformer-XL, NVIDIA's DeepLearningExamples on 1 to 8 GPUs of a machine.

    In fp16 BERT and Transformer-XL were cast as a whole (apex O2). Left out: Transformer-XL in fp16 in the first containers
    (20.01), whose softmax over 267,735 words took twice as long; and Transformer-XL on several GPUs, where each GPU trained a
    model of its own: every log says "multi_gpu : None", no configuration asks for "ddp", and without it train.py exchanges no
    gradients (lambdal/deeplearning-benchmark, pytorch/results and pytorch/scripts/config_v*; NVIDIA/DeepLearningExamples).
    """
    table = table[table.subsets.str.contains("lambda_(?:single|multi)_gpu")]
    table = table[table.num_gpus.between(1, 8) & (table.batch_per_gpu > 0)]
    for row in table.itertuples():
        job, name, size = LAMBDA_JOBS.get(row.model, ("", "", 0))
        count, step_s = int(row.num_gpus), row.step_time_s
        half = row.precision == "amp-fp16" and name == "seq_len"
        if job.startswith("transformer_xl"):
            if count > 1:
                continue
            if half and "(v0)" in row.date_or_commit and row.gpu in OLD_CONTAINERS:
                continue
            if not step_s > 0:  # the table gives tokens a second
                step_s = row.batch_per_gpu * size / row.throughput
        if not job or row.gpu not in CHIPS or not step_s > 0:
            continue
        precision = "bf16" if half else row.precision
        subset = f"lambda {job}" + (f" on {count} GPUs" if count > 1 else "")
        strategy = Strategy(precision=precision, micro_batch=int(row.batch_per_gpu), mesh=Mesh(dp_replicate=count))
        update_bytes = of_nvidia_examples(job, half=half)
        sizes, chip = ((name, size),), CHIPS[row.gpu]
        yield Case(subset, job, strategy, sizes, chip, count, 1, step_s, half, update_bytes=update_bytes)


def _transformers_fp32(table: pd.DataFrame) -> Iterator[Case]:
    """fp32 language models of transformers, eager attention (NeuSight's end-to-end runs): passes without an update."""
    table = table[table.subsets.str.contains("fp32_transformers") & (table.batch_per_gpu > 0) & (table.step_time_s > 0)]
    for row in table.itertuples():
        if row.model not in ("bert_large", "gpt2_large", "opt_13", "gpt3_27") or row.gpu not in CHIPS:
            continue
        mode = "train" if row.task == "train" else "infer"
        compiled = "compile" in str(row.compile_or_fused_notes)
        job = f"hf-{row.model}" + ("-classify" if (row.model, mode) == ("bert_large", "infer") else "")
        strategy = Strategy(precision="fp32", micro_batch=int(row.batch_per_gpu), mode=mode, compile=compiled)
        subset = f"fp32 transformers {mode}" + (" compiled" if compiled else "")
        size = (("seq_len", int(row.seq_len)),)
        yield Case(subset, job, strategy, size, CHIPS[row.gpu], 1, 1, row.step_time_s, update=False)


def _examples(table: pd.DataFrame) -> Iterator[Case]:
    """EfficientNet, SSD300 and neural collaborative filtering, NVIDIA's DeepLearningExamples in PyTorch on one GPU.

    With AMP images lie channels last. Left out: EfficientNet on 32 GB V100s, whose rows contradict each other (B4 at 32
    images takes 4.6 times what 16 take on the 16 GB card); examples in TensorFlow, and DLRM, whose kernels are its own.
    """
    table = table[table.subsets.str.contains("dle_train") & (table.num_gpus == 1) & (table.framework == "PyTorch")]
    for row in table.itertuples():
        job = {"SSD": "ssd300", "NCF": "ncf"}.get(row.model) or EFFICIENTNETS.get(row.model_detail)
        if not job or row.gpu not in CHIPS or (row.gpu == "V100-32GB" and job.startswith("timm:")):
            continue
        images = row.model != "NCF"
        size = (("image_size", int(row.image_size)),) if images else ()
        strategy = Strategy(
            precision=row.precision, micro_batch=int(row.batch_per_gpu), channels_last=images and row.precision == "amp-fp16"
        )
        subset, update_bytes = f"DLE {row.model.split('/')[-1]}", of_nvidia_examples(job)
        yield Case(subset, job, strategy, size, CHIPS[row.gpu], 1, 1, row.step_time_s, update_bytes=update_bytes)


def _dlperf(table: pd.DataFrame) -> Iterator[Case]:
    """ResNet-50 in PyTorch on one V100 (Oneflow-Inc/DLPerf)."""
    table = table[table.subsets.str.contains("dlperf") & (table.num_gpus == 1) & (table.model == "ResNet-50 v1.5")]
    for row in table[table.framework.isin(["PyTorch", "NGC PyTorch"])].itertuples():
        strategy = Strategy(precision=row.precision, micro_batch=int(row.batch_per_gpu))
        size, update_bytes = (("image_size", 224),), of_nvidia_examples("resnet50")
        yield Case(
            "DLPerf resnet50", "resnet50", strategy, size, CHIPS[row.gpu], 1, 1, row.step_time_s, update_bytes=update_bytes
        )


def _llama(table: pd.DataFrame) -> Iterator[Case]:
    """Llama 3.1 8B on a B200, one sequence of 8,192 tokens, eager and compiled (stas00/ml-engineering)."""
    table = table[table.subsets.str.contains("compile_vs_eager") & (table.model == "Llama 3.1 8B")]
    for row in table.itertuples():
        compiled = row.compile_or_fused_notes.startswith("torch.compile()")
        if not compiled and "eager" not in row.compile_or_fused_notes:
            continue  # other modes of the compiler
        mode = "train" if row.task == "train" else "infer"
        strategy = Strategy(
            precision="bf16",
            micro_batch=1,
            mode=mode,
            compile=compiled,
            recompute="full" if row.recompute == "full" else "none",
        )
        subset = f"Llama {mode}" + (" compiled" if compiled else "")
        yield Case(
            subset,
            "llama3-8b",
            strategy,
            (("seq_len", int(row.seq_len)),),
            CHIPS[row.gpu],
            1,
            1,
            row.step_time_s,
            update="AdamW" in row.model_detail,
        )
