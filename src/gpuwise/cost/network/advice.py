"""What communication costs by axis of the mesh, and what would lower it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd

from gpuwise.hardware.cluster import Cluster
from gpuwise.notes import Note
from gpuwise.notes.parallel import model_parallel_across_machines
from gpuwise.strategy import AXES, Mesh, Strategy

_WARNED = 0.01  # share of a step from which model parallelism across machines is warned of
_MODEL_AXES = ("tp", "cp", "ep")  # every block of the model waits for these


@dataclass(frozen=True)
class AxisCost:
    """The axis of a mesh whose communication adds most to a step.

    Attributes:
        axis: as groups of ranks are named, "tp" or "dp_shard+cp".
        share: of the step.
        words: the axis with its degree and its link.
        remedy: what would lower it, as the end of a sentence.
    """

    axis: str
    share: float
    words: str
    remedy: str


def costliest_axis(by_axis: Mapping[str, float], strategy: Strategy, cluster: Cluster, *, step_s: float) -> AxisCost | None:
    """The axis with most exposed communication; None without any.

    Arguments:
        by_axis: exposed seconds, as CommunicationTime has them.
        step_s: seconds of the whole step.
    """
    axis = max(by_axis, key=lambda name: by_axis[name], default="")
    if not axis or not by_axis[axis] or strategy.mesh.devices != cluster.devices:
        return None
    shards = "shards over " if axis.startswith("dp_shard+") else ""
    words = f"{shards}{_degrees(axis, strategy.mesh)} {_over(axis, strategy.mesh, cluster)}"
    return AxisCost(axis, by_axis[axis] / step_s, words, _remedy(axis, strategy, cluster))


def warnings_across_machines(
    by_axis: Mapping[str, float], strategy: Strategy, cluster: Cluster, *, step_s: float
) -> tuple[Note, ...]:
    """A warning for each kind of model parallelism whose exchange between machines costs time, with the mesh that has none.
    Arguments as for costliest_axis."""
    mesh = strategy.mesh
    if mesh.devices != cluster.devices or cluster.between is None:
        return ()
    return tuple(
        model_parallel_across_machines(
            axis=axis,
            degree=getattr(mesh, axis),
            cost_s=seconds,
            share=seconds / step_s,
            link=cluster.between.name,
            mesh=str(inside_machines(mesh, cluster.devices_per_machine)),
        )
        for axis, seconds in by_axis.items()
        if axis in _MODEL_AXES and seconds >= _WARNED * step_s and crosses_machines(axis, mesh, cluster)
    )


def crosses_machines(axis: str, mesh: Mesh, cluster: Cluster) -> bool:
    """Whether the ranks of an axis, or of several joined by "+", are in several machines."""
    names = axis.split("+")
    if axis == "ep":
        return mesh.tp * mesh.cp * mesh.ep > cluster.devices_per_machine
    outermost = names[0].partition("/")[0]
    reach = 1
    for name in AXES[AXES.index(outermost) :]:
        reach *= getattr(mesh, name)
    return reach > cluster.devices_per_machine


def inside_machines(mesh: Mesh, devices_per_machine: int) -> Mesh:
    """The mesh with tensor, context and expert parallel so small that each stays inside a machine, and more shards instead."""
    tp = gcd(mesh.tp, devices_per_machine)
    cp = gcd(mesh.cp, devices_per_machine // tp)
    ep = gcd(mesh.ep, devices_per_machine // (tp * cp))
    left = mesh.tp * mesh.cp // (tp * cp)
    return replace(mesh, tp=tp, cp=cp, ep=ep, dp_shard=mesh.dp_shard * left)


def _degrees(axis: str, mesh: Mesh) -> str:
    names = dict.fromkeys(name.partition("/")[0] for name in axis.split("+"))
    several = [name for name in names if getattr(mesh, name) > 1] or names
    return ",".join(f"{'dp' if name == 'dp_replicate' else name}={getattr(mesh, name)}" for name in several)


def _over(axis: str, mesh: Mesh, cluster: Cluster) -> str:
    if crosses_machines(axis, mesh, cluster):
        return "between machines" + (f" ({cluster.between.name})" if cluster.between else "")
    return "inside the machine" + (f" ({cluster.inside.name})" if cluster.inside else "")


def _remedy(axis: str, strategy: Strategy, cluster: Cluster) -> str:
    mesh, first = strategy.mesh, axis.split("+")[0].partition("/")[0]
    crosses = crosses_machines(axis, mesh, cluster)
    if first in _MODEL_AXES:
        if crosses:
            return f"--mesh {inside_machines(mesh, cluster.devices_per_machine)} would keep it inside a machine"
        degree = getattr(mesh, first)
        smaller = replace(mesh, **{first: degree // 2}) if first == "ep" else _halved(mesh, first)
        less = f": --mesh {smaller}, where memory allows it" if degree % 2 == 0 else ""
        return f"a smaller {first} would exchange less{less}"
    if first == "dp_shard":
        return _for_shards(strategy, cluster) if crosses else "a larger --micro-batch would hide more of it"
    if first == "dp_replicate":
        ways = ["a faster link or fewer devices"]
        if strategy.mode == "train":
            ways.append("more accumulation (--accumulate)")
            ways += [] if strategy.parallelism.compress_gradients else ["--compress-gradients"]
        return f"{', or '.join(ways)} would help"
    return "fewer pipeline stages would send less"


def _halved(mesh: Mesh, axis: str) -> Mesh:
    """Half the degree of an axis, twice the shards."""
    halved: Mesh = replace(mesh, **{axis: getattr(mesh, axis) // 2, "dp_shard": 2 * mesh.dp_shard})
    return halved


def _for_shards(strategy: Strategy, cluster: Cluster) -> str:
    mesh = strategy.mesh
    shards = gcd(mesh.dp_shard, max(1, cluster.devices_per_machine // (mesh.tp * mesh.cp)))
    hide = "a larger --micro-batch or a faster network would hide more of it"
    if shards == 1 or shards == mesh.dp_shard or shards % mesh.ep:
        return hide
    inside = replace(mesh, dp_shard=shards, dp_replicate=mesh.dp_replicate * mesh.dp_shard // shards)
    return f"{hide}, and replicas of shards (--mesh {inside}) gather inside a machine, where memory allows it"
