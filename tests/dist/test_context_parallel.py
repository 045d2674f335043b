"""Context parallelism: losses and weights are those of one process."""

from __future__ import annotations

from functools import partial

import pytest
from tests.dist.cases import Case, check, each_of
from tests.dist.context_parallel_cases import CONTEXT_AND_OTHER_CASES, CONTEXT_PARALLEL_CASES
from tests.dist.language_jobs import language_job
from tests.dist.ranks import RankError
from tests.dist.training import compare

from gpuwise.strategy import Mesh, Strategy


@each_of((*CONTEXT_PARALLEL_CASES, *CONTEXT_AND_OTHER_CASES))
def test_parts_of_sequences_train_as_whole_ones(case: Case):
    check(case)


def test_attention_with_a_mask_is_refused():
    with pytest.raises(RankError, match="context parallelism does not split attention with a mask"):
        compare(Strategy(mesh=Mesh(cp=2)), partial(language_job, "t5"), steps=1)
