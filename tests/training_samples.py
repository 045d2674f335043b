"""A small job, a way to run it in one line, and models and data with everything that a resume could forget."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from gpuwise.job import Job
from gpuwise.runtime import Training, TrainResult, TrainSettings
from gpuwise.strategy import Strategy

STRATEGY = Strategy(micro_batch=8, accumulation=2)


def points(n: int, seed: int = 0) -> dict[str, torch.Tensor]:
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))
    return {"x": x, "y": (x.sum(1) > 0).long()}


def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"])


def accuracy(model: nn.Module) -> dict[str, float]:
    held_out = points(200, seed=1)
    return {"accuracy": (model(held_out["x"]).argmax(1) == held_out["y"]).float().mean().item()}


def toy(**changes: Any) -> Job:
    fields = {
        "model": lambda: nn.Linear(4, 2),
        "batch": points,
        "loss": loss,
        "data": lambda: points(160),
        "learning_rate": 0.05,
        "name": "toy",
        "evaluate": accuracy,
    }
    return Job(**(fields | changes))


class Drawing(Dataset):
    """Samples with random changes from every generator that people draw from."""

    def __init__(self, count: int = 50):
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        noise = torch.randn(4) + random.random() + float(np.random.rand())
        return {"x": torch.full((4,), index / 50) + noise, "y": torch.tensor(index % 2)}


def layers() -> nn.Module:
    """Of `points` and the like, with dropout."""
    return nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 2))


class Convolving(nn.Module):
    """Of `pictures`, with dropout and running averages."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.3), nn.Conv2d(8, 4, 3))
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x).mean((2, 3)))


def pictures(n: int) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(n, 3, 8, 8, generator=torch.Generator().manual_seed(n)), "y": torch.arange(n) % 2}


def training(job: Job, strategy: Strategy = STRATEGY, *, forecast: Any = None, **settings: Any) -> Training:
    """A run that shows nothing; folder and log_path may be texts."""
    for name in ("folder", "log_path"):
        if settings.get(name) is not None:
            settings[name] = Path(settings[name])
    return Training(job, strategy, TrainSettings(**{"progress": "silent", "preemption": "none", **settings}), forecast=forecast)


def train(job: Job, strategy: Strategy = STRATEGY, **settings: Any) -> TrainResult:
    return training(job, strategy, **settings).run()
