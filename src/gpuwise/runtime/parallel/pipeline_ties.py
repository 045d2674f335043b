"""Parameters that several stages use, such as an embedding that is also the output matrix: their gradients are added."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from gpuwise.runtime.parallel.gradients import local


class Ties:
    """Adds the gradients that the copies of each shared parameter got on their ranks.

    All copies begin alike and get the same gradients, to the bit, so that they remain alike.

    Arguments:
        ranks: for each parameter of several stages, by name, the ranks of the pipeline that have a copy, ascending.
        model: the stages of this rank.
        group: the ranks of the pipeline.
    """

    def __init__(self, ranks: dict[str, tuple[int, ...]], model: nn.Module, group: dist.ProcessGroup):
        self._ranks = {name: copies for name, copies in ranks.items() if len(copies) > 1}
        self._model, self._group, self._rank = model, group, dist.get_rank(group)

    @property
    def copied(self) -> list[nn.Parameter]:
        """Parameters of this rank of which a lower rank has a copy, too: norms count them there."""
        own = dict(self._model.named_parameters())
        return [own[name] for name, copies in self._ranks.items() if self._rank in copies[1:]]

    def add_gradients(self) -> None:
        """Every copy's gradient becomes the sum of all of them."""
        own = dict(self._model.named_parameters())
        for name, copies in self._ranks.items():
            if self._rank in copies and own[name].requires_grad:
                self._add(own[name], copies)

    def _add(self, parameter: nn.Parameter, copies: Sequence[int]) -> None:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        grad = parameter.grad
        if isinstance(grad, DTensor) and isinstance(parameter, DTensor) and grad.placements != parameter.placements:
            grad = parameter.grad = grad.redistribute(placements=parameter.placements)  # a sum still to be made, say
        gradient = local(grad)
        first, *others = copies
        if self._rank == first:
            for rank in others:
                other = torch.empty_like(gradient)
                dist.recv(other, group=self._group, group_src=rank)
                gradient += other
            for rank in others:
                dist.send(gradient, group=self._group, group_dst=rank)
        else:
            dist.send(gradient.contiguous(), group=self._group, group_dst=first)
            dist.recv(gradient, group=self._group, group_src=first)
