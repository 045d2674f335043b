"""Jobs that cannot be recorded say why; answers made up for data are told."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from tracing_samples import batch_of, mlp_job

from gpuwise.errors import JobError
from gpuwise.job import Job
from gpuwise.strategy import Strategy
from gpuwise.tracing import record
from gpuwise.tracing.answers import Answers


def with_loss(loss: object) -> Job:
    return Job(mlp_job().model, mlp_job().batch, loss)  # type: ignore[arg-type]


def raises(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    raise RuntimeError("the first line\nand a second one")


def test_a_forward_that_raises_is_quoted_by_its_first_line() -> None:
    with pytest.raises(JobError, match=r"RuntimeError: the first line\.") as caught:
        record(with_loss(raises), Strategy())
    assert "second" not in str(caught.value)
    assert caught.value.ways_out


def test_shapes_that_do_not_match_are_pytorchs_own_words() -> None:
    with pytest.raises(JobError, match="a step of the job fails"):
        record(Job(mlp_job().model, batch_of(63), mlp_job().loss), Strategy())


@pytest.mark.parametrize(("loss", "operator"), [
    (lambda m, b: m(b["x"])[torch.nonzero(b["y"])].sum(), "aten.nonzero"),
    (lambda m, b: m(b["x"])[b["y"] > 2].sum(), "aten.index"),
    (lambda m, b: m(b["x"]).unique().sum(), "aten._unique2"),
    (lambda m, b: m(b["x"]).masked_select(m(b["x"]) > 0).sum(), "aten.masked_select"),
])  # fmt: skip
def test_shapes_that_depend_on_data_name_the_operator(loss: object, operator: str) -> None:
    with pytest.raises(JobError, match=operator):
        record(with_loss(loss), Strategy(micro_batch=2))


@pytest.mark.parametrize(("loss", "assumed"), [
    (lambda m, b: m(b["x"]).sum() * b["x"].sum().item(), "taken as 1.0"),
    (lambda m, b: m(b["x"]).sum() if (b["x"] > 0).all() else m(b["x"]).mean(), "all() is data"),
    (lambda m, b: m(b["x"]).sum() if b["x"].isnan().any() else m(b["x"]).mean(), "taken as False"),
    (lambda m, b: m(b["x"]).sum() if torch.equal(b["x"], b["x"]) else m(b["x"]).mean(), "equal is data"),
])  # fmt: skip
def test_values_that_are_asked_for_are_assumptions(loss: object, assumed: str) -> None:
    assumptions = record(with_loss(loss), Strategy(micro_batch=2)).header.assumptions
    assert any(assumed in text for text in assumptions), assumptions


def test_a_job_that_asks_nothing_assumes_nothing() -> None:
    assert record(mlp_job(), Strategy()).header.assumptions == ()


@pytest.mark.parametrize(("job", "message"), [
    (with_loss(lambda m, b: m(b["x"])), "the loss must be a tensor with one number"),
    (with_loss(lambda m, b: m(b["x"]).sum().detach()), "does not depend on any parameter"),
    (Job(mlp_job().model, lambda n: {"x": torch.zeros(3, 64)}, mlp_job().loss), r"batch\(2\) gave .* of shape \(3, 64\)"),
    (Job(mlp_job().model, lambda n: 1 / 0, mlp_job().loss), "batch function raised"),
    (Job(lambda: 3, mlp_job().batch, mlp_job().loss), "must return an nn.Module"),  # type: ignore[arg-type, return-value]
    (Job(lambda: nn.Linear(64, 5).requires_grad_(False), mlp_job().batch, mlp_job().loss), "requires a gradient"),
    (Job(lambda: nn.Linear(64, 1 // 0), mlp_job().batch, mlp_job().loss), "ZeroDivisionError"),
], ids=["vector", "detached", "batch shape", "batch raises", "no module", "frozen", "model raises"])  # fmt: skip
def test_wrong_jobs(job: Job, message: str) -> None:
    with pytest.raises(JobError, match=message):
        record(job, Strategy(micro_batch=2))


def test_an_operator_without_a_shape_rule_is_named() -> None:
    library = torch.library.Library("gpuwise_test", "DEF")
    library.define("opaque(Tensor x) -> Tensor")
    library.impl("opaque", lambda x: x.clone(), "CPU")
    with pytest.raises(JobError, match=r"gpuwise_test\.opaque"):
        record(with_loss(lambda m, b: m(torch.ops.gpuwise_test.opaque(b["x"])).sum()), Strategy(micro_batch=2))


def test_what_lay_in_memory_before_does_not_answer_for_what_lies_there_now() -> None:
    answers, value, asks = Answers(), torch.zeros(()), torch.ops.aten._local_scalar_dense.default
    answers.remember(torch.ops.aten.any.default, value)
    assert answers.answer(asks, (value,)) is False
    answers.remember(torch.ops.aten.add.Tensor, value)  # the same address, as after a free
    assert answers.answer(asks, (value,)) == 1.0
