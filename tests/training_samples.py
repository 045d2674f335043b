"""A small job, and a way to run it in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

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
    fields = {"model": lambda: nn.Linear(4, 2), "batch": points, "loss": loss, "data": lambda: points(160),
              "learning_rate": 0.05, "name": "toy", "evaluate": accuracy}  # fmt: skip
    return Job(**(fields | changes))


def training(job: Job, strategy: Strategy = STRATEGY, *, forecast: Any = None, **settings: Any) -> Training:
    """A run that shows nothing; folder and log_path may be texts."""
    for name in ("folder", "log_path"):
        if settings.get(name) is not None:
            settings[name] = Path(settings[name])
    return Training(job, strategy, TrainSettings(**{"progress": "silent", "preemption": "none", **settings}), forecast=forecast)


def train(job: Job, strategy: Strategy = STRATEGY, **settings: Any) -> TrainResult:
    return training(job, strategy, **settings).run()
