"""Data parallelism: losses and weights are those of one process."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from tests.dist.cases import Case, check, each_of
from tests.dist.data_parallel_cases import CASES, Branching, branching_job
from tests.dist.ranks import RankError, on_ranks
from tests.dist.tiny_decoder import decoder_job, tokens_of
from tests.dist.training import micro_batches, relative, train
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gpuwise.errors import UnsupportedError
from gpuwise.job import Job
from gpuwise.runtime.build.program import Program, build
from gpuwise.runtime.parallel.seeds import rank_seed
from gpuwise.runtime.parallel.world import make_world
from gpuwise.strategy import Mesh, Parallelism, StepFacts, Strategy, check_techniques

DDP, FSDP = Mesh(dp_replicate=2), Mesh(dp_shard=2)


@each_of(CASES)
def test_ranks_train_as_one_process(case: Case):
    check(case)


def test_a_comparison_sees_other_weights():
    values = np.array([1.0, 2.0])
    assert relative(values, values) == 0
    assert relative(values, np.array([1.0, 2.1])) > 1e-2
    assert relative(np.array([1.0, np.nan]), values) == float("inf")


def left_out_later(model: Branching, batch: dict[str, Tensor]) -> Tensor:
    """Leaves out a block on one rank, in the last of three steps alone."""
    model.settings["calls"] = model.settings.get("calls", 0) + 1
    leave_out = 1 if model.settings["calls"] == 3 and dist.get_rank() == 1 else None
    logits = model.head(model.encode(batch["tokens"], leave_out=leave_out))
    return F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())


def test_a_parameter_that_a_later_step_leaves_out_is_an_error():
    strategy = Strategy(mesh=DDP, micro_batch=4)
    with pytest.raises(RankError, match=r"(?s)rank 1 of 2.*does not depend on blocks.1.norm1.weight"):
        on_ranks(2, train, partial(branching_job, left_out_later), strategy, 3)


@torch.no_grad()
def output(program: Program, batch: dict[str, Tensor]) -> Tensor:
    """The model's output in an evaluation."""
    outputs: list[Tensor] = []

    def evaluate(model: nn.Module) -> dict[str, float]:
        outputs.append(model(batch["tokens"]))
        return {}

    program.evaluated(evaluate)
    return outputs[0]


def look_around(strategy: Strategy) -> dict[str, Any]:
    """What a program answers on this rank, in the course of two steps."""
    torch.manual_seed(0)
    job = decoder_job(clip_norm=0.1, ema_decay=0.5)
    program = build(job, strategy, "cpu", make_world(strategy.mesh, "cpu"))
    batch = tokens_of(2)
    before = program.infer(batch)
    evaluated = output(program, batch)
    program.accumulate_gradients(micro_batches(job, program, 0))
    answers = {
        "names": [name for name, _ in program.model.named_parameters()],
        "without gradient": program.without_gradient(),
        "left out": program.left_out_of_optimizer(),
        "updated": sorted(program.names_of_updated().values()),
        "finite gradients": program.gradients_are_finite(),
    }
    program.update()
    program.step(micro_batches(job, program, 1))
    assert program.average is not None
    assert program.gradient_norm is not None
    with program.average.in_place():
        averaged = output(program, batch)
    after = program.infer(batch)
    answers["finite"] = program.parameters_are_finite()
    if dist.get_rank() == 1:  # of a shard, on one rank alone
        first = next(program.model.parameters())
        with torch.no_grad():
            (first.to_local() if isinstance(first, DTensor) else first).fill_(torch.nan)
    answers["finite after a NaN"] = program.parameters_are_finite()
    outputs = {"before": before, "evaluated": evaluated, "averaged": averaged, "after": after}
    return {**answers, "norm": float(program.gradient_norm), **{name: t.numpy() for name, t in outputs.items()}}


@pytest.mark.parametrize("shard", [pytest.param("parameters", marks=pytest.mark.slow), "gradients"])
def test_a_rank_answers_as_one_process_does(shard: str):
    sharded = Strategy(mesh=FSDP, micro_batch=4, parallelism=Parallelism(shard=shard))
    one, two = on_ranks(2, look_around, sharded)
    (alone,) = on_ranks(1, look_around, Strategy(micro_batch=4, accumulation=2))
    for rank in (one, two):
        for name in ("names", "without gradient", "left out", "updated", "finite gradients", "finite"):
            assert rank[name] == alone[name], name
        for name in ("before", "evaluated", "averaged", "after", "norm"):
            np.testing.assert_allclose(rank[name], alone[name], rtol=1e-4, atol=1e-6, err_msg=name)
        assert rank["finite after a NaN"] is False
    assert not np.allclose(alone["averaged"], alone["after"], atol=1e-4)


