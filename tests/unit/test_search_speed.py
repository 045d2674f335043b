"""The benchmark of the search looks at Calculon's points, all of them."""

from __future__ import annotations

from typing import cast

import numpy as np
from benchmarks.search_speed import POINTS
from benchmarks.support.calculon_blocks import Fabric, TensorRank
from benchmarks.support.calculon_space import BATCH, MeshSpace, meshes

from gpuwise.hardware import load_catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.plan.compose.table import BlockTable
from gpuwise.plan.space.layouts import divisors


class Sizes:
    """A table of no blocks."""

    micro_batches = divisors(BATCH)


def test_all_points_of_calculon_are_looked_at() -> None:
    table = cast(BlockTable, Sizes())
    fabric = Fabric(Cluster(load_catalog().chip("a100-80gb-sxm"), 8, 64), 8)
    none = np.zeros((len(Sizes.micro_batches), 3, 2))
    too_large = TensorRank(*[none] * 6, none + 1e15, none[..., None], 0.0, 0.0, 0.0)
    spaces = [MeshSpace(table, fabric, too_large, mesh) for mesh in meshes()]
    assert len(spaces) == 184
    assert all(space.seconds(80e9) is None for space in spaces)
    assert sum(space.points for space in spaces) == POINTS
