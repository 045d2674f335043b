"""The order of a compiled graph's kernels: the one that takes least memory, by Inductor's estimate."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from gpuwise.tracing.compile.fusion import schedule


def products(function: object, *args: Tensor) -> list[str]:
    plan = schedule(make_fx(function, tracing_mode="fake")(*args).graph, on_cpu=False)  # type: ignore[arg-type]
    return [kernel.library.name for kernel in plan.kernels if kernel.library is not None]


def test_where_nothing_is_gained_the_order_is_that_of_the_graph() -> None:
    def function(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return a.mm(b), b.mm(a)

    assert products(function, torch.zeros(64, 8), torch.zeros(8, 64)) == ["mm", "mm_1"]


def test_what_is_large_and_short_lived_is_not_there_together() -> None:
    def function(x: Tensor, tall: Tensor, narrow: Tensor) -> tuple[Tensor, Tensor]:
        one, two = x.mm(tall), x.mm(tall)  # large
        return one.mm(narrow), two.mm(narrow)

    order = products(function, torch.zeros(64, 8), torch.zeros(8, 512), torch.zeros(512, 1))
    assert order == ["mm", "mm_2", "mm_1", "mm_3"]
