"""Data parallelism: losses and weights are those of one process."""

from __future__ import annotations

import pytest
from tests.dist.training import compare

from gpuwise.strategy import Mesh, Strategy


@pytest.mark.parametrize("mesh", [Mesh(dp_replicate=2), Mesh(dp_shard=2)], ids=str)
def test_two_ranks_train_as_one(mesh: Mesh):
    difference = compare(Strategy(mesh=mesh))
    assert difference.loss < 1e-5 and difference.weights < 1e-5
