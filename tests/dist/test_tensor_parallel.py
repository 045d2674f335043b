"""Tensor parallelism: losses and weights are those of one process."""

from __future__ import annotations

from functools import partial

import pytest
from tests.dist.tiny_decoder import decoder_job
from tests.dist.training import compare

from gpuwise.strategy import Mesh, Parallelism, Strategy

SEQUENCE = Parallelism(sequence_parallel=True)
SEQUENCE_AND_LOSS = Parallelism(sequence_parallel=True, loss_parallel=True)


def test_split_layers_train_as_one():
    difference = compare(Strategy(mesh=Mesh(tp=2), parallelism=SEQUENCE_AND_LOSS), partial(decoder_job, clip_norm=0.1))
    assert difference.loss < 1e-5 and difference.weights < 1e-5


CASES = {
    "tp": Strategy(mesh=Mesh(tp=2)),
    "tp 4": Strategy(mesh=Mesh(tp=4)),
    "sequence": Strategy(mesh=Mesh(tp=4), parallelism=SEQUENCE),
    "sequence and loss": Strategy(mesh=Mesh(tp=4), parallelism=SEQUENCE_AND_LOSS),
    "accumulated": Strategy(mesh=Mesh(tp=2), accumulation=2),
    "recomputed": Strategy(mesh=Mesh(tp=2), recompute="full", parallelism=SEQUENCE),
    "shards": Strategy(mesh=Mesh(dp_shard=2, tp=2)),
    "shards, sequence and loss": Strategy(mesh=Mesh(dp_shard=2, tp=2), parallelism=SEQUENCE_AND_LOSS),
    "replicas": Strategy(mesh=Mesh(dp_replicate=2, tp=2)),
    "replicas of shards": Strategy(mesh=Mesh(dp_replicate=2, dp_shard=2, tp=2)),
}


@pytest.mark.slow
@pytest.mark.parametrize("clip_norm", [None, 0.1], ids=["free", "clipped"])
@pytest.mark.parametrize("case", CASES)
def test_each_mesh_trains_as_one_process(case: str, clip_norm: float | None):
    difference = compare(CASES[case], partial(decoder_job, clip_norm=clip_norm, key_value_heads=4))
    print(case, clip_norm, difference)
    assert difference.loss < 1e-5 and difference.weights < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("model", [{"tied": True}, {"dropout": 0.1}, {"key_value_heads": 2}], ids=str)
def test_each_model_trains_as_one_process(model: dict[str, object]):
    difference = compare(Strategy(mesh=Mesh(tp=2)), partial(decoder_job, **model))
    print(model, difference)
    assert difference.loss < 1e-5 and difference.weights < 1e-5
