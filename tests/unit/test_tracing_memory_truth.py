"""Predicted peak memory against what the CPU really allocates. `benchmarks/memory_on_cpu.py` has every configuration."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest
import torch
from benchmarks.memory_on_cpu import Case, cases, compare
from tests.quick import quick

from gpuwise.job import Job
from gpuwise.job.models.mlp import class_loss, image_batch
from gpuwise.job.models.resnet import ResNet, ResNetConfig
from gpuwise.strategy import OPTIMIZERS, Strategy

CASES = {case.name: case for case in cases()}
SMALL_RESNET = Case(
    "ResNet",
    Job(
        lambda: ResNet(ResNetConfig(depths=(2, 2, 2, 2), classes=100)),
        partial(image_batch, image_size=32, classes=100),
        class_loss,
    ),
    Strategy(micro_batch=2),
    convolutions=True,
)
FAST = [
    "MLP, momentum foreach",
    "MLP, accumulated, gradients kept",
    "MLP, adafactor",
    "GPT-2, bf16",
    "GPT-2, tied words, amp-bf16",
    "GPT-2, tied words, fp32",
    "BERT, tied words, amp-bf16",
    "T5, tied words, amp-bf16",
    "T5, tied words, fp32",
    "LSTM, adam",
    "Llama, bf16, recomputed",
    "encoder, sdpa with a mask",
    "encoder, eager",
    "ViT, adamw",
    "UNet, adamw",
]
LIKE_OTHERS = ("GPT-2, tied words, amp-bf16", "T5, tied words, fp32", "UNet, adamw")


# The profiler says on stderr that blocks older than it are freed; those are not the step's.
@pytest.mark.parametrize(
    "case",
    [*quick([CASES[name] for name in FAST], slow=[CASES[name] for name in LIKE_OTHERS]), SMALL_RESNET],
    ids=lambda case: case.name,
)
def test_the_predicted_peak_is_the_real_one(case: Case) -> None:
    before = torch.get_float32_matmul_precision()
    row = compare(case)
    # Scratchpads of single oneDNN kernels are left out, and the host's random state, 5 kB a block, that checkpoints keep.
    rough = case.convolutions or case.strategy.recompute != "none"
    assert abs(row.error) <= (0.0005 if rough else 0.00001), row
    torch.set_float32_matmul_precision(before)


def test_the_configurations_cover_what_the_page_promises() -> None:
    assert len(CASES) >= 25
    strategies = [case.strategy for case in CASES.values()]
    assert {s.precision for s in strategies} == {"fp32", "amp-bf16", "bf16"}
    assert {s.recompute for s in strategies} == {"none", "selective", "full"}
    assert {s.optimizer or "adamw" for s in strategies} == set(OPTIMIZERS) - {"adamw-8bit", "adamw-4bit"}
    assert {s.optimizer_kernels for s in strategies} == {None, "for-loop", "foreach"}
    assert any(s.accumulation > 1 for s in strategies)


def test_every_configuration_is_on_the_accuracy_page_and_within_its_bound() -> None:
    page = (Path(__file__).parents[2] / "docs" / "accuracy-memory.md").read_text(encoding="utf-8")
    errors = {}
    for name in CASES:
        row = re.search(rf"^\| {re.escape(name)} \|.*\| ([+-][\d.]+)% \|$", page, flags=re.MULTILINE)
        assert row, name
        errors[name] = abs(float(row[1]))
    assert max(errors.values()) <= 0.3
    assert sorted(errors.values())[len(errors) // 2] <= 0.001
