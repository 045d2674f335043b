"""The mesh of several devices for which the user names none: copies of the model, or shards where only those fit."""

from __future__ import annotations

from gpuwise.hardware.cluster import Cluster
from gpuwise.notes import Note
from gpuwise.notes.step import assumed_mesh
from gpuwise.plan.pricing.largest import one_sample_fits
from gpuwise.plan.pricing.step import StepPricer
from gpuwise.strategy import Mesh, Strategy
from gpuwise.units import format_bytes


def with_data_parallel(pricer: StepPricer, strategy: Strategy, cluster: Cluster) -> tuple[Strategy, tuple[Note, ...]]:
    """The strategy with a mesh of all devices of a cluster, and a note on it; as it stands where it has such a mesh.

    Each device holds a copy of the model if one sample then fits, else a shard of it.
    """
    devices = cluster.devices
    if strategy.mesh.devices == devices:
        return strategy, ()
    copies = strategy.but(mesh=Mesh(dp_replicate=devices))
    if strategy.mode != "train" or one_sample_fits(pricer, copies, cluster):
        return copies, (copies_or_shards(devices=devices, axis="dp_replicate"),)
    needed_bytes = pricer.needed_bytes(copies.but(micro_batch=1), cluster)
    shards = strategy.but(mesh=Mesh(dp_shard=devices))
    return shards, (copies_or_shards(devices=devices, axis="dp_shard", needed_bytes=needed_bytes),)


def copies_or_shards(*, devices: int, axis: str, needed_bytes: int | None = None) -> Note:
    """The note on the mesh of devices for which the user names none.

    Arguments:
        axis: of the mesh, or the mesh.
        needed_bytes: that a copy would need on each device, where it does not fit; None (default) where it does.
    """
    why = "each device holds a copy of the parameters it computes with"
    if needed_bytes is not None:
        why = f"parameters are sharded, a copy on each device would need {format_bytes(needed_bytes)}"
    return assumed_mesh(devices=devices, axis=axis, why=why)
