"""Backward passes that are differentiated again, teachers in inference mode, and operators that fail inside autograd."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import flop_registry

from gpuwise.errors import JobError
from gpuwise.job import Job
from gpuwise.strategy import Strategy
from gpuwise.trace import PHASES, Trace
from gpuwise.tracing import record

FP32 = Strategy(precision="fp32", micro_batch=8)
Batch = dict[str, Tensor]


class Products(TorchDispatchMode):
    """Counts operations by PyTorch's formulas. FlopCounterMode's hooks on modules fail under a second differentiation."""

    flops = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func._overloadpacket in flop_registry:
            self.flops += flop_registry[func._overloadpacket](*args, **(kwargs or {}), out_val=out)
        return out


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))


def batch(n: int) -> Batch:
    return {"x": torch.randn(n, 32), "y": torch.randint(0, 10, (n,))}


def job(loss: Callable[[nn.Module, Batch], Tensor]) -> Job:
    return Job(model, batch, loss, optimizer="sgd", name="net")


def gradient_penalty(net: nn.Module, of: Batch) -> Tensor:
    x = of["x"].clone().requires_grad_()
    output = net(x)
    (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
    return F.cross_entropy(output, of["y"]) + slope.square().mean()


def by_sample(net: nn.Module, of: Batch) -> Tensor:
    """The norms of each sample's gradient, as differentially private training clips them."""

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(net, weights, x[None]), y[None])

    of_samples = vmap(grad(loss), (None, 0, 0))(dict(net.named_parameters()), of["x"], of["y"])
    return sum((g.square().mean() for g in of_samples.values()), torch.zeros((), device=of["x"].device))


def meta_learning(net: nn.Module, of: Batch) -> Tensor:
    """One inner step of MAML."""
    weights = dict(net.named_parameters())
    inner = F.cross_entropy(functional_call(net, weights, of["x"]), of["y"])
    slopes = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
    stepped = {name: weight - 0.1 * slope for (name, weight), slope in zip(weights.items(), slopes, strict=True)}
    return F.cross_entropy(functional_call(net, stepped, of["x"]), of["y"])


def rows(trace: Trace) -> list[tuple[object, ...]]:
    """Name, operations and bytes of each operator of a step."""
    table, values = trace.operations, trace.operations.values
    return [(table.name[row], *values[row].tolist()) for row in trace.sequence.operation]


@pytest.mark.parametrize("loss", [gradient_penalty, by_sample, meta_learning])
@pytest.mark.parametrize("target", ["accelerator", "cpu"])
def test_a_second_differentiation_multiplies_what_plain_pytorch_does_and_recomputes_nothing(loss, target):
    torch.manual_seed(0)
    net, of = model(), batch(8)
    with Products() as counted:
        loss(net, of).backward()
    trace = record(job(loss), FP32, target=target)
    assert trace.model_flops == counted.flops
    assert PHASES.index("recompute") not in trace.sequence.phase


def test_a_checkpoint_still_recomputes():
    def loss(net: nn.Module, of: Batch) -> Tensor:
        return F.cross_entropy(checkpoint(net, of["x"], use_reentrant=False), of["y"])

    trace = record(job(loss), FP32)
    assert PHASES.index("recompute") in trace.sequence.phase


@pytest.mark.parametrize("target", ["accelerator", "cpu"])
def test_a_teacher_in_inference_mode_runs_what_one_without_gradients_does(target):
    class Distilled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.teacher = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
            self.student = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 10))

    def under(without: Callable[[], object]) -> Job:
        def loss(net: Distilled, of: Batch) -> Tensor:
            with without():  # type: ignore[attr-defined]
                goal = net.teacher(of["x"])
            return F.mse_loss(net.student(of["x"]), goal.clone())

        return Job(Distilled, lambda n: {"x": torch.randn(n, 3, 8, 8)}, loss, optimizer="sgd", name="net")

    without, inference = (record(under(mode), FP32, target=target) for mode in (torch.no_grad, torch.inference_mode))
    assert rows(inference) == rows(without)
    assert inference.model_flops > 0


def test_a_decorated_function_runs_in_inference_mode_too():
    @torch.inference_mode()
    def goal(net: nn.Module, x: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        return net(x)

    def loss(net: nn.Module, of: Batch) -> Tensor:
        known = goal(net, of["x"])
        assert torch.is_grad_enabled()
        return F.mse_loss(net(of["x"]), known.clone())

    assert "aten.linear.default" not in record(job(loss), FP32).operations.name


@pytest.mark.parametrize("target", ["accelerator", "cpu"])
@pytest.mark.parametrize("function", [F.multi_margin_loss, F.multilabel_margin_loss])
def test_a_backward_without_a_shape_rule_is_named(function, target):
    """On the virtual device its exception, passing through autograd's C++, ended the process."""

    def loss(net: nn.Module, of: Batch) -> Tensor:
        output = net(of["x"])
        labels = of["y"] if function is F.multi_margin_loss else of["y"][:, None].expand_as(output)
        return function(output, labels)

    with pytest.raises(JobError, match=f"{function.__name__}_backward.* has no shape rule"):
        record(job(loss), FP32, target=target)


def test_an_exception_of_a_backward_in_python_keeps_its_words():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, slope):
            raise ValueError("of the job's own backward")

    with pytest.raises(JobError, match="ValueError: of the job's own backward"):
        record(job(lambda net, of: Doubled.apply(net(of["x"])).sum()), FP32)


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True),
        lambda: nn.MultiheadAttention(32, 4, dropout=0.1, batch_first=True),
    ],
    ids=["encoder layer", "attention"],
)
def test_layers_of_pytorch_multiply_in_inference_what_they_do_in_training(layer):
    """In inference PyTorch runs them as one operator, whose products a recording would not see."""
    attention = isinstance(layer(), nn.MultiheadAttention)

    def output(net: nn.Module, of: Batch) -> Tensor:
        return net(of["x"], of["x"], of["x"], need_weights=False)[0].mean() if attention else net(of["x"]).mean()

    def batch_of(n: int) -> Batch:
        return {"x": torch.randn(n, 16, 32)}

    net, of = layer(), batch_of(8)
    with Products() as counted:  # of a training's forward pass, which has no operators of its own
        output(net, of)
    inference = record(Job(layer, batch_of, output, name="net"), FP32.but(mode="infer"))
    assert inference.model_flops == counted.flops > 0
