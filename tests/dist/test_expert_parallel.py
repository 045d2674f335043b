"""Expert parallelism: losses and weights are those of one process."""

from __future__ import annotations

from functools import partial

import pytest
from tests.dist.cases import Case, check, each_of
from tests.dist.expert_parallel_cases import EXPERT_PARALLEL_CASES
from tests.dist.language_jobs import language_job
from tests.dist.ranks import RankError
from tests.dist.training import compare

from gpuwise.strategy import Mesh, Strategy


@each_of(EXPERT_PARALLEL_CASES)
def test_split_experts_train_as_whole_ones(case: Case):
    check(case)


def test_more_ranks_than_experts_are_refused():
    with pytest.raises(RankError, match="over 3 devices does not divide 4 experts"):
        compare(Strategy(mesh=Mesh(dp_shard=3, ep=3)), partial(language_job, "mixtral"), steps=1, samples=3)
