"""A model that is built without values on all ranks but rank 0 trains as one that every rank builds whole, to the bit."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tests.dist.language_jobs import language_job
from tests.dist.ranks import on_ranks
from tests.dist.tiny_decoder import SEQ_LEN, VOCABULARY, TinyDecoder, adamw, decoder_job, next_token_loss, tokens_of
from tests.dist.training import micro_batches
from torch import Tensor, nn

from gpuwise.errors import JobError
from gpuwise.job import Job
from gpuwise.job.models.language import next_token_batch, token_loss
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.measure.live_storages import LiveStorages
from gpuwise.runtime.build import job_model
from gpuwise.runtime.build.program import build
from gpuwise.runtime.parallel.regions import local_of
from gpuwise.runtime.parallel.world import make_world
from gpuwise.strategy import Mesh, Parallelism, Strategy

STEPS = 3


class Scaled(TinyDecoder):
    """With buffers, saved or not, and an attribute, all of random numbers; weights that are drawn anew at the end."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.register_buffer("saved", torch.rand(VOCABULARY))
        self.register_buffer("own", torch.rand(SEQ_LEN, 1), persistent=False)
        self.register_buffer("steps", torch.tensor(3))
        self.register_buffer("mask", torch.rand(VOCABULARY) > 0.1, persistent=False)
        self.factor = torch.rand(VOCABULARY)
        self.apply(self.draw)

    @staticmethod
    def draw(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        logits = super().forward(tokens) * self.factor + self.saved * self.steps
        return logits * self.mask + self.own


class Recurrent(TinyDecoder):
    """With a module that keeps references to its parameters beside the registered ones."""

    def __init__(self) -> None:
        super().__init__(layers=2)
        self.recurrent = nn.LSTM(VOCABULARY, VOCABULARY, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.recurrent(super().forward(tokens))[0]


class Hidden(Scaled):
    """Keeps a tensor in a list, where nobody could put its values."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = [torch.rand(VOCABULARY)]

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens) + self.tables[0]


class Reads(Scaled):
    """Reads the values of its weights while it is built."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = float(self.head.weight.std())

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens) * self.scale


class Views(Scaled):
    """Two buffers of one memory."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("part", self.saved[:4], persistent=False)


class Loads(Scaled):
    """Begins with values of its own, as from a file."""

    def __init__(self) -> None:
        super().__init__()
        values = torch.Generator(device="cpu").manual_seed(5)
        shapes = {name: tensor.shape for name, tensor in self.named_parameters()}
        state = {name: torch.randn(shape, generator=values, device="cpu") * 0.1 for name, shape in shapes.items()}
        self.load_state_dict(state, strict=False)


def job_of(model: Callable[[], nn.Module]) -> Job:
    return Job(
        model=model, batch=tokens_of, loss=next_token_loss, optimizer=adamw, name="decoder with buffers", seq_len=SEQ_LEN
    )


def trained(strategy: Strategy, make_job: Callable[[], Job], *, whole: bool) -> dict[str, Any]:
    """What a rank has after its model is built, and the losses of its first steps."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    job = make_job()
    if whole:
        job_model.defers = lambda world: False
    program = build(job, strategy, "cpu", make_world(strategy.mesh, "cpu"))
    tensors = dict(program.model.named_parameters()) | dict(program.model.named_buffers())
    state = {name: local_of(t).detach().clone().double().numpy() for name, t in tensors.items()}
    drawn = [torch.rand(3).tolist(), random.random(), np.random.rand()]
    torch.manual_seed(1)
    losses = [float(program.step(micro_batches(job, program, step))) for step in range(STEPS)]
    trains = [p.requires_grad for p in program.model.parameters()]
    return {"state": state, "drawn": drawn, "losses": losses, "trains": trains, "notes": [note.kind for note in program.notes]}


def check_equal(strategy: Strategy, make_job: Callable[[], Job]) -> list[str]:
    """Builds and trains in both ways. Returns the kinds of rank 0's notes."""
    ranks = strategy.mesh.devices
    expected = on_ranks(ranks, partial(trained, whole=True), strategy, make_job)
    results = on_ranks(ranks, partial(trained, whole=False), strategy, make_job)
    for result, whole in zip(results, expected, strict=True):
        assert set(result["state"]) == set(whole["state"])
        for name, values in whole["state"].items():
            assert np.array_equal(result["state"][name], values), name
        for what in ("drawn", "losses", "trains"):
            assert result[what] == whole[what], what
    return results[0]["notes"]


SCALED = partial(job_of, Scaled)
TIED = partial(job_of, partial(Scaled, tied=True))
CASES = {
    "shards": (Strategy(mesh=Mesh(dp_shard=2), micro_batch=2), SCALED, True),
    "shards of uneven rows": (Strategy(mesh=Mesh(dp_shard=3), micro_batch=2), SCALED, False),
    "shards in bf16": (Strategy("bf16", mesh=Mesh(dp_shard=2), micro_batch=2), SCALED, False),
    "shards, amp, recomputed": (Strategy("amp-bf16", recompute="full", mesh=Mesh(dp_shard=2), micro_batch=2), SCALED, False),
    "shards of tied weights": (Strategy(mesh=Mesh(dp_shard=2), micro_batch=2), TIED, False),
    "shards of optimizer state": (
        Strategy(mesh=Mesh(dp_shard=2), micro_batch=2, parallelism=Parallelism(shard="optimizer")),
        SCALED,
        False,
    ),
    "replicas of shards": (Strategy(mesh=Mesh(dp_replicate=2, dp_shard=2), micro_batch=2), SCALED, False),
    "tensor": (Strategy(mesh=Mesh(tp=2), micro_batch=2), SCALED, True),
    "tensor, tied": (Strategy(mesh=Mesh(tp=2), micro_batch=2), TIED, False),
    "shards and tensor": (Strategy(mesh=Mesh(dp_shard=2, tp=2), micro_batch=2), SCALED, False),
    "context": (Strategy(mesh=Mesh(cp=2), micro_batch=2), decoder_job, False),
    "pipeline": (Strategy(mesh=Mesh(pp=2), micro_batch=2, accumulation=2), SCALED, True),
    "pipeline, tied": (Strategy(mesh=Mesh(pp=2), micro_batch=2, accumulation=2), TIED, False),
    "pipeline of shards": (Strategy(mesh=Mesh(pp=2, dp_shard=2), micro_batch=2, accumulation=2), SCALED, False),
    "experts": (Strategy(mesh=Mesh(dp_shard=2, ep=2), micro_batch=2), partial(language_job, "mixtral"), False),
    "adapters": (Strategy(adapter="lora", mesh=Mesh(dp_shard=2), micro_batch=2), SCALED, False),
    "recurrent": (Strategy(mesh=Mesh(dp_shard=2), micro_batch=2), partial(job_of, Recurrent), False),
    "compiled": (Strategy(compile=True, mesh=Mesh(dp_shard=2), micro_batch=2), decoder_job, False),
    "loaded values": (Strategy(mesh=Mesh(dp_shard=2), micro_batch=2), partial(job_of, Loads), False),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if default else pytest.mark.slow) for name, (_, _, default) in CASES.items()]
)
def test_weights_and_losses_are_those_of_whole_builds(name: str):
    strategy, make_job, _ = CASES[name]
    assert "whole-build" not in check_equal(strategy, make_job)


