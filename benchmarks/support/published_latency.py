"""Published inference of small batches as cases: steps whose host takes longer to launch them than the device to run them.

NVIDIA's DeepLearningExamples in PyTorch, whose pages name the machine: a DGX A100 (EPYC 7742) or a DGX-1 (Xeon E5-2698 v4).
These rows are no part of published.cases: kernels are not fitted to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from benchmarks.support.published_case import CHIPS, Case
from gpuwise.strategy import Strategy

LARGEST_BATCH = 4
# Our job, the size of an input and its value. Wider squeeze-and-excitation launches as many kernels, and so does the longer
# memory of Transformer-XL, whose device takes longer than its host on a T4 and for the large model: these are left out.
_JOBS = {
    "efficientnet-widese-b0": ("timm:efficientnet_b0", "image_size", 224),
    "efficientnet-widese-b4": ("timm:efficientnet_b4", "image_size", 380),
    "Base model": ("transformer_xl-base", "seq_len", 64),
}


def latency_cases(folder: Path) -> Iterator[Case]:
    """Batches of 1 to LARGEST_BATCH, eager. Left out of Transformer-XL: the second table of each kind, of TorchScript, and
    fp16, in which the whole model ran."""
    table = pd.read_csv(folder / "published" / "end_to_end.csv", low_memory=False)
    table = table[table.subsets.astype(str).str.startswith("dle_infer") & (table.framework == "PyTorch")]
    table = table[table.batch_per_gpu <= LARGEST_BATCH]
    line = table.source_path.str.rpartition("#L")[2].astype(int)
    scripted = line > line.groupby([table.model_detail, table.gpu, table.precision]).transform("min")
    in_half = (table.model == "Transformer-XL") & (table.precision == "amp-fp16")
    for row in table[~in_half & (~scripted | (table.model != "Transformer-XL"))].itertuples():
        job, name, size = ("ssd300", "image_size", 300) if row.model == "SSD" else _JOBS.get(row.model_detail, ("", "", 0))
        if not job or row.gpu not in CHIPS or row.gpu == "T4":
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
