"""Styles of `torch.distributed.tensor.parallel` for the words of a tensor-parallel plan."""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from gpuwise.errors import InputError
from gpuwise.job.parallel import is_transposed
from gpuwise.runtime.parallel.torch_types import Argument, Arguments, Function, Keywords, Saved

SEQUENCE = Shard(1)


class SplitColumns(ColwiseParallel):
    """ColwiseParallel, also of transformers' Conv1D, whose weight is (inputs, outputs)."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not is_transposed(module):
            return super()._apply(module, device_mesh)
        return _with_transposed_weight(self, module, device_mesh, {"weight": Shard(1), "bias": Shard(0)})


class SplitRows(RowwiseParallel):
    """RowwiseParallel, also of transformers' Conv1D."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not is_transposed(module):
            return super()._apply(module, device_mesh)
        self.desired_input_layouts = (Shard(-1),)
        return _with_transposed_weight(self, module, device_mesh, {"weight": Shard(0), "bias": Replicate()})


def _with_transposed_weight(
    style: SplitColumns | SplitRows, module: nn.Module, mesh: DeviceMesh, placements: dict[str, Placement]
) -> nn.Module:
    for name, placement in placements.items():
        distribute(module, name, mesh, placement)
    return distribute_module(
        module,
        mesh,
        None,
        partial(style._prepare_input_fn, style.input_layouts, style.desired_input_layouts),
        partial(style._prepare_output_fn, style.output_layouts, style.use_local_output),
    )


def distribute(module: nn.Module, name: str, mesh: DeviceMesh, placement: Placement) -> None:
    """Makes a module's parameter, the same on all ranks, a DTensor."""
    parameter = getattr(module, name)
    spread = distribute_tensor(parameter, mesh, [placement])
    module.register_parameter(name, nn.Parameter(spread, requires_grad=parameter.requires_grad))


class Replicated(ParallelStyle):
    """A module whose parameters every rank has in full, on the mesh of the others, which clipping and checkpoints need.

    The module computes with plain tensors: reading one of its parameters gives this rank's local tensor.

    Arguments:
        summed: whether each rank applies the module to a part of its input (some heads, some of the sequence), so that its
            gradients are summed over the ranks.
    """

    def __init__(self, *, summed: bool = False):
        super().__init__()
        self.summed = summed

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name in [name for name, parameter in module._parameters.items() if parameter is not None]:
            distribute(module, name, device_mesh, Replicate())
        read_locally(module, device_mesh.get_group() if self.summed else None)
        return module


def read_locally(module: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Lets a module read its parameters, DTensors, as this rank's local tensors.

    Arguments:
        group: ranks over which their gradients are summed; None for no sum.
    """
    names = [name for name, parameter in module._parameters.items() if parameter is not None]
    kind = type(module)
    properties = {name: property(partial(_local_parameter, name=name, group=group)) for name in names}
    module.__class__ = type(kind.__name__, (kind,), {**properties, "__module__": kind.__module__})


def _local_parameter(module: nn.Module, *, name: str, group: dist.ProcessGroup | None) -> Tensor | None:
    parameter = module._parameters[name]
    if not isinstance(parameter, DTensor) or parameter.device_mesh.ndim > 1:
        return parameter  # FSDP2 looks at its shards, which lie on further axes of the mesh
    local = parameter.to_local()
    return local if group is None or local is None else _SumGradient.apply(local, group)


class _SumGradient(torch.autograd.Function):
    """The identity, whose gradient is summed over the ranks of a group."""

    @staticmethod
    def forward(ctx: Saved, tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Saved, gradient: Tensor) -> tuple[Tensor, None]:
        return collectives.all_reduce(gradient.contiguous(), "sum", ctx.group), None


def moved(tensor: Tensor, mesh: DeviceMesh, before: Placement, after: Placement) -> Tensor:
    """A local tensor of one layout as the local tensor of another; gradients take the way back.

    Raises InputError where the ranks do not divide the sequence.
    """
    if isinstance(after, Shard):
        check_parts(tensor.shape[after.dim], mesh.size())
    whole = DTensor.from_local(tensor, mesh, (before,), run_check=False)
    return whole.redistribute(placements=(after,)).to_local().contiguous()


def check_parts(length: int, degree: int) -> None:
    """Raises InputError where the ranks do not divide sequences of this length."""
    if length % degree:
        raise InputError(
            f"sequence parallelism over {degree} devices does not divide sequences of {length:,}.",
            ["another --seq-len", "leave out --sequence-parallel"],
        )


def move_input(module: nn.Module, mesh: DeviceMesh, before: Placement, after: Placement) -> None:
    """Changes the layout of the module's first tensor, wherever it is among the arguments."""

    def change(module: nn.Module, args: Arguments, kwargs: Keywords) -> tuple[Arguments, dict[str, Argument]]:
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        if not tensors:
            return args, dict(kwargs)
        result = moved(tensors[0], mesh, before, after)
        swap: Function = lambda value: result if value is tensors[0] else value  # noqa: E731
        return tuple(map(swap, args)), {name: swap(value) for name, value in kwargs.items()}

    module.register_forward_pre_hook(change, with_kwargs=True)


def move_output(module: nn.Module, mesh: DeviceMesh, before: Placement, after: Placement) -> None:
    """Changes the layout of the module's output, or of the first of a tuple of outputs."""

    def change(module: nn.Module, args: object, output: Argument) -> Argument:
        if isinstance(output, Tensor):
            return moved(output, mesh, before, after)
        return (moved(output[0], mesh, before, after), *output[1:])

    module.register_forward_hook(change)
