"""Random numbers of host tensors are those of another device, here the CPU itself by way of copies."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from gpuwise.runtime.build.drawing import DrawnOn

CPU = torch.device("cpu")


def draws() -> list[torch.Tensor]:
    """What initial weights are made of."""
    layer = nn.Linear(5, 3)
    nn.init.orthogonal_(layer.weight)
    nn.init.trunc_normal_(layer.bias)
    own = torch.Generator().manual_seed(1)
    return [
        *layer.parameters(),
        torch.randn(3, 2),
        torch.rand(2, dtype=torch.float64),
        torch.randint(9, (4,)),
        torch.randperm(6),
        torch.empty(3).exponential_(),
        torch.bernoulli(torch.full((8,), 0.5)),
        torch.normal(torch.zeros(3), torch.ones(3)),
        nn.functional.dropout(torch.ones(16)),
        torch.rand(2, generator=own),
        torch.rand(3, device="meta"),
    ]


def test_values_and_the_generator_are_those_of_the_device():
    torch.manual_seed(0)
    expected, after = draws(), torch.rand(2)
    torch.manual_seed(0)
    with DrawnOn(CPU), CPU:
        results = draws()
    assert torch.equal(torch.rand(2), after)
    for result, value in zip(results, expected, strict=True):
        assert result.device == value.device
        assert value.is_meta or torch.equal(result, value)


class InPlace(TorchDispatchMode):
    """Notes which operators write into one tensor, and not into a copy of it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self.address, self.names = tensor.data_ptr(), list[str]()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.is_mutable and args[0].data_ptr() == self.address:
            self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_only_random_operators_without_a_generator_of_their_own_run_elsewhere():
    weights = torch.empty(4)
    with InPlace(weights) as seen, DrawnOn(CPU):
        weights.normal_()
        weights.normal_(generator=torch.Generator())
        weights.mul_(2).add_(1)
    assert seen.names == ["copy_", "normal_", "mul_", "add_"]
