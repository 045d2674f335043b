"""ResNet of bottleneck blocks (He et al. 2015), with the stride in the 3x3 convolution ("v1.5")."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

EXPANSION = 4


@dataclass(frozen=True)
class ResNetConfig:
    depths: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 64
    classes: int = 1000


def _conv_norm(inside: int, outside: int, kernel: int, *, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inside, outside, kernel, stride=stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(conv, nn.BatchNorm2d(outside))


class Bottleneck(nn.Module):
    """1x1 down, 3x3, 1x1 up, with a shortcut; (n, inside, s, s) -> (n, 4 * width, s / stride, s / stride)."""

    def __init__(self, inside: int, width: int, *, stride: int):
        super().__init__()
        outside = width * EXPANSION
        self.reduce = _conv_norm(inside, width, 1)
        self.conv = _conv_norm(width, width, 3, stride=stride)
        self.expand = _conv_norm(width, outside, 1)
        same = inside == outside and stride == 1
        self.shortcut = nn.Identity() if same else _conv_norm(inside, outside, 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.reduce(x), inplace=True)
        y = F.relu(self.conv(y), inplace=True)
        return F.relu(self.expand(y) + self.shortcut(x), inplace=True)


class ResNet(nn.Module):
    """Images (n, 3, s, s) -> logits (n, classes). The default is ResNet-50."""

    def __init__(self, config: ResNetConfig | None = None):
        super().__init__()
        self.config = config = config or ResNetConfig()
        self.stem = _conv_norm(3, config.width, 7, stride=2)
        blocks, inside = [], config.width
        for stage, depth in enumerate(config.depths):
            width = config.width * 2**stage
            for index in range(depth):
                blocks.append(Bottleneck(inside, width, stride=2 if stage and not index else 1))
                inside = width * EXPANSION
        self.layers = nn.ModuleList(blocks)
        self.head = nn.Linear(inside, config.classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.stem(x), inplace=True), 3, stride=2, padding=1)
        for block in self.layers:
            x = block(x)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))