@pytest.mark.parametrize(
    "model", [pytest.param(Hidden, marks=pytest.mark.slow), Reads, pytest.param(Views, marks=pytest.mark.slow)]
)
def test_a_model_that_needs_its_values_is_built_whole(model: type[nn.Module]):
    assert "whole-build" in check_equal(Strategy(mesh=Mesh(dp_shard=2), micro_batch=2), partial(job_of, model))


def broken() -> nn.Module:
    raise ValueError("no such width")


def error_of(strategy: Strategy) -> str:
    try:
        build(job_of(broken), strategy, "cpu", make_world(strategy.mesh, "cpu"))
    except JobError as error:
        return str(error)
    return ""


def test_a_builder_that_raises_is_an_error_on_every_rank():
    errors = on_ranks(2, error_of, Strategy(mesh=Mesh(dp_shard=2)))
    assert all("decoder with buffers cannot be built: ValueError: no such width" in error for error in errors)


DEEP = LlamaConfig(vocabulary=128, width=64, layers=12, heads=4, kv_heads=4, hidden=128)


def deep_job() -> Job:
    batch = partial(next_token_batch, vocabulary=DEEP.vocabulary, seq_len=SEQ_LEN)
    return Job(partial(Llama, DEEP), batch, loss=token_loss, name="deep decoder", seq_len=SEQ_LEN)


class PeakStorages(LiveStorages):
    """The most bytes that were alive after any operator."""

    most_bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = super().__torch_dispatch__(func, types, args, kwargs)
        self.most_bytes = max(self.most_bytes, self.live_bytes)
        return result


def built_bytes(strategy: Strategy) -> tuple[int, int]:
    """The most bytes that this rank has while it builds, and those of its parameters."""
    world = make_world(strategy.mesh, "cpu")
    with PeakStorages() as storages:
        program = build(deep_job(), strategy, "cpu", world)
    return storages.most_bytes, sum(local_of(parameter).nbytes for parameter in program.model.parameters())


@pytest.mark.parametrize("mesh", [Mesh(dp_shard=4), pytest.param(Mesh(pp=2), marks=pytest.mark.slow)])
def test_rank_0_alone_has_the_whole_model(mesh: Mesh):
    parameters = [4 * parameter.numel() for parameter in Llama(DEEP).parameters()]
    first, *others = on_ranks(mesh.devices, built_bytes, Strategy(mesh=mesh, accumulation=mesh.pp))
    # The piece that is sent, the parameter that it fills, and a copy of a shard that fully_shard pads.
    under_way = 4 * max(parameters)
    assert first[0] < sum(parameters) + under_way
    for most, own in others:
        assert most < own + under_way < sum(parameters)
