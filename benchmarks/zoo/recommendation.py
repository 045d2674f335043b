"""Models of recommendation: neural collaborative filtering."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.zoo.entry import EXAMPLES, Entry, Reading, Unscored
from gpuwise.job import Job


class NeuMf(nn.Module):
    """Neural collaborative filtering (He et al. 2017) over MovieLens 20M: users and items (n,) -> logit of a view (n,)."""

    def __init__(
        self, users: int = 138_493, items: int = 26_744, factors: int = 64, widths: tuple[int, ...] = (256, 256, 128, 64)
    ):
        super().__init__()
        self.factors = nn.ModuleList([nn.Embedding(users, factors), nn.Embedding(items, factors)])
        self.deep = nn.ModuleList([nn.Embedding(users, widths[0] // 2), nn.Embedding(items, widths[0] // 2)])
        layers: list[nn.Module] = []
        for inside, outside in pairwise(widths):
            layers += [nn.Linear(inside, outside), nn.ReLU(), nn.Dropout(0.5)]
        self.layers = nn.Sequential(*layers)
        self.out = nn.Linear(factors + widths[-1], 1)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        product = self.factors[0](users) * self.factors[1](items)
        deep = self.layers(torch.cat([self.deep[0](users), self.deep[1](items)], dim=1))
        return self.out(torch.cat([product, deep], dim=1)).squeeze(1)


def view_batch(n: int) -> dict[str, Tensor]:
    """Users, items (n,) int64 and whether it was viewed (n,) float."""
    return {"users": torch.randint(0, 138_493, (n,)), "items": torch.randint(0, 26_744, (n,)), "viewed": torch.rand(n).round()}


def view_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """In training the entropy of views; else the model's probabilities, which are not compared with anything."""
    if not model.training:
        return torch.sigmoid(model(batch["users"], batch["items"]))
    return F.binary_cross_entropy_with_logits(model(batch["users"], batch["items"]).float(), batch["viewed"])


def _in_fp16() -> nn.Module:
    return NeuMf().half()


def collaborative_filtering(name: str, sizes: dict[str, int], *, half: bool) -> Job:
    """NeuMF over MovieLens 20M; ncf-fp16: the whole model in fp16."""
    return Job(_in_fp16 if name == "ncf-fp16" else NeuMf, view_batch, view_loss, optimizer="adam", name=name)


def _read_filtering(row: Any) -> Reading | Unscored:
    """In mixed precision inference.py casts the whole model. It publishes the best of 20 runs."""
    if row.task != "infer":
        return Unscored("see accuracy.md, accuracy-several.md")
    mixed = row.precision == "amp-fp16"
    return Reading("ncf-fp16" if mixed else "ncf", precision="fp32" if mixed else None)


JOBS = {"ncf": collaborative_filtering}
ENTRIES = (Entry(EXAMPLES, "NCF", _read_filtering),)
