"""The world of a recorded rank: PyTorch's fake process group, of any number of ranks in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._python_dispatch import _disable_current_modes

from gpuwise.errors import InputError, UnsupportedError
from gpuwise.runtime.devices.default import default_stream
from gpuwise.runtime.parallel.world import World, make_world
from gpuwise.strategy import Mesh
from gpuwise.tracing.patching import patched

# What makes or cuts a mesh computes with its numbers, which fake tensors do not have.
_OF_MESHES = ("__init__", "__getitem__", "_flatten", "_unflatten", "_concatenate")


@contextmanager
def fake_world(mesh: Mesh, rank: int, device_type: str) -> Iterator[World | None]:
    """A context in which this process is one rank of a mesh whose other ranks are nowhere; None for a single device.

    Collectives return at once, with values that mean nothing. To be entered outside fake tensor modes.

    Raises InputError for a rank that the mesh has not, UnsupportedError inside a process that is one of several ranks.
    """
    if not 0 <= rank < mesh.devices:
        raise InputError(f"there is no rank {rank}: the mesh {mesh} has {mesh.devices}.", ["name a rank from 0 on"])
    if mesh.devices == 1:
        yield None
        return
    if dist.is_initialized():
        raise UnsupportedError(
            "a step of several devices is recorded in a process that is itself one of several.",
            ["record it in a process of its own, before torch.distributed is initialised"],
        )
    from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend, too

    # Every device type has the backend, in groups of a mesh, too: messages between two ranks look for that of their tensors.
    capability = {**dist.Backend.backend_capability, "fake": list(dict.fromkeys(("cpu", device_type)))}
    with patched(dist.Backend, "backend_capability", capability):
        dist.init_process_group("fake", rank=rank, world_size=mesh.devices, store=FakeStore())
        try:
            stream = default_stream(torch.get_device_module(device_type).current_stream)
            with _meshes_outside_fake(), stream, patched(FakeTensor, "__deepcopy__", _copy_of_fake):
                yield make_world(mesh, device_type)
        finally:
            dist.destroy_process_group()
            _forget_meshes()


@contextmanager
def _meshes_outside_fake() -> Iterator[None]:
    """While entered, meshes are made of real tensors also inside a fake tensor mode."""
    with ExitStack() as stack:
        for name in _OF_MESHES:
            stack.enter_context(patched(DeviceMesh, name, _outside_fake(DeviceMesh.__dict__[name])))
        yield


def _forget_meshes() -> None:
    """Empties DTensor's caches: a mesh of the next world may equal one of these, whose groups are gone."""
    from torch.distributed.tensor import _redistribute
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache

    _clear_sharding_prop_cache()
    _redistribute._gen_transform_infos.cache_clear()
    _redistribute.clear_redistribute_planner_cache()


def _copy_of_fake(tensor: FakeTensor, memo: dict[int, object]) -> torch.Tensor:
    """A deep copy of a tensor without values: PyTorch's own looks for them."""
    if id(tensor) not in memo:
        copy: torch.Tensor = tensor.detach().clone()
        if isinstance(tensor, nn.Parameter):
            copy = nn.Parameter(copy, requires_grad=False)
        memo[id(tensor)] = copy.requires_grad_(tensor.requires_grad)
    result = memo[id(tensor)]
    assert isinstance(result, torch.Tensor)
    return result


def _outside_fake(method: Callable[..., object] | staticmethod) -> object:
    """The method, called outside all dispatch modes."""
    function = method.__func__ if isinstance(method, staticmethod) else method

    def called(*args: object, **kwargs: object) -> object:
        with _disable_current_modes():
            return function(*args, **kwargs)

    return staticmethod(called) if isinstance(method, staticmethod) else called
