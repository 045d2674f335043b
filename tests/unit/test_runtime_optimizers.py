"""runtime.optimizers: every optimizer by every kind of kernels trains, in the step or inside backward."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from tracing_samples import WIDTH, attention_job, mlp_job

from gpuwise.errors import InputError, JobError, MissingDependencyError, UnsupportedError
from gpuwise.job import Job, dependencies
from gpuwise.runtime.build.optimizers import CombinedOptimizer, InBackward, hidden_matrices, make_optimizer
from gpuwise.runtime.build.program import Program, build
from gpuwise.strategy import KERNELS_OF, OPTIMIZERS, Strategy

PLAIN = [(name, kernels) for name in OPTIMIZERS for kernels in KERNELS_OF[name] if "bit" not in name]


def steps(job: Job, strategy: Strategy, count: int = 3) -> tuple[list[float], Program]:
    torch.manual_seed(0)
    program = build(job, strategy, "cpu")
    batch = {"x": torch.randn(4, 16, WIDTH), "y": torch.arange(4)}
    return [float(program.step([batch] * strategy.accumulation)) for _ in range(count)], program


@pytest.mark.parametrize(("optimizer", "kernels"), PLAIN)
def test_kernels_change_no_result_and_backward_may_update(optimizer: str, kernels: str) -> None:
    strategy = Strategy(optimizer=optimizer, micro_batch=4)
    expected, _ = steps(attention_job(), strategy)
    assert expected[2] < expected[0]
    losses, _ = steps(attention_job(), strategy.but(optimizer_kernels=kernels))
    assert losses == pytest.approx(expected, rel=1e-6)
    inside, program = steps(attention_job(), strategy.but(optimizer_kernels=kernels, optimizer_in_backward=True))
    assert inside == losses
    assert all(p.grad is None for p in program.model.parameters())


def test_none_takes_the_fused_kernels_where_there_are_any() -> None:
    parameter = nn.Parameter(torch.ones(3))
    for name in ("sgd", "momentum", "adam", "adamw"):
        assert make_optimizer(name, [parameter], 0.1).defaults["fused"] is True
    assert make_optimizer("adafactor", [parameter], 0.1).defaults["foreach"] is False


@pytest.mark.parametrize(("name", "kernels"), [("adafactor", "fused"), ("muon", "foreach"), ("adamw-8bit", "for-loop")])
def test_kernels_that_an_optimizer_lacks_are_refused_by_name(name: str, kernels: str) -> None:
    with pytest.raises(InputError, match=f"{name} has no {kernels} kernels") as caught:
        make_optimizer(name, [nn.Parameter(torch.ones(3))], 0.1, kernels=kernels)
    assert KERNELS_OF[name][0] in str(caught.value)


@pytest.mark.parametrize(("precision", "dtype", "scaled"), [("bf16", torch.bfloat16, False), ("amp-fp16", None, True)])
@pytest.mark.parametrize("name", ["sgd", "momentum"])
def test_no_fused_sgd_where_it_is_wrong(name: str, precision: str, dtype: torch.dtype | None, scaled: bool) -> None:
    parameter = nn.Parameter(torch.ones(3, dtype=dtype))
    assert make_optimizer(name, [parameter], 0.1, scaled=scaled).defaults["fused"] is False
    with pytest.raises(InputError, match=r"PyTorch's fused SGD") as caught:
        make_optimizer(name, [parameter], 0.1, kernels="fused", scaled=scaled)
    assert "--optimizer-kernels foreach" in str(caught.value)
    with pytest.raises(InputError, match=r"PyTorch's fused SGD"):
        build(attention_job(), Strategy(optimizer=name, optimizer_kernels="fused", precision=precision), "cpu")
    for choice in ("adam", "adamw"):
        assert make_optimizer(choice, [parameter], 0.1, scaled=scaled).defaults["fused"] is True


@pytest.mark.parametrize("precision", ["bf16", "amp-fp16"])
def test_a_jobs_own_fused_sgd_is_refused_where_it_is_wrong(precision: str) -> None:
    job = replace(attention_job(), optimizer=lambda some: torch.optim.SGD(some, lr=0.1, momentum=0.9, fused=True))
    with pytest.raises(JobError, match=r"SGD\(fused=True\)") as caught:
        build(job, Strategy(precision=precision), "cpu")
    assert "leave out fused=True" in str(caught.value)
    assert build(job, Strategy(precision="amp-bf16"), "cpu").optimizer is not None
    plain = replace(attention_job(), optimizer=lambda some: torch.optim.SGD(some, lr=0.1, momentum=0.9))
    assert build(plain, Strategy(precision=precision), "cpu").optimizer is not None


def test_a_model_that_makes_its_own_parameters_in_16_bits_gets_no_fused_sgd_on_a_cpu() -> None:
    program = build(replace(attention_job(), model=lambda: nn.Linear(WIDTH, 4).half(), optimizer="sgd"), Strategy(), "cpu")
    assert program.optimizer is not None
    assert program.optimizer.defaults["fused"] is False


def test_a_jobs_own_optimizer_takes_no_kernels_but_steps_in_backward() -> None:
    job = replace(attention_job(), optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    with pytest.raises(InputError, match="makes its own optimizer"):
        build(job, Strategy(optimizer_kernels="fused"), "cpu")
    assert steps(job, Strategy(micro_batch=4, optimizer_in_backward=True))[0] == steps(job, Strategy(micro_batch=4))[0]


def test_muon_takes_the_matrices_of_blocks_and_leaves_the_rest_to_adamw() -> None:
    _, program = steps(attention_job(), Strategy(optimizer="muon", micro_batch=4), 1)
    assert isinstance(program.optimizer, CombinedOptimizer)
    muon, adamw = program.optimizer.parts
    hidden = {id(p) for p in hidden_matrices(program.model)}
    assert {id(p) for group in muon.param_groups for p in group["params"]} == hidden
    names = {id(p): name for name, p in program.model.named_parameters()}
    assert sorted(names[i] for i in hidden) == [f"layers.{n}.{m}.weight" for n in (0, 1) for m in ("out", "qkv")]
    assert set(program.optimizer.state) == set(program.model.parameters())
    assert isinstance(adamw, torch.optim.AdamW)
    with pytest.raises(UnsupportedError, match="no matrices in repeated blocks"):
        build(mlp_job(), Strategy(optimizer="muon"), "cpu")


def test_several_optimizers_behave_as_one() -> None:
    """What schedulers and checkpoints use: common groups, one state, a state dict that comes back."""
    a, b = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    both = CombinedOptimizer([torch.optim.SGD([a], lr=1.0), torch.optim.Adam([b], lr=1.0)])
    scheduler = torch.optim.lr_scheduler.LambdaLR(both, lambda step: 0.5)
    assert [group["lr"] for part in both.parts for group in part.param_groups] == [0.5, 0.5]
    (a.sum() + b.sum()).backward()
    both.step()
    scheduler.step()
    assert a.tolist() == [0.5, 0.5]
    saved = both.state_dict()
    both.load_state_dict(saved)
    assert both.parts[1].state[b]["exp_avg"].tolist() == pytest.approx([0.1, 0.1])
    both.zero_grad()
    assert a.grad is b.grad is None


def test_an_optimizer_in_backward_cannot_scale_fp16() -> None:
    with pytest.raises(InputError, match="fp16"):
        build(attention_job(), Strategy(optimizer_in_backward=True, precision="amp-fp16"), "cpu")
    with pytest.raises(InputError, match="kept"):
        build(attention_job(), Strategy(optimizer_in_backward=True, keep_gradients=True), "cpu")


def test_kept_gradients_are_zeroed_in_place_and_change_no_result() -> None:
    strategy = Strategy(optimizer="adamw", micro_batch=4, accumulation=2)
    expected, _ = steps(attention_job(), strategy)
    kept, program = steps(attention_job(), strategy.but(keep_gradients=True))
    assert kept == expected
    assert all(p.grad is not None and not p.grad.any() for p in program.model.parameters())


def test_an_update_in_backward_frees_each_gradient_before_the_next_arrives() -> None:
    parameters = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    InBackward(parameters, lambda some: torch.optim.SGD(some, lr=0.5))
    held: list[int] = []

    class Watch(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, *gradients: Tensor) -> Tensor:
            held.append(sum(p.grad is not None for p in parameters))
            return gradients[0]

    x = torch.ones(2)
    for parameter in parameters:
        x = Watch.apply(x * parameter)
    x.sum().backward()
    assert held == [0, 0, 0]
    assert all(p.tolist() != [1.0, 1.0] for p in parameters)


def test_low_bit_state_without_torchao_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> object:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(dependencies.importlib, "import_module", absent)
    with pytest.raises(MissingDependencyError, match="torchao"):
        make_optimizer("adamw-8bit", [nn.Parameter(torch.ones(3))], 0.1)


@pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="needs torchao")
@pytest.mark.parametrize("optimizer", ["adamw-8bit", "adamw-4bit"])
def test_low_bit_state_trains_like_adamw(optimizer: str) -> None:
    """Without compiling, which takes half a minute: the same operations one by one."""
    expected, _ = steps(attention_job(), Strategy(optimizer="adamw", micro_batch=4))
    with torch.compiler.set_stance("force_eager"):
        losses, _ = steps(attention_job(), Strategy(optimizer=optimizer, micro_batch=4))
        inside, _ = steps(attention_job(), Strategy(optimizer=optimizer, micro_batch=4, optimizer_in_backward=True))
    assert losses == pytest.approx(expected, rel=0.05)
    assert inside == losses
