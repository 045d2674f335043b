"""Parts of docs/accuracy.md beside the published steps: well known points, and what mfu counts."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.check_published import forecast
from benchmarks.support import accuracy_text, published_several
from benchmarks.support.accuracy_tables import table
from gpuwise.cost.parameters import parameters
from gpuwise.hardware.catalog import Catalog

# (arguments of `gpuwise forecast`, published units a second, source and what differs). NVIDIA's READMEs print no batch
# for each figure: the one of its launch script.
POINTS = [
    ("resnet50 --on a100-80gb-sxm --micro-batch 256 --precision amp-fp16 --channels-last", 2470, "NVIDIA DeepLearningExamples"),
    ("resnet50 --on a100-80gb-sxm --micro-batch 256 --precision tf32", 938, "NVIDIA DeepLearningExamples"),
    (
        "resnet50 --on v100-sxm2-16gb --micro-batch 256 --precision amp-fp16 --channels-last",
        1200,
        "NVIDIA DeepLearningExamples",
    ),
    ("resnet50 --on v100-sxm2-16gb --micro-batch 128 --precision fp32", 367, "NVIDIA DeepLearningExamples"),
    # 75 sequences of 384 tokens.
    (
        "bert-large --on a100-80gb-sxm --micro-batch 64 --seq-len 384 --precision tf32",
        75 * 384,
        "Lambda, question-answering head, unfused attention; **seen**",
    ),
    # "about 4 days": 600,000 steps of 491,520 tokens (config/train_gpt2.py).
    (
        "gpt2 --on a100-40gb-sxm:8 --micro-batch 12 --accumulate 5 --precision amp-bf16",
        600_000 * 491_520 / (4 * 86_400),
        'nanoGPT, "about 4 days", compiled',
    ),
    # 5,762 tokens/s a GPU.
    (
        "llama3-8b --on h100-96gb-hbm2e:8 --mesh dp_shard=8 --micro-batch 2 --precision amp-bf16 --recompute selective",
        5762 * 8,
        "torchtitan, eager",
    ),
]


def points_part() -> str:
    """Each well known point: the command, what was published, what the command answers."""
    import gpuwise

    lines = []
    for text, figure, source in POINTS:
        job, *rest = shlex.split(text)
        channels_last = "--channels-last" in rest
        rest = [word for word in rest if word != "--channels-last"]
        given = dict(zip((flag.removeprefix("--").replace("-", "_") for flag in rest[::2]), rest[1::2], strict=True))
        numbers = {name: int(given.pop(name)) for name in ("micro_batch", "accumulate", "seq_len") if name in given}
        result = gpuwise.forecast(job, **given, **numbers, channels_last=channels_last)
        unit = result.throughput_unit
        lines.append(
            [
                f"`gpuwise forecast {text}`",
                source,
                f"{figure:,.0f} {unit}",
                f"{result.throughput:,.0f} {unit}",
                f"{result.throughput / figure:.2f}",
            ]
        )
    return accuracy_text.POINTS.format(
        table=table(["command", "published by", "published", "forecast", "ratio"], lines, words=2)
    )


def operations_against_published_mfu(reference: Path, cache: Path) -> dict[str, float]:
    """Operations gpuwise counts over those behind the MFU that llm-foundry published, at the measured time."""
    table = pd.read_csv(reference / "published" / "end_to_end.csv", low_memory=False)
    table["subsets"] = table.subsets.astype(str)
    table = table[table.mfu > 0]
    catalog, result = Catalog(), []
    for index in table.index:
        for case in published_several.mpt(table.loc[[index]]):
            step = forecast(case, cache, catalog, parameters())
            peak = catalog.chip(case.chip_id).peak_flops_per_s["bf16"]
            ours = step.flops_per_step / (case.seconds * step.count * peak)
            result.append((dict(case.size)["seq_len"], 100 * ours / float(table.mfu[index])))
    lengths, ratio = (np.array(column) for column in zip(*result, strict=True))
    short, long = int(lengths.min()), int(lengths.max())
    return {
        "mfu_rows": len(ratio),
        "mfu_median": float(np.median(ratio)),
        "short": short,
        "long": long,
        "mfu_low": float(np.median(ratio[lengths == short])),
        "mfu_high": float(np.median(ratio[lengths == long])),
    }
