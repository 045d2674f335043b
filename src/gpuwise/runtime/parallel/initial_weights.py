"""Initial weights of a model that no device can hold whole: rank 0 has them in host memory, the others take their parts."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gpuwise.runtime.build.names import plain_name
from gpuwise.runtime.parallel.regions import Region, is_dtensor, local_of, shard_of

_PIECE_BYTES = 16 * 2**20  # of a parameter, that are sent at once


@dataclass(frozen=True)
class _Parameter:
    """A parameter of the job's model: all of its names, its shape and its dtype."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype

    def pieces(self) -> Iterator[Region]:
        """Regions along the first dim that together are the whole parameter, of at most 16 MiB each, or of one row."""
        if not self.shape or not math.prod(self.shape):
            yield Region.whole(self.shape)
            return
        rows = max(1, _PIECE_BYTES // (self.dtype.itemsize * math.prod(self.shape[1:])))
        for first in range(0, self.shape[0], rows):
            yield Region((first, *(0 for _ in self.shape[1:])), (min(rows, self.shape[0] - first), *self.shape[1:]))

    def bytes_of(self, piece: Region) -> int:
        return piece.numel * self.dtype.itemsize


class InitialWeights:
    """Rank 0's initial values of a model's parameters, which are on the meta device on all ranks.

    Arguments:
        model: the job's whole model, alike on all ranks.
        values: the parameters' values by name, on rank 0; empty on the others.
        device: of this rank's parts.
    """

    def __init__(self, model: nn.Module, values: dict[str, Tensor], device: torch.device):
        self._values, self._device = values, device
        names: dict[nn.Parameter, list[str]] = defaultdict(list)
        for name, parameter in model.named_parameters(remove_duplicate=False):
            names[parameter].append(name)
        self._parameters = [_Parameter(tuple(own), tuple(p.shape), p.dtype) for p, own in names.items()]

    def copy_into(self, model: nn.Module, names: Collection[str]) -> None:
        """Gives a copy of the model, or of some of its modules, rank 0's values. All ranks call it together.

        Arguments:
            model: what this rank has of the copy, split in any way.
            names: of the parameters of the whole copy.
        """
        self._send_to(model, [p for p in self._parameters if any(name in names for name in p.names)])

    def hand_out(self, model: nn.Module) -> None:
        """Gives a rank's part of the model rank 0's values, which rank 0 frees one by one. All ranks call it together.

        Arguments:
            model: what this rank has of the job's model, split or sharded in any way, its parameters under their own names.
        """
        self._send_to(model, self._parameters, last=True)

    @torch.no_grad()
    def _send_to(self, model: nn.Module, parameters: Sequence[_Parameter], *, last: bool = False) -> None:
        own = {plain_name(name): parameter for name, parameter in model.named_parameters(remove_duplicate=False)}
        slots: dict[nn.Parameter, list[tuple[nn.Module, str]]] = defaultdict(list)
        for module in model.modules():
            for name, empty in module._parameters.items():
                if empty is not None:
                    slots[empty].append((module, name))
        most_bytes = max((parameter.bytes_of(piece) for parameter in parameters for piece in parameter.pieces()), default=0)
        room = torch.empty(most_bytes, dtype=torch.uint8, device=self._device)
        for parameter in parameters:
            empty = next((own[name] for name in parameter.names if name in own), None)
            filled = None if empty is None else alike(empty, torch.empty_like(empty, device=self._device))
            self._send(parameter, filled, room)
            if empty is not None and filled is not None:
                for module, name in slots[empty]:
                    replace_parameter(module, name, filled)
            if last:
                for name in parameter.names:
                    self._values.pop(name, None)

    def _send(self, parameter: _Parameter, own: Tensor | None, room: Tensor) -> None:
        """Sends a parameter from rank 0 in pieces, of which each rank keeps what is its own. room: memory for a piece."""
        whole, values = Region.whole(parameter.shape), self._values.get(parameter.names[0])
        part = shard_of(own).region if own is not None and is_dtensor(own) else whole
        for piece in parameter.pieces():
            sent = room[: parameter.bytes_of(piece)].view(parameter.dtype).view(piece.shape)
            if values is not None:
                sent.copy_(values[piece.slices(whole)])
            broadcast(sent)
            common = part.common(piece)
            if own is not None and common is not None:
                local_of(own)[common.slices(part)].copy_(sent[common.slices(piece)])


def alike(parameter: nn.Parameter, values: Tensor) -> nn.Parameter:
    """A parameter with other values and this one's attributes."""
    other = nn.Parameter(values.detach(), requires_grad=parameter.requires_grad)
    if not is_dtensor(parameter):
        vars(other).update(vars(parameter))
    return other


def replace_parameter(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Replaces a parameter. Modules with their own __setattr__, as RNNs have, keep further references."""
    if type(module).__setattr__ is nn.Module.__setattr__:
        module._parameters[name] = parameter
    else:
        setattr(module, name, parameter)


def broadcast(tensor: Tensor) -> None:
    """Copies rank 0's values into a contiguous tensor of all ranks, byte by byte: collectives lack some dtypes."""
    if tensor.numel():
        dist.broadcast(tensor.detach().reshape(-1).view(torch.uint8), 0)
