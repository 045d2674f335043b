"""Vision models that pytorch-image-models (Apache-2.0) published times of, as cases: inference and training, each layout, eager
and compiled, on three GPUs and a CPU. Rows whose program is not the model as it is made today are left out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from benchmarks.support.published_case import Case
from gpuwise.strategy import Strategy

CHIPS = {
    "rtx3090": "rtx-3090",
    "rtx4090": "rtx-4090",
    "4090": "rtx-4090",
    "i9_10940x": "i9-10940x",
    "pro6000maxq": "rtx-pro-6000-blackwell-max-q",
}
PRECISIONS = {"amp": "amp-fp16", "amp_bf16": "amp-bf16", "bf16": "bf16", "fp32": "fp32"}
# Models that merge their branches for inference: the runs of torch 2.9.1 measured them merged (timm's --reparam), three to
# five times as fast as the runs of 2.4.0 on the same GPU.
MERGED_TORCH = "2.9.1"
MERGED_MODELS = (
    "fastvit",
    "mobileone",
    "repvgg",
    "repghost",
    "repvit",
    "ghostnetv3",
    "efficientvit_m",
    "mobileclip",
    "levit",
    "nextvit",
    "lcnetv2",
    "shvit",
    "tiny_vit",
)
# Under autocast the runs of torch 2.9.1 had a timm whose VisionTransformer has norms of timm's own, in half precision
# (`benchmark.py --fast-norm`), those before it PyTorch's, in fp32: on one GPU vit_small_patch16_224 took 0.936 of the time with
# 2.9.1 (its recordings with and without: 0.938), models of CLIP, whose first norm makes the stream between blocks half
# precision, 0.83 (0.87), and those that kept PyTorch's norms, as relpos and MLP-Mixer, 0.99 to 1.00.
FAST_NORM_TORCH = "2.9.1"
FAST_NORM_MODELS = ("vit_", "deit", "vitamin")
# Names of old releases that timm now gives the network of another (parameters differ two- to fivefold from those published).
OTHER_NETWORK = ("ig_resnext101_32x16d", "ig_resnext101_32x32d")


def timm_cases(folder: Path, *, compiled: bool = False, channels_last: bool = False) -> Iterator[Case]:
    """Rows of one way to run: compiled or eager, channels-last or PyTorch's default layout. The CPU has compiled rows only."""
    table = pd.read_parquet(folder / "published" / "timm.parquet")
    table = table[table.device.isin(CHIPS) & (table.layout == ("nhwc" if channels_last else "nchw"))]
    on_cpu = table.device == "i9_10940x"
    table = table[(table.compiled == compiled) | (on_cpu & (not compiled))]
    merged = (table.torch == MERGED_TORCH) & table.model.str.startswith(MERGED_MODELS)
    for row in table[~merged & ~table.model.isin(OTHER_NETWORK)].itertuples():
        subset = f"timm {row.task}" + (" on a CPU" if row.device == "i9_10940x" else "") + " compiled" * compiled
        strategy = Strategy(
            precision=PRECISIONS[row.precision],
            micro_batch=int(row.batch),
            mode=row.task,
            compile=compiled,
            channels_last=channels_last,
        )
        fast_norm = row.torch == FAST_NORM_TORCH and row.model.startswith(FAST_NORM_MODELS)
        yield Case(
            subset,
            f"timm:{row.model}",
            strategy,
            (("image_size", int(row.image_size)),),
            CHIPS[row.device],
            1,
            1,
            row.step_ms / 1e3,
            fast_norm=fast_norm and row.precision.startswith("amp"),
            torch=row.torch,
        )
