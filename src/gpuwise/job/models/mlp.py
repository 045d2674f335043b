"""A multilayer perceptron for tables."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class MlpConfig:
    features: int = 20
    hidden: tuple[int, ...] = (128, 64)
    classes: int = 2


class Mlp(nn.Module):
    """(n, features) -> logits (n, classes)."""

    def __init__(self, config: MlpConfig | None = None):
        super().__init__()
        self.config = config = config or MlpConfig()
        widths = [config.features, *config.hidden]
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.head = nn.Linear(widths[-1], config.classes)

    def forward(self, x: Tensor) -> Tensor:
        for linear in self.hidden:
            x = F.relu(linear(x))
        return self.head(x)


def table_batch(n: int, *, features: int, classes: int) -> dict[str, Tensor]:
    """Random rows x (n, features) and classes y (n,)."""
    return {"x": torch.randn(n, features), "y": torch.randint(0, classes, (n,))}


def image_batch(n: int, *, image_size: int, classes: int = 1000) -> dict[str, Tensor]:
    """Random images x (n, 3, image_size, image_size) and classes y (n,)."""
    return {"x": torch.randn(n, 3, image_size, image_size), "y": torch.randint(0, classes, (n,))}


def class_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Mean cross entropy of model(x) against y."""
    return F.cross_entropy(model(batch["x"]), batch["y"])
