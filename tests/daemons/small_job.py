"""A job of a few milliseconds a step, which writes down the loss of each micro-batch to the last bit, by rank."""

from __future__ import annotations

import os

import torch
from torch import Tensor, nn

from gpuwise import Job

RANK = os.environ.get("SLURM_PROCID") or os.environ.get("RANK")


def model() -> nn.Module:
    """Vectors (n, 64) -> numbers (n, 1)."""
    return nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Dropout(0.1), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1))


def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    value = (model(batch["x"]) - batch["y"]).square().mean()
    if RANK is not None and model.training and type(value) is Tensor and value.device.type == "cpu":
        with open(f"losses-{RANK}.txt", "a") as file:
            file.write(f"{value.item().hex()}\n")
    return value


def data() -> dict[str, Tensor]:
    return {"x": torch.linspace(0, 1, 64 * 4096).view(4096, 64), "y": torch.linspace(0, 1, 4096).view(4096, 1)}


job = Job(
    model=model,
    batch=lambda n: {"x": torch.rand(n, 64), "y": torch.rand(n, 1)},
    loss=loss,
    data=data,
    optimizer="adamw",
    learning_rate=1e-3,
    name="small",
)
