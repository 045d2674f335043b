"""The optimizer of a recorded rank, exchanged by composition, against recordings of the same rank with the other one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.quick import quick

from gpuwise.errors import UnsupportedError
from gpuwise.job import Job
from gpuwise.job.models.language import next_token_batch, token_loss
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.strategy import Mesh, Strategy
from gpuwise.trace import Trace, live_bytes, load, save
from gpuwise.trace.update.compose import compose_update
from gpuwise.trace.update.optimizers import with_optimizer
from gpuwise.tracing import record

torch.set_num_threads(1)
CONFIG = LlamaConfig(vocabulary=515, width=128, layers=2, heads=4, kv_heads=2, hidden=384)  # 515 rows: shards differ
WHOLE = [("momentum", "fused"), ("adam", "foreach"), ("adafactor", "for-loop"), ("muon", "for-loop"), ("adamw-8bit", "fused")]
SHARDS = [("sgd", "foreach"), ("momentum", None), ("adam", "for-loop"), ("adamw", "fused"), ("adamw-4bit", "fused")]
SPLIT = [("momentum", None), ("adam", "foreach")]
CASES = [
    (Strategy(mesh=Mesh(dp_replicate=2)), 1, WHOLE),
    (Strategy(mesh=Mesh(pp=2), accumulation=2), 0, WHOLE),
    (Strategy("bf16", mesh=Mesh(dp_shard=3)), 2, SHARDS),
    (Strategy("amp-bf16", mesh=Mesh(dp_replicate=2, dp_shard=2)), 0, SHARDS[1:4]),
    (Strategy(mesh=Mesh(tp=2)), 0, SPLIT),
    (Strategy("amp-bf16", mesh=Mesh(dp_shard=2, tp=2)), 1, SPLIT),
    (Strategy(mesh=Mesh(cp=2)), 1, SPLIT),
]


def llama() -> Job:
    return Job(
        lambda: Llama(CONFIG),
        lambda n: next_token_batch(n, vocabulary=CONFIG.vocabulary, seq_len=64),
        token_loss,
        optimizer="adamw",
        seq_len=64,
    )


def rows(trace: Trace) -> list[tuple[object, ...]]:
    sequence, operations = trace.sequence, trace.operations
    columns = (sequence.operation, sequence.phase, sequence.micro_step, sequence.stream)
    return [
        (operations.name[o], operations.kind[o], *rest, *operations.values[o].tolist())
        for o, *rest in zip(*(column.tolist() for column in columns), strict=True)
    ]


def storages(trace: Trace) -> list[tuple[int, ...]]:
    columns = (getattr(trace.storages, name) for name in ("category", "size_bytes", "born", "died", "stream"))
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


def waits(trace: Trace) -> list[list[int]]:
    return [getattr(trace.waits, name).tolist() for name in ("position", "stream", "on")]


@pytest.mark.parametrize(
    ("strategy", "rank", "optimizers"),
    quick(CASES, slow=[*CASES[2:5], CASES[6]]),
    ids=lambda value: str(getattr(value, "mesh", "")),
)
def test_a_composed_optimizer_of_a_rank_is_the_one_recorded(
    strategy: Strategy, rank: int, optimizers: list[tuple[str, str | None]]
) -> None:
    base = record(llama(), strategy, rank=rank)
    for optimizer, kernels in optimizers:
        if "bit" in optimizer:
            pytest.importorskip("torchao")
        requested = strategy.but(optimizer=optimizer, optimizer_kernels=kernels)

        def recorded(plain: Strategy, requested: Strategy = requested) -> Trace:
            assert plain != requested, "recorded instead of composed"
            return base

        composed, other = compose_update(recorded, requested).check(), record(llama(), requested, rank=rank)
        assert rows(composed) == rows(other), optimizer
        assert storages(composed) == storages(other), optimizer
        assert waits(composed) == waits(other), optimizer
        assert live_bytes(composed).peak_bytes == live_bytes(other).peak_bytes, optimizer


def test_the_file_of_a_rank_says_what_its_optimizer_updates(tmp_path: Path) -> None:
    trace = record(llama(), Strategy(mesh=Mesh(dp_shard=3)), rank=2)
    save(trace, tmp_path / "rank.npz")
    again = load(tmp_path / "rank.npz")
    assert again.header == trace.header
    assert trace.header.updated[0].shape == (171, 128)  # of 515 rows ranks 0 and 1 have 172 each
    assert trace.modules[trace.header.updated[0].module] == "words"


def test_what_ranks_exchange_numbers_in_is_recorded() -> None:
    scaled = Strategy("amp-fp16", mesh=Mesh(dp_shard=2), optimizer="adam")
    strategies: list[Strategy] = []

    def recorded(plain: Strategy) -> Trace:
        strategies.append(plain)
        return record(llama(), plain)

    compose_update(recorded, scaled)
    assert strategies == [scaled]


def test_a_file_without_them_is_refused() -> None:
    trace = record(llama(), Strategy(mesh=Mesh(dp_shard=2)))
    old = replace(trace, header=replace(trace.header, updated=()))
    with pytest.raises(UnsupportedError, match="does not say what its optimizer updates"):
        with_optimizer(old, "sgd")
