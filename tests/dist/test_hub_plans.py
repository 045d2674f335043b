"""Tensor parallelism by the plans in Hugging Face's configs: losses and weights are those of one process."""

from __future__ import annotations

import pytest
from tests.dist.cases import Case, each_of
from tests.dist.hub_plan_cases import HUB_PLAN_CASES
from tests.dist.training import compare

from gpuwise.runtime.build.program import Program

pytest.importorskip("transformers")


def follows_the_config(program: Program) -> None:
    (note,) = [note for note in program.notes if note.kind == "tensor-parallel-plan"]
    assert note.figures["source"] == "by the plan of the model's config", note.text


@each_of(HUB_PLAN_CASES)
def test_models_split_by_their_configs_train_as_one_process(case: Case):
    difference = compare(case.strategy, case.make_job, steps=8, look=follows_the_config)
    assert difference.loss <= case.loss
    assert difference.weights <= case.weights
