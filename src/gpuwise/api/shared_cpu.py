"""Ranks that share one CPU, as devices that a forecast can price: each has an equal part of it."""

from __future__ import annotations

from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.types import Chip, Link, Source
from gpuwise.notes import Note
from gpuwise.notes.parallel import ranks_share_cpu
from gpuwise.plan.space.legal import slice_of

# gloo between processes of one machine, PyTorch 2.13 on two busy cores of an AMD EPYC: all-reduces of 64 MiB between 2 and 4
# ranks reached 0.4 to 1.3 GB/s, gathers and scatters 0.07 to 0.6 GB/s, and calls of 4 bytes took 0.1 to 0.9 ms.
_BYTES_PER_S, _CALL_S = 0.5e9, 0.3e-3
_GLOO = Link(
    "gloo-loopback",
    "gloo between processes of one machine",
    "scale-up",
    allreduce_busbw_bytes_per_s=_BYTES_PER_S,
    latency_s=_CALL_S,
    source=Source("a rough figure of gpuwise: all-reduces between 2 and 4 processes on one machine of two cores", ""),
)


def ranks_on_cpu(chip: Chip, ranks: int, *, memory_bytes: int | None) -> Cluster:
    """So many ranks on this machine's CPU, each with an equal part of its cores, bandwidth and memory.

    Arguments:
        memory_bytes: what programs can use on the machine; None where unknown.
    """
    of_each = None if memory_bytes is None else memory_bytes // ranks
    return Cluster(slice_of(chip, 1 / ranks), ranks, inside=_GLOO, memory_bytes=of_each)


def shared_cpu_note(chip: Chip, ranks: int) -> Note:
    """What a forecast of ranks on a CPU assumes."""
    return ranks_share_cpu(ranks=ranks, cores=chip.sm_count or 0, exchange_bytes_per_s=_BYTES_PER_S)
