"""Tensor parallelism: losses and weights are those of one process."""

from __future__ import annotations

from tests.dist.cases import Case, check, each_of
from tests.dist.tensor_parallel_cases import TENSOR_AND_DATA_CASES, TENSOR_PARALLEL_CASES


@each_of((*TENSOR_PARALLEL_CASES, *TENSOR_AND_DATA_CASES))
def test_split_layers_train_as_one_process(case: Case):
    check(case)
