"""Batch norm's running means on several ranks: those of plain DistributedDataParallel, on every rank and in checkpoints."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from tests.dist.language_jobs import adamw
from tests.dist.ranks import on_ranks
from tests.dist.test_checkpoints import check_resumes
from tests.dist.training import mean_loss, micro_batches, whole
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gpuwise.job import Job
from gpuwise.runtime.build.names import plain_name
from gpuwise.runtime.build.program import build
from gpuwise.runtime.parallel.world import make_world
from gpuwise.strategy import Mesh, Parallelism, Strategy

STEPS, SAMPLES, ACCUMULATION, CLASSES = 4, 32, 2, 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(torch.tanh(self.linear(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.Sequential(*(Block() for _ in range(4))), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x))


def batch_of(samples: int, *, seed: int = 0) -> dict[str, Tensor]:
    """Rows whose means differ from one to the next, so that ranks see different ones."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 8, generator=generator) + torch.arange(samples).unsqueeze(1)
    return {"x": x, "y": torch.randint(CLASSES, (samples,), generator=generator)}


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch["x"]), batch["y"])


def metrics_of(model: nn.Module) -> dict[str, float]:
    return {"loss": float(loss_of(model, batch_of(32, seed=99)))}


def net_job() -> Job:
    return Job(Net, batch_of, loss_of, optimizer=adamw, evaluate=metrics_of, name="normalised")


@dataclass(frozen=True)
class Ended:
    """What this rank has in the end: parameters, its buffers and the metric after the last step; the loss of each step."""

    losses: list[float]
    weights: dict[str, np.ndarray]
    buffers: dict[str, np.ndarray]
    metric: float


def buffers_of(model: nn.Module) -> dict[str, np.ndarray]:
    return {plain_name(name): buffer.clone().numpy() for name, buffer in model.named_buffers()}


def by_plain_ddp() -> Ended:
    torch.manual_seed(0)
    model = Net()
    ddp, optimizer = DistributedDataParallel(model), adamw(model.parameters())
    rank, ranks, losses = dist.get_rank(), dist.get_world_size(), []
    for step in range(STEPS):
        batch = batch_of(SAMPLES, seed=step)
        xs, ys = (batch[name].chunk(ACCUMULATION * ranks) for name in ("x", "y"))
        of_step = []
        for number in range(ACCUMULATION):
            with nullcontext() if number == ACCUMULATION - 1 else ddp.no_sync():
                part = number * ranks + rank
                loss = loss_of(ddp, {"x": xs[part], "y": ys[part]})
                (loss / ACCUMULATION).backward()
            of_step.append(loss.detach())
        optimizer.step()
        optimizer.zero_grad()
        mean = torch.stack(of_step).mean()
        dist.all_reduce(mean)
        losses.append(float(mean) / ranks)
    ddp.eval()
    with torch.no_grad():
        metric = metrics_of(ddp)["loss"]
    return Ended(losses, whole(dict(model.named_parameters())), buffers_of(model), metric)


def by_us(mesh: Mesh, shard: str = "parameters", accumulation: int = ACCUMULATION) -> Ended:
    torch.manual_seed(0)
    job = net_job()
    micro_batch = SAMPLES // accumulation // mesh.data_parallel
    strategy = Strategy(mesh=mesh, micro_batch=micro_batch, accumulation=accumulation, parallelism=Parallelism(shard=shard))
    program = build(job, strategy, "cpu", make_world(mesh, "cpu"))
    losses = [mean_loss(program, program.step(micro_batches(job, program, step))) for step in range(STEPS)]
    program.model.eval()
    with torch.no_grad():
        metric = program.evaluated(metrics_of)["loss"]
    weights = whole({plain_name(name): p for name, p in program.model.named_parameters()})
    return Ended(losses, weights, buffers_of(program.model), metric)


def check(ours: list[Ended], plain: Ended) -> None:
    """All ranks have the plain program's losses, weights, buffers and metric; those of a stage have its own."""
    for rank in ours:
        assert rank.losses == pytest.approx(plain.losses, rel=1e-6)
        assert rank.metric == pytest.approx(plain.metric, rel=1e-6)
        assert len(rank.buffers) > 0
        for name, values in {**rank.weights, **rank.buffers}.items():
            expected = {**plain.weights, **plain.buffers}[name]
            np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("mesh", "settings"),
    [
        (Mesh(dp_replicate=2), {}),
        (Mesh(dp_shard=2), {}),
        pytest.param(Mesh(dp_shard=2), {"shard": "optimizer"}, marks=pytest.mark.slow),
        pytest.param(Mesh(pp=2, dp_shard=2), {}, marks=pytest.mark.slow),
        pytest.param(Mesh(pp=2, dp_replicate=2), {}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_two_data_ranks_have_the_running_means_of_plain_ddp(mesh: Mesh, settings: dict[str, Any]):
    plain = on_ranks(2, by_plain_ddp)
    for name, values in plain[0].buffers.items():  # plain DDP has shared them before its evaluation
        assert np.array_equal(values, plain[1].buffers[name])
    check(on_ranks(mesh.devices, by_us, mesh, *settings.values()), plain[0])


@pytest.mark.slow
def test_replicas_of_shards_have_the_running_means_of_plain_ddp():
    (plain, *_) = on_ranks(4, by_plain_ddp)
    check(on_ranks(4, by_us, Mesh(dp_replicate=2, dp_shard=2)), plain)


@pytest.mark.parametrize(
    "before",
    [
        Mesh(dp_shard=2),
        *(pytest.param(mesh, marks=pytest.mark.slow) for mesh in (Mesh(dp_replicate=2), Mesh(pp=2, dp_shard=2))),
    ],
    ids=str,
)
def test_runs_go_on_with_the_running_means_of_the_first_rank(before: Mesh, tmp_path: Path):
    """On the same mesh to the bit."""
    check_resumes(tmp_path, before, [before], net_job, accumulation=2)
