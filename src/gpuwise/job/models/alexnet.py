"""AlexNet in its one-tower form (Krizhevsky 2014, arXiv:1404.5997)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class AlexNetConfig:
    classes: int = 1000
    channels: tuple[int, int, int, int, int] = (64, 192, 384, 256, 256)
    hidden: int = 4096
    dropout: float = 0.5


class AlexNet(nn.Module):
    """Images (n, 3, s, s), s at least 63 -> logits (n, classes)."""

    def __init__(self, config: AlexNetConfig | None = None):
        super().__init__()
        self.config = config = config or AlexNetConfig()
        a, b, c, d, e = config.channels
        self.features = nn.Sequential(
            nn.Conv2d(3, a, 11, stride=4, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(a, b, 5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(b, c, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(c, d, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(d, e, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2),
            nn.AdaptiveAvgPool2d(6),
            nn.Flatten(),
        )
        self.classifier = nn.Sequential(
            nn.Dropout(config.dropout),
            nn.Linear(e * 36, config.hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(config.dropout),
            nn.Linear(config.hidden, config.hidden),
            nn.ReLU(inplace=True),
            nn.Linear(config.hidden, config.classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))
