"""Offload: state, and then parameters, in host memory, which a search tries where nothing fits a device without it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpuwise.cost.rates import family
from gpuwise.errors import GpuwiseError
from gpuwise.hardware.cluster import Cluster
from gpuwise.plan.space.constraints import Constraints
from gpuwise.strategy import OFFLOADS, check_techniques


def offloaded(constraints: Constraints, cluster: Cluster) -> Iterator[Constraints]:
    """The constraints with each offload that goes with the techniques: on one GPU with a host apart from it.

    Several devices average their gradients before the host would have them (gpuwise.strategy.legal), and memory that GPU and
    host share has nothing to gain.
    """
    base, chip = constraints.techniques, cluster.chip
    if cluster.devices > 1 or family(chip) != "gpu" or chip.shares_host_memory or base.offload != "none":
        return
    for offload in OFFLOADS[1:]:
        techniques = base.but(offload=offload)
        try:
            check_techniques(techniques)
        except GpuwiseError:
            continue
        yield replace(constraints, techniques=techniques)
