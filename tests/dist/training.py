"""Trains a job alone and under a strategy on several ranks, and compares losses and weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from tests.dist.ranks import on_ranks
from tests.dist.tiny_decoder import decoder_job
from torch.distributed.tensor import DTensor

from gpuwise.job import Job
from gpuwise.runtime.build.names import plain_name
from gpuwise.runtime.build.program import Program, build
from gpuwise.runtime.parallel.world import make_world
from gpuwise.strategy import Mesh, Strategy

SAMPLES = 16  # of an optimizer step, whatever the mesh
STEPS = 20


@dataclass(frozen=True)
class Trained:
    """What training came to.

    Attributes:
        losses: mean loss of each step.
        weights: parameters after the last step, by name.
        norms: gradient norm of each step; empty without clipping.
        averages: moving averages after the last step, by name; empty without.
    """

    losses: list[float]
    weights: dict[str, np.ndarray]
    norms: list[float]
    averages: dict[str, np.ndarray]


@dataclass(frozen=True)
class Difference:
    """The largest relative differences of two trainings: of any step's loss, and of any parameter."""

    loss: float
    weights: float


def compare(
    strategy: Strategy,
    make_job: Callable[[], Job] = decoder_job,
    *,
    alone: Strategy | None = None,
    steps: int = STEPS,
    samples: int = SAMPLES,
    look: Callable[[Program], Any] | None = None,
) -> Difference:
    """Trains the job in one process and on strategy.mesh.devices ranks, on the same global batches.

    Arguments:
        strategy: its micro_batch is set here, from `samples`.
        make_job: makes the job in each process: a function of a module, or functools.partial of one.
        alone: the strategy of the single process; by default `strategy` on one device.
        steps: optimizer steps.
        samples: samples of an optimizer step.
        look: is called on each rank after the last step.
    """
    ranks = strategy.mesh.data_parallel
    assert samples % (strategy.accumulation * ranks) == 0
    strategy = strategy.but(micro_batch=samples // (strategy.accumulation * ranks))
    alone = (alone or strategy).but(
        mesh=Mesh(),
        micro_batch=strategy.micro_batch,
        accumulation=strategy.accumulation * ranks,
        recompute="none",
        compile=False,
    )
    (expected,) = on_ranks(1, train, make_job, alone, steps)
    return difference(on_ranks(strategy.mesh.devices, train, make_job, strategy, steps, look), expected)


def difference(trained: list[Trained], expected: Trained) -> Difference:
    """The largest differences of any rank from the single process. A parameter that no rank has is an error."""
    weights = {name: values for rank in trained for name, values in rank.weights.items()}
    assert set(weights) == set(expected.weights), set(weights) ^ set(expected.weights)
    return Difference(
        loss=max(
            relative(np.array(a), np.array(b)) for rank in trained for a, b in zip(rank.losses, expected.losses, strict=True)
        ),
        weights=max(relative(values, expected.weights[name]) for rank in trained for name, values in rank.weights.items()),
    )


def relative(values: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, relative to the largest expected value; inf for values that are not finite."""
    assert values.shape == expected.shape
    worst = float(np.abs(values - expected).max() / np.abs(expected).max())
    return worst if np.isfinite(worst) else float("inf")


def train(make_job: Callable[[], Job], strategy: Strategy, steps: int, look: Callable[[Program], Any] | None = None) -> Trained:
    """Trains on this rank of torch.distributed, which every rank does alike. `look` is called after the last step."""
    torch.manual_seed(0)
    job = make_job()
    world = make_world(strategy.mesh, "cpu") if strategy.mesh.devices > 1 else None
    program = build(job, strategy, "cpu", world)
    losses, norms = [], []
    for step in range(steps):
        losses.append(mean_loss(program, program.step(micro_batches(job, program, step))))
        norms += [] if program.gradient_norm is None else [float(program.gradient_norm)]
    if look is not None:
        look(program)
    weights = whole({plain_name(name): p for name, p in program.model.named_parameters()})
    averages = {} if program.average is None else whole(program.average.tensors)
    return Trained(losses, weights, norms, averages)


def micro_batches(job: Job, program: Program, step: int) -> list[Any]:
    """This rank's micro-batches of a step: its number a is number a·D + r of those of all D data-parallel ranks."""
    strategy, rank = program.strategy, 0 if program.world is None else program.world.data_rank
    parts, size = strategy.accumulation * strategy.mesh.data_parallel, strategy.micro_batch
    batch = partial(job.batch, seed=step)(parts * size)
    mine = range(rank, parts, strategy.mesh.data_parallel)
    return [{name: rows[number * size :][:size] for name, rows in batch.items()} for number in mine]


def mean_loss(program: Program, loss: torch.Tensor) -> float:
    """The mean over all ranks that have a loss."""
    pair = torch.stack([loss.detach().float(), torch.ones(())]) * float(program.has_loss)
    dist.all_reduce(pair)
    return float(pair[0] / pair[1])


def whole(tensors: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Whole tensors, in NumPy; shards are gathered, so all ranks call it."""
    gathered = {name: (t.full_tensor() if isinstance(t, DTensor) else t) for name, t in tensors.items()}
    return {name: t.detach().float().clone().numpy() for name, t in gathered.items()}
