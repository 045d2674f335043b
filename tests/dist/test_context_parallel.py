"""Context parallelism: losses and weights are those of one process."""

from __future__ import annotations

from functools import partial

import pytest
from tests.dist.language_jobs import language_job
from tests.dist.ranks import RankError
from tests.dist.training import compare

from gpuwise.strategy import Mesh, Parallelism, Strategy


@pytest.mark.parametrize("context", ["gather", "ring"])
def test_parts_of_sequences_train_as_whole_ones(context: str):
    """A Llama, whose rotary positions are those of the whole sequence and whose heads share keys and values."""
    strategy = Strategy(mesh=Mesh(cp=2), parallelism=Parallelism(context=context))
    difference = compare(strategy, partial(language_job, "llama"))
    assert difference.loss < 1e-5 and difference.weights < 1e-5


def test_attention_with_a_mask_is_refused():
    with pytest.raises(RankError, match="context parallelism does not split attention with a mask"):
        compare(Strategy(mesh=Mesh(cp=2)), partial(language_job, "t5"), steps=1)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["llama", "gpt2", "bert"])
@pytest.mark.parametrize("context", ["gather", "all-to-all", "ring"])
@pytest.mark.parametrize("mesh", [Mesh(cp=2), Mesh(cp=4), Mesh(cp=2, dp_shard=2), Mesh(cp=2, tp=2)], ids=str)
def test_each_method_trains_as_one_process(model: str, context: str, mesh: Mesh):
    difference = compare(Strategy(mesh=mesh, parallelism=Parallelism(context=context)), partial(language_job, model), steps=8)
    print(model, context, mesh, difference)
    assert difference.loss < 1e-5 and difference.weights < 1e-5


@pytest.mark.slow
def test_shards_context_and_tensor_parallelism_train_as_one_process():
    strategy = Strategy(mesh=Mesh(dp_shard=2, cp=2, tp=2), parallelism=Parallelism(context="all-to-all", sequence_parallel=True))
    difference = compare(strategy, partial(language_job, "llama"), steps=8)
    print(strategy.mesh, difference)
    assert difference.loss < 1e-5 and difference.weights < 1e-5
