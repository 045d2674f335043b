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
        why = "each device holds a copy of the model"
        return copies, (assumed_mesh(devices=devices, axis="dp_replicate", why=why),)
    needed = format_bytes(pricer.needed_bytes(copies.but(micro_batch=1), cluster))
    why = f"the model is sharded, a copy on each device would need {needed}"
    return strategy.but(mesh=Mesh(dp_shard=devices)), (assumed_mesh(devices=devices, axis="dp_shard", why=why),)
