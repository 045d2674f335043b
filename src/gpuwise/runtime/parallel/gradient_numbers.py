"""GradientNumbers: a few numbers of each rank that DistributedDataParallel averages in the bucket of the first gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from gpuwise.job.job import Batch
from gpuwise.runtime.build.named_loss import LossParts
from gpuwise.runtime.parallel.job_loss import JobLoss


class GradientNumbers:
    """Numbers that are averaged over the replicas in each step, without a collective of their own.

    They are the gradient of a parameter that the model does not have: the backward pass begins with it, so that it is in the
    first bucket that is reduced. Each step calls `put` before its last backward pass and `take` after it, always with as many
    numbers.

    Attributes:
        parameter: the parameter whose gradient they are; None before the first reduction.
    """

    def __init__(self, ranks: int) -> None:
        self.parameter: nn.Parameter | None = None
        self._ranks = ranks
        self._numbers: Tensor | None = None

    @property
    def size(self) -> int:
        """How many numbers have been put; 0 if none."""
        return 0 if self._numbers is None else len(self._numbers)

    def put(self, numbers: Sequence[float]) -> None:
        """Sets this rank's numbers."""
        self._numbers = torch.tensor([self._ranks * number for number in numbers])  # DDP averages

    def take(self) -> Tensor:
        """The sums over ranks, in fp32; the next backward pass overwrites them."""
        assert self.parameter is not None
        numbers, self.parameter.grad = self.parameter.grad, None
        assert numbers is not None
        return numbers

    def of_step(self) -> Tensor:
        """The numbers of the step, in its backward pass."""
        assert self._numbers is not None, "the numbers of a step are put before its backward pass"
        numbers, self._numbers = self._numbers, None
        return numbers


class LossWithNumbers(nn.Module):
    """The job's loss, whose backward pass gives the numbers to their parameter.

    Attributes:
        reduces: whether the next backward pass reduces gradients, and the numbers with them.
    """

    def __init__(self, loss: JobLoss, numbers: GradientNumbers):
        super().__init__()
        self.loss, self.numbers, self.reduces = loss, numbers, True
        self.parameter = numbers.parameter = nn.Parameter(torch.zeros(numbers.size))

    def forward(self, batch: Batch) -> tuple[Tensor, LossParts]:
        loss, parts = self.loss(batch)
        if self.reduces and torch.is_grad_enabled():
            loss = _WithNumbers.apply(loss, self.parameter, self.numbers)
        return loss, parts


class NumbersContext(Protocol):
    """What the forward pass keeps for the backward pass."""

    numbers: GradientNumbers


class _WithNumbers(torch.autograd.Function):
    """The loss as it is. Its backward pass gives the parameter its numbers for a gradient."""

    @staticmethod
    def forward(ctx: NumbersContext, loss: Tensor, parameter: Tensor, numbers: GradientNumbers) -> Tensor:
        ctx.numbers = numbers
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: NumbersContext, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        return gradients[0], ctx.numbers.of_step(), None
