"""A small convolutional network for handwritten digits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class DigitNetConfig:
    """image_size: pixels an edge, a multiple of 4; 28 as in MNIST."""

    image_size: int = 28
    width: int = 32
    hidden: int = 128
    classes: int = 10
    dropout: float = 0.25


class DigitNet(nn.Module):
    """Grey images (n, 1, s, s) -> logits (n, classes)."""

    def __init__(self, config: DigitNetConfig | None = None):
        super().__init__()
        self.config = config = config or DigitNetConfig()
        self.conv1 = nn.Conv2d(1, config.width, 3, padding=1)
        self.conv2 = nn.Conv2d(config.width, 2 * config.width, 3, padding=1)
        self.hidden = nn.Linear(2 * config.width * (config.image_size // 4) ** 2, config.hidden)
        self.head = nn.Linear(config.hidden, config.classes)

    def forward(self, image: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(image)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.hidden(x.flatten(1)))
        return self.head(F.dropout(x, self.config.dropout, self.training))


def digit_batch(n: int, *, image_size: int = 28, classes: int = 10) -> dict[str, Tensor]:
    """Random images x (n, 1, image_size, image_size) and classes y (n,)."""
    return {"x": torch.rand(n, 1, image_size, image_size), "y": torch.randint(0, classes, (n,))}
