"""Which of timm's published steps had norms in half precision: made-up rows in the form of its tables."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from benchmarks.support.published_timm import timm_cases

ROW = {
    "task": "infer",
    "precision": "amp",
    "layout": "nchw",
    "torch": "2.4.0",
    "device": "rtx3090",
    "compiled": False,
    "model": "convnext_tiny",
    "batch": 256,
    "image_size": 224,
    "step_ms": 100.0,
}


@pytest.fixture
def fast_norm(tmp_path: Path):
    def of(**changes: object) -> list[bool]:
        (tmp_path / "published").mkdir(exist_ok=True)
        pd.DataFrame([ROW | changes]).to_parquet(tmp_path / "published" / "timm.parquet")
        return [case.fast_norm for case in timm_cases(tmp_path)]

    return of


def test_inference_under_autocast_has_norms_of_timm_in_half_precision(fast_norm):
    assert fast_norm() == [True]
    assert fast_norm(model="vit_medium_patch16_rope_reg1_gap_256") == [True]
    assert fast_norm(model="resnet50") == [False]
    assert fast_norm(model="swin_tiny_patch4_window7_224") == [False]
    assert fast_norm(task="train", torch="1.12") == [False]
    assert fast_norm(precision="bf16") == [False]


def test_vision_transformers_had_norms_of_pytorch_before(fast_norm):
    assert fast_norm(model="vit_small_patch16_224") == [False]
    assert fast_norm(model="vit_small_patch16_224", torch="2.9.1") == [True]
    assert fast_norm(model="beitv2_base_patch16_224", torch="2.9.1") == [False]


def test_hybrids_of_both_kinds_are_left_out(fast_norm):
    assert fast_norm(model="vit_small_r26_s32_224") == []
    assert fast_norm(model="vit_small_r26_s32_224", task="train", torch="1.12") == [False]


def test_models_whose_attention_was_written_out_are_left_out(fast_norm):
    assert fast_norm(model="volo_d1_384", torch="2.1.0") == []
    assert fast_norm(model="volo_d1_384") == [False]
    assert fast_norm(model="vit_small_patch16_224", torch="2.1.0") == [False]


def test_training_updates_parameters_by_momentum_in_several_passes(tmp_path: Path):
    """By hand: momentum is read and written, added to, added to the gradient, the gradient to the parameter. Before PyTorch 2.0
    gradients were zeroed and added to."""
    (tmp_path / "published").mkdir()
    rows = [ROW | {"task": "train", "torch": "1.12"}, ROW | {"task": "train"}, ROW]
    pd.DataFrame(rows).to_parquet(tmp_path / "published" / "timm.parquet")
    assert [case.update_bytes for case in timm_cases(tmp_path)] == [4 * (1 + 3 + 2 + 3 + 3 + 3), 4 * (2 + 3 + 3 + 3), 0]
