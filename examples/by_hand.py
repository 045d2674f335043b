"""Training step by step, in a script or a notebook: a small network classifies points on three spirals.

    python examples/by_hand.py

Stop it with Ctrl-C, or kill it, and start it again: it continues from its last checkpoint. The losses that follow equal those
of an uninterrupted run bit for bit.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from gpuwise import Job, Trainer

CLASSES, POINTS = 3, 3000


def spirals(count: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Points (count, 2) on three arms that wind around each other, and the arm of each point."""
    draws = torch.Generator().manual_seed(seed)
    arm = torch.randint(0, CLASSES, (count,), generator=draws)
    radius = torch.rand(count, generator=draws)
    angle = 4 * radius + 2 * math.pi * arm / CLASSES
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), arm


class Jittered(Dataset[dict[str, Tensor]]):
    """Moves each point a little every time it is read. The random numbers depend on the seed and the position in the data
    alone, so loader workers and a resume change nothing."""

    def __init__(self) -> None:
        self.point, self.arm = spirals(POINTS, seed=0)

    def __len__(self) -> int:
        return POINTS

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"point": self.point[index] + 0.02 * torch.randn(2), "arm": self.arm[index]}


def accuracy(model: nn.Module) -> dict[str, float]:
    """On points not trained on."""
    point, arm = spirals(1000, seed=1)
    device = next(model.parameters()).device
    return {"accuracy": (model(point.to(device)).argmax(1).cpu() == arm).float().mean().item()}


job = Job(
    model=lambda: nn.Sequential(nn.Linear(2, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, CLASSES)),
    batch=lambda n: {"point": torch.randn(n, 2), "arm": torch.randint(0, CLASSES, (n,))},
    loss=lambda model, batch: F.cross_entropy(model(batch["point"]), batch["arm"]),
    data=Jittered,
    evaluate=accuracy,
    learning_rate=0.01,
    schedule="cosine",
    warmup_steps=20,
    clip_norm=1.0,
    ema_decay=0.98,
    name="spirals",
)

if __name__ == "__main__":
    trainer = Trainer(job, epochs=10, micro_batch=64, run="auto", evaluate_every=50, monitor="max:accuracy", progress="silent")
    print(f"in {trainer.folder}")
    for step in trainer:  # to leave this loop early ends a run as Ctrl-C does: saved, and ready to be continued
        if step.step % 100 == 0:
            print(f"step {step.step} of {step.steps}: loss {step.loss:.4f}, learning rate {step.learning_rate:.4f}")
    result = trainer.result
    print(f"{result.stopped} at step {result.steps}: accuracy {result.metrics.get('accuracy', 0):.1%}, best {result.best}")
    print(f"weights: {trainer.export(trainer.folder)}")
