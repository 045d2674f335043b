"""Vision models that pytorch-image-models (Apache-2.0) published times of, as cases: inference and training, each layout, eager
and compiled, on three GPUs and a CPU. Rows whose program is not the model as it is made today are left out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from benchmarks.support.published_case import Case
from benchmarks.support.published_updates import of_timm
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
# Inference under autocast ran with norms of timm's own in half precision (`benchmark.py --fast-norm`), in every version: with
# norms in fp32, the bytes that efficientnet_b0_gn, resnetv2_50x1_bit or eva02_base move would alone take 1.0 to 1.6 times as
# long as their steps took. PyTorch's own norms stay in fp32. Training did not: so it would be forecast too fast.
FAST_NORM_MODELS = (
    "caformer",
    "coat_",
    "coatnet",
    "convformer",
    "convnext",
    "csatv2",
    "davit",
    "edgenext",
    "efficientnet_b0_g8_gn",
    "efficientnet_b0_gn",
    "efficientnet_b3_gn",
    "eva02",
    "eva_giant",
    "focalnet",
    "gcvit",
    "hiera",
    "jx_nest",
    "mambaout",
    "maxvit",
    "maxxvit",
    "mobilenetv5",
    "mobilevitv2",
    "mvitv2",
    "naflexvit",
    "nest",
    "poolformer",
    "pvt_v2",
    "rdnet",
    "regnety_040_sgn",
    "resnetv2_101x",
    "resnetv2_152x",
    "resnetv2_50x",
    "sam2_hiera",
    "samvit",
    "test_convnext",
    "test_efficientnet_gn",
    "tiny_vit",
)
# Models whose norms were PyTorch's until the timm of the runs of torch 2.9.1 (vision_transformer.py of 1.0.9 and 1.0.22): on
# one GPU vit_small_patch16_224 took 0.936 of the time with 2.9.1 (its recordings with and without: 0.938), models of CLIP,
# whose first norm makes the stream between blocks half precision, 0.83 (0.87). BEiT's became timm's own later still.
FAST_NORM_TORCH = "2.9.1"
FAST_NORM_LATER = ("aimv2", "beit3", "deit", "eva_large", "flexivit", "test_vit", "vit_", "vitamin")
# Models whose attention was written out until the timm of the runs of torch 2.4.0 (volo.py of 0.9.7 has no
# `scaled_dot_product_attention`): with 2.1.0 volo_d1_384 took 1.66 times as long as with 2.4.0, on the same GPU.
WRITTEN_OUT = ("volo",)
WRITTEN_OUT_TORCH = ("1.12", "1.13", "2.1.0")
# Before, hybrids had norms of both kinds: in half precision in their backbone, in fp32 in their blocks.
HYBRIDS = ("_r26_", "_r50_", "_r_s16_")
# Names of old releases that timm now gives the network of another (parameters differ two- to fivefold from those published).
OTHER_NETWORK = ("ig_resnext101_32x16d", "ig_resnext101_32x32d")


def timm_cases(folder: Path, *, compiled: bool = False, channels_last: bool = False) -> Iterator[Case]:
    """Rows of one way to run: compiled or eager, channels-last or PyTorch's default layout. The CPU has compiled rows only."""
    table = pd.read_parquet(folder / "published" / "timm.parquet")
    table = table[table.device.isin(CHIPS) & (table.layout == ("nhwc" if channels_last else "nchw"))]
    on_cpu = table.device == "i9_10940x"
    table = table[(table.compiled == compiled) | (on_cpu & (not compiled))]
    merged = (table.torch == MERGED_TORCH) & table.model.str.startswith(MERGED_MODELS)
    mixed = (table.torch != FAST_NORM_TORCH) & (table.task == "infer") & table.model.str.contains("|".join(HYBRIDS))
    written_out = table.torch.isin(WRITTEN_OUT_TORCH) & table.model.str.startswith(WRITTEN_OUT)
    for row in table[~merged & ~mixed & ~written_out & ~table.model.isin(OTHER_NETWORK)].itertuples():
        subset = f"timm {row.task}" + (" on a CPU" if row.device == "i9_10940x" else "") + " compiled" * compiled
        strategy = Strategy(
            precision=PRECISIONS[row.precision],
            micro_batch=int(row.batch),
            mode=row.task,
            compile=compiled,
            channels_last=channels_last,
        )
        yield Case(
            subset,
            f"timm:{row.model}",
            strategy,
            (("image_size", int(row.image_size)),),
            CHIPS[row.device],
            1,
            1,
            row.step_ms / 1e3,
            update_bytes=of_timm(row.torch) if row.task == "train" and not on_cpu[row.Index] else 0,
            fast_norm=row.task == "infer" and row.precision.startswith("amp") and _has_fast_norm(row.model, row.torch),
            torch=row.torch,
        )


def _has_fast_norm(model: str, torch: str) -> bool:
    """Whether the model had norms of timm's own in the timm that ran with this version of PyTorch."""
    rotary = "_rope_" in model  # of eva.py
    return model.startswith(FAST_NORM_MODELS) or rotary or (torch == FAST_NORM_TORCH and model.startswith(FAST_NORM_LATER))
