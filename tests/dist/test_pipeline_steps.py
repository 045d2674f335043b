"""What a pipeline does besides gradients: inference, random numbers, named parts of a loss, buffers."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.dist.pipeline_cases import pipelined
from tests.dist.ranks import RankError, on_ranks
from tests.dist.tiny_decoder import TinyDecoder, decoder_job, tokens_of
from torch import Tensor, nn

from gpuwise.job import Job
from gpuwise.runtime.build.program import build
from gpuwise.runtime.parallel.world import make_world
from gpuwise.strategy import Mesh, Strategy

DRAWN: list[float] = []


class Normed(nn.Module):
    """Blocks with batch norm, whose running statistics are buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh()) for _ in range(4)))
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x))


def noisy_loss(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Hides tokens at random, and counts the others alone: stages have to hide the same ones."""
    kept = torch.rand(batch["tokens"].shape) < 0.7
    DRAWN.append(float(kept.float().mean()) + float(np.random.rand()))
    logits = model(torch.where(kept, batch["tokens"], 0))
    losses = F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), reduction="none")
    return {"loss": (losses * kept.flatten()).mean(), "largest": losses.max()}


def noisy_job() -> Job:
    return Job(partial(TinyDecoder, dropout=0.1), tokens_of, noisy_loss, name="noisy")


def normed_job() -> Job:
    def batch(n: int, seed: int = 0) -> dict[str, Tensor]:
        return {"x": torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))}

    return Job(Normed, batch, lambda model, batch: model(batch["x"]).square().mean(), optimizer="sgd", name="normed")


def step(strategy: Strategy, make_job: object, seed: int = 0) -> dict[str, object]:
    """One step, then an inference, on this rank."""
    torch.manual_seed(seed)
    job: Job = make_job()  # type: ignore[operator]
    world = make_world(strategy.mesh, "cpu") if strategy.mesh.devices > 1 else None
    program = build(job, strategy, "cpu", world)
    own_seed = seed + (program.world.rank if program.world else 0)
    torch.manual_seed(own_seed)
    np.random.seed(own_seed)
    DRAWN.clear()
    batches = [job.batch(strategy.micro_batch, seed=number) for number in range(strategy.accumulation)]  # type: ignore[call-arg]
    loss = program.accumulate_gradients(batches)
    drawn = DRAWN[-strategy.accumulation :]  # the first loss of batches of a shape runs dry before
    program.update()
    program.model.eval()
    output = program.infer(batches[0])
    return {
        "loss": float(loss),
        "parts": {name: float(value) for name, value in program.parts.items()},
        "drawn": drawn,
        "output": None if output is None else output.numpy(),
        "buffers": {name: buffer.numpy() for name, buffer in program.model.named_buffers()},
        "next": float(torch.rand(())),
        "next_of_numpy": float(np.random.rand()),
    }


@pytest.mark.parametrize("schedule", ["1f1b", pytest.param("zbv-zero-bubble", marks=pytest.mark.slow)])
def test_buffers_and_inference(schedule: str):
    strategy = pipelined(schedule, pp=2).but(micro_batch=4)
    (alone,) = on_ranks(1, step, strategy.but(mesh=Mesh()), normed_job)
    ranks = on_ranks(2, step, strategy, normed_job)
    buffers = {name: values for rank in ranks for name, values in rank["buffers"].items()}
    assert set(buffers) == set(alone["buffers"])
    for name, values in buffers.items():
        np.testing.assert_allclose(values, alone["buffers"][name], rtol=1e-6)
    (output,) = [rank["output"] for rank in ranks if rank["output"] is not None]
    np.testing.assert_allclose(output, alone["output"], rtol=1e-6)


def test_a_loss_draws_the_same_numbers_on_all_stages():
    strategy = pipelined("1f1b", pp=2).but(micro_batch=2)
    first, last = on_ranks(2, step, strategy, noisy_job)
    assert first["drawn"] == last["drawn"]
    assert len(set(first["drawn"])) == strategy.accumulation
    assert first["next"] == last["next"]  # the generators stay equal
    # NumPy's as in a single process: the inference draws the first number.
    assert [rank["next_of_numpy"] for rank in (first, last)] == [np.random.RandomState(seed).rand(2)[1] for seed in (0, 1)]
    assert first["loss"] == 0.0
    assert first["parts"] == {}
    assert last["loss"] > 0.0
    assert last["parts"]["largest"] > last["loss"]


def failing(strategy: Strategy) -> None:
    job = decoder_job()
    program = build(job, strategy, "cpu", make_world(strategy.mesh, "cpu"))
    sizes = [2] * (strategy.accumulation - 1) + [1]
    program.accumulate_gradients([tokens_of(size) for size in sizes])


def test_micro_batches_of_several_shapes_are_refused():
    with pytest.raises(RankError, match="differ in shape"):
        on_ranks(2, failing, pipelined("1f1b", pp=2).but(micro_batch=2))