def overflow(strategy: Strategy) -> tuple[float, list[float]]:
    """The loss scale, and the weights of the head, after a step whose gradients overflow on rank 1 alone."""
    torch.manual_seed(0)
    job = decoder_job()
    program = build(job, strategy, "cpu", make_world(strategy.mesh, "cpu"))
    program.accumulate_gradients(micro_batches(job, program, 0))
    last = list(program.model.parameters())[-1].grad
    assert last is not None
    if dist.get_rank() == 1:
        (last.to_local() if isinstance(last, DTensor) else last).fill_(torch.inf)
    weights = [p.detach().clone() for p in program.model.parameters()]
    program.update()
    unchanged = all(torch.equal(a, b) for a, b in zip(weights, program.model.parameters(), strict=True))
    return program.scaler.get_scale(), [float(unchanged)]


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [DDP, FSDP], ids=str)
def test_ranks_skip_a_step_of_fp16_together(mesh: Mesh):
    results = on_ranks(2, overflow, Strategy(mesh=mesh, micro_batch=4, precision="amp-fp16"))
    assert results == [(2.0**15, [1.0])] * 2


def build_refused(strategy: Strategy, make_job: Any) -> str:
    try:
        build(make_job(), strategy, "cpu", make_world(strategy.mesh, "cpu"))
    except UnsupportedError as error:
        return str(error)
    return ""


class WithNumber(Branching):
    """With a parameter of no dimensions, as CLIP's logit scale is."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(2.0))


class InTwoDtypes(Branching):
    def __init__(self) -> None:
        super().__init__()
        self.head.double()


def number_job() -> Job:
    return Job(model=WithNumber, batch=tokens_of, loss=lambda model, batch: model(batch["tokens"]).sum())


def dtypes_job() -> Job:
    return Job(model=InTwoDtypes, batch=tokens_of, loss=lambda model, batch: model(batch["tokens"]).sum())


def muon(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Muon([p for p in parameters if p.dim() == 2])


@pytest.mark.parametrize(
    ("make_job", "words"),
    [
        pytest.param(partial(decoder_job, optimizer="muon"), "whole matrices", marks=pytest.mark.slow),
        pytest.param(partial(decoder_job, optimizer=muon), "torch.optim.Muon", marks=pytest.mark.slow),
        (number_job, "scale is a single number"),
        pytest.param(dtypes_job, "head.weight is float64", marks=pytest.mark.slow),
    ],
)
def test_what_shards_cannot_hold_is_refused(make_job: Any, words: str):
    answers = on_ranks(2, build_refused, Strategy(mesh=FSDP), make_job)
    assert all(words in answer for answer in answers), answers


@pytest.mark.parametrize(
    ("settings", "facts", "words"),
    [
        ({"offload": "optimizer"}, {}, "before devices have averaged it"),
        ({"optimizer_in_backward": True}, {}, "before devices have averaged it"),
        ({}, {"own_step": True}, "averaged over devices"),
        ({}, {"own_step": True, "closure": True}, "evaluates the loss itself"),
        ({"adapter": "qlora", "mesh": FSDP}, {}, "QLoRA"),
        ({"optimizer": "muon", "mesh": FSDP}, {}, "whole matrices"),
        ({"optimizer": "muon", "mesh": Mesh(dp_replicate=2, pp=2), "accumulation": 2}, {}, "whole matrices"),
        ({"channels_last": True, "mesh": FSDP}, {}, "usual layout"),
        ({"optimizer": "adafactor", "mesh": FSDP}, {}, "sharded parameters"),
        ({"optimizer": "sgd", "optimizer_kernels": "fused", "mesh": FSDP}, {}, "no fused kernels"),
    ],
)
def test_what_devices_would_train_wrongly_is_refused(settings: dict[str, Any], facts: dict[str, Any], words: str):
    with pytest.raises(UnsupportedError, match=words) as caught:
        check_techniques(Strategy(**{"mesh": DDP, **settings}), StepFacts(priced=False, **facts))
    assert caught.value.ways_out


def seeds_of_ranks() -> int:
    return rank_seed(7, make_world(Mesh(dp_replicate=2, tp=2), "cpu"))


@pytest.mark.slow
def test_ranks_with_other_samples_draw_other_numbers():
    assert rank_seed(7, None) == 7
    first, same, other, other_too = on_ranks(4, seeds_of_ranks)
    assert first == same == 7
    assert other == other_too != 7
