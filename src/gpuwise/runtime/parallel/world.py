"""World: one rank's position in a mesh of devices, and PyTorch's groups along its axes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from gpuwise.errors import InputError
from gpuwise.strategy import AXES, Mesh
from gpuwise.units import counted

EXPERT_SHARD = "expert_shard"  # the dimension of World.experts along which parameters of the same experts are sharded


@dataclass(frozen=True)
class World:
    """One rank among the ranks of a mesh.

    Attributes:
        mesh: degrees of parallelism.
        rank: number of this rank, from 0.
        device_mesh: PyTorch's mesh, with all of AXES (also those of one device), in that order.
        experts: with expert parallelism, the same ranks as (pp, expert_replicate, expert_shard, ep): within a stage those of ep
            have different experts, those of the others the same. None without.
    """

    mesh: Mesh
    rank: int
    device_mesh: DeviceMesh
    experts: DeviceMesh | None = None

    @property
    def size(self) -> int:
        return self.mesh.devices

    @property
    def data_rank(self) -> int:
        """The number of this rank among those that read their own samples; ranks of tp, cp and pp read the same."""
        return self.mesh.data_rank(self.rank)

    def coordinate(self, axis: str) -> int:
        """The position of this rank along an axis."""
        return self.mesh.coordinates(self.rank)[axis]

    @cached_property
    def shards(self) -> DeviceMesh:
        """The mesh of one dimension along which parameters are sharded: dp_shard, and cp, whose ranks hold the same ones."""
        if self.mesh.cp == 1:
            return self.device_mesh["dp_shard"]
        return self.device_mesh["dp_shard", "cp"]._flatten("dp_shard_cp")

    @cached_property
    def replicas_of_shards(self) -> DeviceMesh:
        """The mesh (dp_replicate, shards): gradients are scattered along the second dimension and reduced along the first."""
        return DeviceMesh._concatenate([self.device_mesh["dp_replicate"], self.shards])

    @cached_property
    def data(self) -> DeviceMesh:
        """The mesh of one dimension of all ranks that hold the same parameters: dp_replicate, dp_shard and cp."""
        return self.device_mesh["dp_replicate", "dp_shard", "cp"]._flatten("data")

    def group(self, axis: str) -> dist.ProcessGroup:
        """The process group of this rank along an axis."""
        return self.device_mesh[axis].get_group()


def make_world(mesh: Mesh, device_type: str) -> World:
    """The World of this process. torch.distributed has been initialised, for real or with the fake backend.

    To be called outside fake tensor modes: PyTorch computes with the numbers of a mesh.

    Raises InputError when the mesh is of another number of devices than there are ranks.
    """
    size = dist.get_world_size()
    if mesh.devices != size:
        raise InputError(
            f"the mesh {mesh} is of {counted(mesh.devices, 'device')}, but there are {size} ranks.", [f"--mesh dp={size}"]
        )
    device_mesh = init_device_mesh(device_type, mesh.degrees, mesh_dim_names=AXES)
    experts = None
    if mesh.ep > 1:
        shards = (mesh.pp, mesh.dp_replicate, mesh.dp_shard // mesh.ep, mesh.ep)
        experts = init_device_mesh(device_type, shards, mesh_dim_names=("pp", "expert_replicate", EXPERT_SHARD, "ep"))
    return World(mesh, dist.get_rank(), device_mesh, experts)


def check_world(mesh: Mesh, world: World | None) -> None:
    """Raises InputError unless this process is a rank of this mesh; without a world it is the only one."""
    if (world.mesh if world is not None else Mesh()) != mesh:
        raise InputError(
            f"the strategy is for the mesh {mesh}, and this process is one of {1 if world is None else world.size}.",
            ["make_world(strategy.mesh, ...) in each process", "use a mesh of one device"],
        )
