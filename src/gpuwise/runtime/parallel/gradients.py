"""Norms of tensors of which each rank holds a part, equal on all ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from gpuwise.runtime.parallel.world import EXPERT_SHARD, World


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this rank holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def complete_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Places each gradient as its parameter lies: one that is a sum over ranks still to be made is reduced."""
    for parameter in parameters:
        gradient = parameter.grad
        if isinstance(gradient, DTensor) and isinstance(parameter, DTensor) and gradient.placements != parameter.placements:
            parameter.grad = gradient.redistribute(placements=parameter.placements)


@torch.no_grad()
def total_norm(tensors: Sequence[Tensor], world: World | None) -> Tensor:
    """The 2-norm of all tensors together, over all ranks: of each tensor as a whole, and of all pipeline stages.

    Ranks of an axis along which a tensor is not sharded have the same one, which counts once.
    """
    if world is None or not _differ_between_ranks(tensors, world):
        return torch.nn.utils.get_total_norm([local(tensor) for tensor in tensors])
    squares = torch.zeros((), device=_device_of(tensors, world))
    for groups, parts in _by_sharding(tensors, world.experts).items():
        square = torch.nn.utils.get_total_norm(parts).float() ** 2
        for group in groups:
            dist.all_reduce(square, group=group)
        squares += square
    if world.mesh.pp > 1:
        dist.all_reduce(squares, group=world.group("pp"))
    return squares.sqrt()


@torch.no_grad()
def all_finite(tensors: Sequence[Tensor], world: World | None) -> bool:
    """Whether all tensors are finite on all ranks; waits for the device."""
    parts = [part for tensor in tensors if (part := local(tensor)).numel()]  # an empty shard has no largest number
    finite = torch.isfinite(torch.nn.utils.get_total_norm(parts, norm_type=math.inf))
    if world is not None and _differ_between_ranks(tensors, world):
        everywhere = finite.to(_device_of(tensors, world), torch.float32)
        dist.all_reduce(everywhere, op=dist.ReduceOp.MIN)
        finite = everywhere > 0
    return bool(finite)


@torch.no_grad()
def clip_gradients(
    parameters: Sequence[nn.Parameter], largest: float, world: World | None, *, copies: Sequence[nn.Parameter] = ()
) -> Tensor:
    """Scales gradients down so that their total norm is `largest` at most. Returns the norm before, equal on all ranks.

    Arguments:
        parameters: of this rank.
        largest: norm.
        world: this rank's position.
        copies: those parameters that another rank counts in the norm.
    """
    if world is None:
        return torch.nn.utils.clip_grad_norm_(parameters, largest)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    counted_elsewhere = {id(parameter) for parameter in copies}
    norm = total_norm([p.grad for p in parameters if p.grad is not None and id(p) not in counted_elsewhere], world)
    if gradients:
        factor = (largest / (norm + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grads_with_norm_
        torch._foreach_mul_([local(gradient) for gradient in gradients], factor.to(gradients[0].device))
    return norm


def _differ_between_ranks(tensors: Sequence[Tensor], world: World) -> bool:
    """Whether ranks hold other tensors, or other parts of them. All ranks come to the same answer."""
    return world.mesh.pp > 1 or any(isinstance(tensor, DTensor) for tensor in tensors)


def _device_of(tensors: Sequence[Tensor], world: World) -> torch.device:
    """The device of a rank, which may have no tensors."""
    return local(tensors[0]).device if tensors else torch.device(world.device_mesh.device_type)


def _by_sharding(tensors: Sequence[Tensor], experts: DeviceMesh | None) -> dict[tuple[dist.ProcessGroup, ...], list[Tensor]]:
    """The local parts of tensors, by the groups of ranks over which they are sharded."""
    parts: dict[tuple[dist.ProcessGroup, ...], list[Tensor]] = {}
    for tensor in tensors:
        groups: tuple[dist.ProcessGroup, ...] = ()
        if isinstance(tensor, DTensor):
            mesh = tensor.device_mesh
            groups = tuple(mesh.get_group(i) for i, p in enumerate(tensor.placements) if not p.is_replicate())
            axes = mesh.mesh_dim_names or ()
            if experts is not None and EXPERT_SHARD in axes and "ep" not in axes:
                groups += (experts.get_group("ep"),)  # ranks of ep have different experts
        parts.setdefault(groups, []).append(local(tensor))
    return parts
