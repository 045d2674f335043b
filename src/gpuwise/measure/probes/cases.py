"""Case: one kernel at one size in one dtype, for the sweep of `kernels`; and what all of them are made and checked with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import torch

from gpuwise.cost.kernel_sizes import checked_sizes, columns_of, dtype_of
from gpuwise.measure.probes.peaks import DTYPES

# How far a result may be from the one in double precision, as a share of its norm: several roundings of its dtype, room for
# sums and for Winograd's convolutions. One wrong number among a thousand is 3e-2 off.
ALLOWED = {"fp32": 1e-4, "tf32": 5e-3, "fp16": 5e-3, "bf16": 2e-2}
_TILE = 1_000_003  # random numbers; a prime, so that no two rows of a matrix made of them are the same
_POSITIONS = 4


class ProbeKernel(NamedTuple):
    """A kernel on inputs of its own. correct: runs it once more and checks part of the result against double precision."""

    run: Callable[[], object]
    correct: Callable[[], bool]


class Noise:
    """Normal numbers, as weights and activations are: they take a processor's usual power. Drawn once, with a fixed seed, and
    handed out from another place each time, as drawing takes longer than most kernels."""

    def __init__(self, device: torch.device):
        self.device = device
        self._tile = torch.randn(_TILE, generator=torch.Generator(device).manual_seed(0), device=device)
        self._position = 0

    def __call__(self, *shape: int, dtype: str = "fp32", grad: bool = False) -> torch.Tensor:
        """A tensor of a shape. dtype: of DTYPES. grad: whether gradients with respect to it will be asked for."""
        flat, filled = torch.empty(prod(shape), dtype=DTYPES[dtype], device=self.device), 0
        while filled < len(flat):
            piece = self._tile[self._position : self._position + len(flat) - filled]
            flat[filled : filled + len(piece)].copy_(piece)
            filled, self._position = filled + len(piece), (self._position + len(piece)) % _TILE
        return flat.view(shape).requires_grad_(grad)


Make = Callable[[Noise, Mapping[str, int]], ProbeKernel]


@dataclass(frozen=True)
class Case:
    """group, name, dtype, sizes: as in Row. grows: the size that is raised on a device that is done too soon. work: operations
    and bytes of a run of given sizes, at the least: each operand read once, the result written once. make: fresh inputs."""

    group: str
    name: str
    dtype: str
    sizes: Mapping[str, int]
    grows: str
    work: Callable[[Mapping[str, int]], tuple[int, int]]
    make: Make

    @property
    def flops(self) -> int:
        return self.work(self.sizes)[0]

    @property
    def bytes(self) -> int:
        return self.work(self.sizes)[1]

    def grown(self, factor: int) -> Case:
        return replace(self, sizes={**self.sizes, self.grows: factor * self.sizes[self.grows]})


def work_of(kind: str, dtype: str) -> Callable[[Mapping[str, int]], tuple[int, int]]:
    """Case.work of a kind of kernel that forecasts know by its sizes, gemm, conv_backward, ...: counted as they count it."""

    def work(sizes: Mapping[str, int]) -> tuple[int, int]:
        columns = columns_of(kind, checked_sizes(kind, sizes), dtype_of(dtype)[1])
        return round(columns["flops"]), round(columns["bytes_read"] + columns["bytes_written"])

    return work


def backward_of(out: torch.Tensor, inputs: Sequence[torch.Tensor], grad: torch.Tensor) -> Callable[[], Sequence[torch.Tensor]]:
    """A run of the backward pass alone, as often as one likes: the gradients of `inputs`, given that of the output."""
    return lambda: torch.autograd.grad(out, inputs, grad, retain_graph=True)


def agree(result: torch.Tensor, exact: torch.Tensor, dtype: str) -> bool:
    """Whether a result in a dtype is the one in double precision, but for rounding."""
    return bool((result.double() - exact).norm() <= ALLOWED[dtype] * exact.norm())


def positions(size: int, device: torch.device, count: int = _POSITIONS) -> torch.Tensor:
    """At most `count` indices below a size, the first and the last among them."""
    return torch.linspace(0, size - 1, min(size, count), dtype=torch.float64).long().to(device)
