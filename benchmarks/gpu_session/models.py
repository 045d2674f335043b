"""Small jobs whose steps are compared: a classifier with batch norm and dropout, and a language model."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpuwise.job import Job
from gpuwise.job.models.gpt2 import Gpt2, Gpt2Config
from gpuwise.job.models.language import next_token_batch, token_loss

CLASSES, PIXELS = 10, 16
GPT = Gpt2Config(vocabulary=512, width=128, layers=3, heads=2)
SEQ_LEN = 64


def deterministic(*, attention: bool = True) -> None:
    """Kernels that give the same bits each time, in full fp32; for a process that has not used the device yet.

    attention: leave scaled_dot_product_attention its fused kernels.
    """
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False
    if not attention:
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.backends.cuda.enable_cudnn_sdp(False)


class Classifier(nn.Module):
    """Images (n, 3, PIXELS, PIXELS) -> logits (n, CLASSES)."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Sequential(  # a bias before a norm has no gradient but rounding, which Adam blows up
            nn.Conv2d(3, 32, 3, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(dropout),
        )
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def images(n: int) -> dict[str, Tensor]:
    return {"x": torch.randn(n, 3, PIXELS, PIXELS), "y": torch.randint(CLASSES, (n,))}


def class_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"])


def image_rows(count: int = 256) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "x": torch.randn(count, 3, PIXELS, PIXELS, generator=generator),
        "y": torch.randint(CLASSES, (count,), generator=generator),
    }


def classifier(*, dropout: float = 0.0, **more: Any) -> Job:
    return Job(partial(Classifier, dropout), images, class_loss, name="classifier", data=image_rows, **more)


def token_rows(count: int = 256) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(GPT.vocabulary, (count, SEQ_LEN), generator=generator)
    return {"tokens": tokens, "labels": tokens.roll(-1, 1)}


def language(**more: Any) -> Job:
    return Job(
        lambda: Gpt2(GPT),
        partial(next_token_batch, vocabulary=GPT.vocabulary, seq_len=SEQ_LEN),
        token_loss,
        name="language",
        data=token_rows,
        **more,
    )
