"""Runs of a small job on several ranks, as torchrun would start them: for tests, in processes of ranks.py."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gpuwise import Job


class TwoLayers(nn.Module):
    """x (n, 4) -> (n, 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2)])
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def data() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {"x": torch.randn(128, 4, generator=generator), "y": torch.randn(128, 2, generator=generator)}


def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    error = (model(batch["x"]) - batch["y"]).square()
    return {"loss": error.mean(), "largest": error.max()}


def evaluate(model: nn.Module) -> dict[str, float]:
    return {"error": (model(data()["x"]) - data()["y"]).square().mean().item()}


def job(**changes: Any) -> Job:
    return Job(
        **{
            "model": TwoLayers,
            "batch": lambda n: {"x": torch.randn(n, 4), "y": torch.randn(n, 2)},
            "loss": loss,
            "data": data,
            "optimizer": "adamw",
            "learning_rate": 1e-2,
            "clip_norm": 0.5,
            "evaluate": evaluate,
            "name": "two layers",
            **changes,
        }
    )


def as_rank() -> None:
    """Sets the environment of a launcher for a process of ranks.py."""
    rank, size = dist.get_rank(), dist.get_world_size()
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "OMP_NUM_THREADS": "1",
    }


def losses(log: str | Path) -> dict[int, float]:
    """The loss of each step that has a record of its own."""
    records = map(json.loads, Path(log).read_text().splitlines())
    return {record["step"]: record["loss"] for record in records if record["record"] == "step" and record["steps"] == 1}


def plain_loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return (model(batch["x"]) - batch["y"]).square().mean()
