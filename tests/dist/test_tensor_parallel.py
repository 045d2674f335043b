"""Tensor parallelism: losses and weights are those of one process."""

from __future__ import annotations

import pytest
from tests.dist.cases import Case, check, each_of
from tests.dist.tensor_parallel_cases import TENSOR_AND_DATA_CASES, TENSOR_PARALLEL_CASES

from gpuwise.errors import UnsupportedError
from gpuwise.strategy import Mesh, Parallelism, StepFacts, Strategy, check_techniques


@each_of((*TENSOR_PARALLEL_CASES, *TENSOR_AND_DATA_CASES))
def test_split_layers_train_as_one_process(case: Case):
    check(case)


@pytest.mark.parametrize(
    ("sequence", "recompute", "words"), [(False, "none", "sum whole outputs"), (True, "full", "computed again")]
)
def test_blocks_that_pytorch_does_not_compile_are_refused(sequence: bool, recompute: str, words: str):
    parallelism = Parallelism(sequence_parallel=sequence)
    strategy = Strategy(mesh=Mesh(tp=2), compile=True, recompute=recompute, parallelism=parallelism)
    with pytest.raises(UnsupportedError, match=words):
        check_techniques(strategy, StepFacts(priced=False))
