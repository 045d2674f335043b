"""Composed ranks against recordings of the program itself in a fake world."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.quick import quick

from gpuwise.api.devices import device_of
from gpuwise.cost.host import host_s
from gpuwise.cost.parameters import parameters
from gpuwise.cost.rank_time import rank_times
from gpuwise.hardware import load_catalog
from gpuwise.job import Job
from gpuwise.job.models.gpt2 import Gpt2, Gpt2Config
from gpuwise.job.models.language import next_token_batch, token_loss
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.job.presets import preset_job
from gpuwise.strategy import Mesh, Parallelism, Strategy
from gpuwise.trace import CATEGORIES, Trace, live_bytes
from gpuwise.trace.parallel.communication import Communication
from gpuwise.trace.parallel.ranks import RankStep, rank_steps
from gpuwise.trace.parallel.recorded import split_communication
from gpuwise.trace.parallel.variant import recorded_as
from gpuwise.tracing import record

torch.set_num_threads(1)
CONFIG = LlamaConfig(vocabulary=2048, width=512, layers=4, heads=8, kv_heads=4, hidden=1536)
SEQ_LEN = 256


def llama() -> Job:
    return Job(
        model=lambda: Llama(CONFIG),
        batch=lambda n: next_token_batch(n, vocabulary=CONFIG.vocabulary, seq_len=SEQ_LEN),
        loss=token_loss,
        seq_len=SEQ_LEN,
        sample_unit="token",
        tokens_per_sample=SEQ_LEN,
    )


def gpt2() -> Job:
    """Its output matrix is its word embedding, and most of its parameters are in no block."""
    config = Gpt2Config(vocabulary=8192, positions=128, width=256, layers=4, heads=4)
    return Job(
        model=lambda: Gpt2(config),
        batch=lambda n: next_token_batch(n, vocabulary=config.vocabulary, seq_len=128),
        loss=token_loss,
        seq_len=128,
        sample_unit="token",
        tokens_per_sample=128,
    )


def both(strategy: Strategy, job: Callable[[], Job] = llama) -> tuple[tuple[Trace, Communication], tuple[Trace, Communication]]:
    """The recorded step of rank 0 with its communication, and the composed one."""
    recorded = split_communication(record(job(), strategy).with_accumulation(strategy.accumulation))
    one_device = recorded_as(strategy).but(mesh=Mesh(), parallelism=Parallelism())
    whole = record(job(), one_device).with_accumulation(strategy.accumulation)
    composed = rank_steps(lambda parts: whole, strategy)[0]
    return recorded, (composed.trace, composed.communication)


def bytes_of(trace: Trace, category: str) -> int:
    """Without counters of steps."""
    storages = trace.storages
    kept = (storages.category == CATEGORIES.index(category)) & (storages.size_bytes > 4)
    return int(storages.size_bytes[kept].sum())


SHARDS = [
    Strategy("bf16", micro_batch=4, mesh=Mesh(dp_shard=4)),
    Strategy("fp32", mesh=Mesh(dp_shard=4), accumulation=3),
    Strategy("amp-bf16", micro_batch=4, mesh=Mesh(dp_replicate=2, dp_shard=4), recompute="full", accumulation=3),
    Strategy("bf16", micro_batch=4, mesh=Mesh(dp_shard=4), parallelism=Parallelism(shard="gradients")),
    Strategy("bf16", micro_batch=2, mesh=Mesh(dp_shard=4), parallelism=Parallelism(shard="gradients"), accumulation=4),
    Strategy("amp-bf16", mesh=Mesh(dp_shard=4), parallelism=Parallelism(shard="optimizer")),
    Strategy("bf16", micro_batch=2, mesh=Mesh(dp_shard=4), parallelism=Parallelism(shard="optimizer"), accumulation=3),
]


@pytest.mark.parametrize("job", [llama, gpt2])
@pytest.mark.parametrize(
    "strategy",
    quick(SHARDS, slow=SHARDS[3::2]),
    ids=lambda s: f"{s.mesh} {s.parallelism.shard} {s.precision} x{s.accumulation}",
)
def test_shards_hold_and_exchange_what_is_recorded(strategy: Strategy, job: Callable[[], Job]) -> None:
    (recorded, measured), (composed, communication) = both(strategy, job)
    for category in ("parameter", "optimizer_state"):
        assert bytes_of(composed, category) == bytes_of(recorded, category)
    for operation in ("all_gather", "reduce_scatter", "all_reduce"):
        assert communication.bytes_of(operation) == measured.bytes_of(operation)
    assert communication.calls == measured.calls
    groups = {collective.group for collective in measured.collectives}
    assert {collective.group for collective in communication.collectives} == groups
    assert composed.model_flops == recorded.model_flops
    # Where parameters are cast, the recorded loss frees the logits in 16 bits a position earlier.
    within = 0.02 if strategy.precision.startswith("amp") else 0.002
    assert live_bytes(composed).peak_bytes == pytest.approx(live_bytes(recorded).peak_bytes, rel=within)


TP, PP = Mesh(tp=2), Mesh(pp=2)
SPLIT = [
    (llama, Strategy("bf16", micro_batch=4, mesh=TP)),
    (llama, Strategy("fp32", micro_batch=2, mesh=TP)),  # no kernel computes its attention
    (llama, Strategy("amp-bf16", micro_batch=4, mesh=TP)),
    (llama, Strategy("bf16", micro_batch=4, mesh=TP, parallelism=Parallelism(sequence_parallel=True))),
    (
        llama,
        Strategy("bf16", mesh=Mesh(tp=4), parallelism=Parallelism(sequence_parallel=True, loss_parallel=True), micro_batch=4),
    ),
    (llama, Strategy("amp-bf16", micro_batch=4, mesh=Mesh(dp_shard=2, tp=2))),
    (llama, Strategy("bf16", micro_batch=2, mesh=PP, accumulation=4)),
    (llama, Strategy("bf16", micro_batch=2, mesh=PP, accumulation=4, parallelism=Parallelism(pipeline_schedule="gpipe"))),
    (llama, Strategy("amp-bf16", micro_batch=2, mesh=Mesh(pp=2, dp_shard=2), accumulation=4)),
    (gpt2, Strategy("amp-bf16", micro_batch=4, mesh=TP)),
    (gpt2, Strategy("amp-bf16", micro_batch=4, mesh=Mesh(dp_shard=2, tp=2))),
    (gpt2, Strategy("amp-bf16", micro_batch=2, mesh=PP, accumulation=4)),
    (gpt2, Strategy("bf16", micro_batch=2, mesh=PP, accumulation=4, parallelism=Parallelism(pipeline_schedule="gpipe"))),
    (gpt2, Strategy("amp-bf16", micro_batch=4, mesh=Mesh(dp_replicate=2))),
    (gpt2, Strategy("bf16", micro_batch=2, mesh=Mesh(pp=2, dp_shard=2), accumulation=4)),
]


@pytest.mark.parametrize(
    ("job", "strategy"), quick(SPLIT, slow=SPLIT[2::2]), ids=lambda value: getattr(value, "__name__", None) or str(value.mesh)
)
def test_parts_of_layers_and_stages_need_the_memory_that_is_recorded(job: Callable[[], Job], strategy: Strategy) -> None:
    (recorded, _), (composed, _) = both(strategy, job)
    assert live_bytes(composed).peak_bytes == pytest.approx(live_bytes(recorded).peak_bytes, rel=0.02)


@pytest.mark.slow
def test_ranks_of_equal_meshes_are_recorded_one_after_another_in_one_process() -> None:
    strategy = Strategy(mesh=Mesh(dp_shard=2, tp=2))
    lengths = {len(record(llama(), strategy, rank=rank).sequence) for rank in (0, 2, 3)}
    assert len(lengths) == 1


def test_waiting_for_a_collective_takes_no_memory() -> None:
    """Before the loss there are the logits of half of the vocabulary, those gathered, and their copy in order: no more."""
    trace = record(llama(), Strategy(mesh=Mesh(tp=2)))
    storages, logits_bytes = trace.storages, SEQ_LEN * CONFIG.vocabulary * 4
    names = [trace.operations.name[row] for row in trace.sequence.operation.tolist()]
    product = next(n for n, name in enumerate(names) if "all_gather" in name) - 1
    loss = names.index("aten._log_softmax.default")
    rows = np.flatnonzero((storages.born >= product) & (storages.born < loss))
    made = sorted(zip(storages.born[rows].tolist(), storages.size_bytes[rows].tolist(), strict=True))
    assert [size for _, size in made] == [logits_bytes // 2, logits_bytes, logits_bytes]


@pytest.mark.slow
def test_a_rank_is_recorded_alike_again_and_again() -> None:
    """The copies on which a split is tried are gone before the recording."""
    strategy = Strategy("fp32", mesh=Mesh(cp=2), parallelism=Parallelism(context="gather"))
    first, *others = (record(llama(), strategy, rank=0) for _ in range(3))
    for other in others:
        assert other.storages.size_bytes.tolist() == first.storages.size_bytes.tolist()
        assert other.storages.born.tolist() == first.storages.born.tolist()


@pytest.mark.parametrize("job", [llama, gpt2])
@pytest.mark.parametrize(
    "strategy",
    [
        Strategy("amp-bf16", mesh=Mesh(dp_shard=8)),
        Strategy("bf16", mesh=Mesh(dp_shard=8), accumulation=2),
        Strategy("fp32", mesh=Mesh(dp_shard=8)),
        Strategy("amp-bf16", mesh=Mesh(dp_shard=8), parallelism=Parallelism("gradients"), accumulation=3),
        Strategy("amp-bf16", mesh=Mesh(dp_shard=8), parallelism=Parallelism("optimizer"), accumulation=3),
        Strategy("amp-bf16", mesh=Mesh(dp_replicate=2, dp_shard=4), accumulation=3),
        Strategy("amp-bf16", mesh=Mesh(dp_replicate=4)),
        Strategy("bf16", mesh=Mesh(dp_replicate=4), accumulation=3),
    ],
    ids=lambda s: f"{s.mesh} {s.parallelism.shard} {s.precision} x{s.accumulation}",
)
def test_the_host_launches_what_it_launches_in_a_recording(strategy: Strategy, job: Callable[[], Job]) -> None:
    chip, figures = load_catalog().chip("h100-80gb-sxm"), parameters()
    recorded_s, composed_s = (
        host_s(trace, chip, figures, communication) for trace, communication in both(strategy.but(optimizer="adamw"), job)
    )
    assert composed_s == pytest.approx(recorded_s, rel=0.015)


@pytest.mark.parametrize("mesh", quick([Mesh(dp_shard=8), Mesh(dp_replicate=4)], slow=[Mesh(dp_shard=8)]), ids=str)
def test_a_composed_step_that_the_host_bounds_takes_as_long_as_a_recorded_one(mesh: Mesh) -> None:
    """GPT-2 with one sample a device."""
    strategy, job = Strategy("amp-bf16", optimizer="adamw", mesh=mesh), preset_job("gpt2")
    cluster = device_of(f"h100-sxm:{mesh.devices}", load_catalog()).cluster
    whole = record(job, recorded_as(strategy).but(mesh=Mesh()))
    recorded = record(job, strategy).with_accumulation(1)
    trace, communication = split_communication(recorded)
    of_recorded = RankStep("", trace, communication, recorded=recorded)
    steps = of_recorded, rank_steps(lambda parts: whole.with_accumulation(1), strategy)[0]
    exact, composed = rank_times(steps, cluster, strategy=strategy)
    assert exact.host_s > 0.9 * exact.busy_s
    assert composed.busy_s == pytest.approx(exact.busy_s, rel=0.03)
