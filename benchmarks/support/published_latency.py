"""Published inference of small batches as cases: steps whose host takes longer to launch them than the device to run them.

NVIDIA's DeepLearningExamples in PyTorch, whose pages name the machine: a DGX A100 (EPYC 7742), a DGX-1 or DGX-2 (Xeon of 2016
or 2017), or a T4, whose machine they do not name. These rows are no part of published.cases: kernels are not fitted to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from benchmarks.support.published_case import CHIPS, Case
from gpuwise.strategy import Strategy

LARGEST_BATCH = 4
# Our job, the size of an input and its value. Wider squeeze-and-excitation launches as many kernels; the length of
# Transformer-XL's memory changes none.
_JOBS = {
    "efficientnet-widese-b0": ("timm:efficientnet_b0", "image_size", 224),
    "efficientnet-widese-b4": ("timm:efficientnet_b4", "image_size", 380),
    "Base model": ("transformer_xl-base", "seq_len", 64),
    "Large model": ("transformer_xl-large", "seq_len", 128),
}


def latency_cases(folder: Path) -> Iterator[Case]:
    """Batches of 1 to LARGEST_BATCH. Of Transformer-XL each second table, of TorchScript, is left out."""
    table = pd.read_csv(folder / "published" / "end_to_end.csv", low_memory=False)
    table = table[table.subsets.astype(str).str.startswith("dle_infer") & (table.framework == "PyTorch")]
    table = table[table.batch_per_gpu <= LARGEST_BATCH]
    line = table.source_path.str.rpartition("#L")[2].astype(int)
    scripted = line > line.groupby([table.model_detail, table.gpu, table.precision]).transform("min")
    in_half = (table.model == "Transformer-XL") & (table.precision == "amp-fp16")
    for row in table[~in_half & (~scripted | (table.model != "Transformer-XL"))].itertuples():
        job, name, size = ("ssd300", "image_size", 300) if row.model == "SSD" else _JOBS.get(row.model_detail, ("", "", 0))
        if not job or row.gpu not in CHIPS:
            continue
        batch = int(row.batch_per_gpu)
        seconds = row.step_time_s if row.step_time_s > 0 else batch / row.throughput
        strategy = Strategy(
            precision=row.precision,
            micro_batch=batch,
            mode="infer",
            channels_last=name == "image_size" and row.precision == "amp-fp16",
        )
        yield Case(f"DLE latency {row.model.split('/')[-1]}", job, strategy, ((name, size),), CHIPS[row.gpu], 1, 1, seconds)
