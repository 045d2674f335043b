"""Expert parallelism: losses and weights are those of one process."""

from __future__ import annotations

from functools import partial

import pytest
from tests.dist.language_jobs import language_job
from tests.dist.ranks import RankError
from tests.dist.training import compare

from gpuwise.strategy import Mesh, Strategy


def test_split_experts_train_as_whole_ones():
    difference = compare(Strategy(mesh=Mesh(dp_shard=2, ep=2)), partial(language_job, "mixtral", clip_norm=0.05), steps=8)
    assert difference.loss < 1e-5 and difference.weights < 1e-5


def test_more_ranks_than_experts_are_refused():
    with pytest.raises(RankError, match="over 3 devices does not divide 4 experts"):
        compare(Strategy(mesh=Mesh(dp_shard=3, ep=3)), partial(language_job, "mixtral"), steps=1, samples=3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh",
    [Mesh(dp_shard=4, ep=4), Mesh(dp_shard=4, ep=2), Mesh(dp_shard=2, ep=2, dp_replicate=2), Mesh(dp_shard=8, ep=4)],
    ids=str,
)
@pytest.mark.parametrize(("accumulation", "clip_norm"), [(1, None), (2, 0.05)])
def test_each_mesh_trains_as_one_process(mesh: Mesh, accumulation: int, clip_norm: float | None):
    make_job = partial(language_job, "mixtral", clip_norm=clip_norm)
    difference = compare(Strategy(mesh=mesh, accumulation=accumulation), make_job)
    print(mesh, accumulation, difference)
    assert difference.loss < 1e-5 and difference.weights < 1e-5
