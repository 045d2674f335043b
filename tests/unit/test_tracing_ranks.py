"""Ranks of several devices, recorded in one process: collectives, streams, memory by category, and what is refused."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch
import torch.distributed as dist
from test_trace_sharded import gpt_job, language_job
from tests.quick import quick

from gpuwise.errors import GpuwiseError, InputError, UnsupportedError
from gpuwise.job import Job
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.strategy import Mesh, Parallelism, Strategy
from gpuwise.trace import CATEGORIES, KINDS, RankGroup, Trace, live_bytes
from gpuwise.trace.parallel.ranks import rank_steps
from gpuwise.tracing import record
from gpuwise.tracing.world import fake_world

LLAMA = LlamaConfig(vocabulary=512, width=256, layers=3, heads=4, kv_heads=2, hidden=512)
SHARDED, REPLICATED, HYBRID = Mesh(dp_shard=8), Mesh(dp_replicate=4), Mesh(dp_replicate=2, dp_shard=4)


def llama_job() -> Job:
    return language_job(lambda: Llama(LLAMA), vocabulary=512, seq_len=32)


def sizes(trace: Trace, category: str) -> int:
    storages = trace.storages
    chosen = (storages.category == CATEGORIES.index(category)) & (storages.size_bytes > 4)  # a step counter has 4
    return int(storages.size_bytes[chosen].sum())


def payloads(trace: Trace) -> dict[tuple[str, str], int]:
    """Bytes of full tensors in a step, by the collective's name and axis."""
    total: dict[tuple[str, str], int] = {}
    for operation in np.flatnonzero(trace.operations.kind == KINDS.index("collective")).tolist():
        group = trace.header.groups[trace.operations.group[operation]]
        key = trace.operations.name[operation].split(".")[1], group.axis
        payload = int(trace.operations.payload_bytes[operation] * trace.counts()[operation])
        total[key] = total.get(key, 0) + payload
    return total


def equal(a: Trace, b: Trace) -> bool:
    tables = [(a.sequence, b.sequence), (a.storages, b.storages), (a.waits, b.waits)]
    columns = [(getattr(x, field.name), getattr(y, field.name)) for x, y in tables for field in fields(x)]
    same = all(np.array_equal(x, y) for x, y in columns) and np.array_equal(a.operations.values, b.operations.values)
    return same and (a.operations.name, a.modules, a.header) == (b.operations.name, b.modules, b.header)


@pytest.mark.parametrize("target", ["accelerator", "cpu"])
@pytest.mark.parametrize("mesh", [SHARDED, HYBRID, REPLICATED])
def test_a_rank_is_recorded_alike_however_often(mesh: Mesh, target: str) -> None:
    first, again = (record(llama_job(), Strategy(mesh=mesh), target=target) for _ in range(2))
    assert equal(first, again)
    assert not dist.is_initialized()


def test_a_shard_is_an_eighth_of_everything_that_stays() -> None:
    whole, shard = record(llama_job(), Strategy()), record(llama_job(), Strategy(mesh=SHARDED))
    for category in ("parameter", "optimizer_state", "gradient"):
        assert sizes(shard, category) == sizes(whole, category) / 8
    assert (shard.header.parameters, shard.header.trainable_parameters) == (whole.header.parameters,) * 2
    assert shard.flops("forward") == whole.flops("forward")
    assert shard.flops("backward") == whole.flops("backward")


def test_collectives_of_shards_move_parameters_and_gradients() -> None:
    parameters = record(llama_job(), Strategy()).header.parameters
    trace = record(llama_job(), Strategy(mesh=HYBRID))
    assert trace.header.groups == (RankGroup("dp_shard", 4, 1), RankGroup("dp_replicate", 2, 4))
    moved = payloads(trace)
    assert set(moved) == {
        ("_allgather_base_", "dp_shard"),
        ("_reduce_scatter_base_", "dp_shard"),
        ("allreduce_", "dp_replicate"),
    }
    assert moved["_reduce_scatter_base_", "dp_shard"] == 4 * parameters
    assert moved["allreduce_", "dp_replicate"] == parameters  # a quarter of the gradients
    assert 4 * parameters < moved["_allgather_base_", "dp_shard"] <= 2 * 4 * parameters
    assert live_bytes(trace).by_category["communication_buffer"] > 0


def test_gathers_and_reductions_run_beside_the_computation() -> None:
    trace = record(llama_job(), Strategy(mesh=SHARDED))
    sequence, waits = trace.sequence, trace.waits
    collective = trace.operations.kind[sequence.operation] == KINDS.index("collective")
    assert not (sequence.stream[collective] == 0).any()
    names = np.array(trace.operations.name)[sequence.operation]
    gather = np.flatnonzero(names == "c10d._allgather_base_.default")
    copied_out = np.flatnonzero(names == "fsdp.split_with_sizes_copy.default")
    for launched, used in zip(gather.tolist(), copied_out.tolist(), strict=True):
        assert ((waits.stream == 0) & (waits.on == launched) & (waits.position > launched) & (waits.position <= used)).any()
    beside = [int((sequence.stream[launched:used] == 0).sum()) for launched, used in zip(gather, copied_out, strict=True)]
    assert max(beside) > 20  # a block computes while the next one is gathered
    assert set(trace.storages.stream.tolist()) > {0}


def test_replicas_reduce_buckets_beside_backward_and_the_update_waits_for_them() -> None:
    trace = record(llama_job(), Strategy(mesh=REPLICATED, accumulation=5))
    parameters = trace.header.parameters
    assert payloads(trace) == {("allreduce_", "dp_replicate"): 4 * parameters}  # once a step
    sequence, waits = trace.sequence, trace.waits
    names = np.array(trace.operations.name)[sequence.operation]
    reductions = np.flatnonzero(names == "c10d.allreduce_.default")
    assert len(reductions) > 1
    assert (sequence.stream[reductions] == 1).all()
    update = int((sequence.phase == 3).argmax())
    assert reductions.max() < update
    assert ((waits.position == update) & (waits.stream == 0) & (waits.on == reductions.max())).any()
    assert sizes(trace, "gradient") == 4 * parameters


@pytest.mark.parametrize("mesh", [SHARDED, REPLICATED])
def test_more_micro_batches_follow_from_three(mesh: Mesh) -> None:
    traces = {n: record(llama_job(), Strategy(mesh=mesh, accumulation=n)) for n in (1, 2, 3, 7)}
    for n, trace in traces.items():
        assert trace.accumulation == trace.samples == n
        assert trace.flops("forward") == n * traces[1].flops("forward")
    assert traces[3].with_accumulation(7).counts().tolist() == traces[7].counts().tolist()
    assert live_bytes(traces[3]).peak_bytes == live_bytes(traces[7]).peak_bytes
    reduced = [payloads(trace) for trace in traces.values()]
    if mesh == REPLICATED:
        assert all(moved == reduced[0] for moved in reduced)
    with pytest.raises(UnsupportedError, match="3 micro-batches or more"):
        traces[7].with_accumulation(2)
    with pytest.raises(UnsupportedError, match="recorded with 2 micro-batches"):
        traces[2].with_accumulation(4)


def test_a_tied_model_and_techniques() -> None:
    strategy = Strategy("amp-bf16", recompute="full", micro_batch=2, mesh=SHARDED)
    trace = record(gpt_job(), strategy)
    assert trace.flops("recompute") > 0
    assert (
        live_bytes(trace).by_category["activation"]
        < live_bytes(record(gpt_job(), strategy.but(recompute="none"))).by_category["activation"]
    )


def test_a_rank_that_is_not_there_and_a_world_inside_another() -> None:
    with pytest.raises(InputError, match="no rank 8"):
        record(llama_job(), Strategy(mesh=SHARDED), rank=8)
    with fake_world(Mesh(dp_shard=2), 1, "cpu"), pytest.raises(UnsupportedError, match="one of several"):
        record(llama_job(), Strategy(mesh=SHARDED))
    assert not dist.is_initialized()


def test_a_failure_leaves_no_process_group() -> None:
    def fails(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        raise RuntimeError("a loss that fails")

    job = llama_job()
    broken = Job(job.model, job.batch, loss=fails)
    with pytest.raises(GpuwiseError, match="a loss that fails"):
        record(broken, Strategy(mesh=SHARDED))
    assert not dist.is_initialized()
    assert record(job, Strategy(mesh=REPLICATED), rank=3).header.rank == 3


def test_a_tensor_parallel_rank_does_its_share_and_waits_for_sums() -> None:
    whole = record(llama_job(), Strategy())
    strategy = Strategy(mesh=Mesh(dp_shard=2, tp=2), parallelism=Parallelism(sequence_parallel=True))
    trace = record(llama_job(), strategy, rank=3)
    gemm = KINDS.index("gemm")
    flops = [
        t.counts()[t.operations.kind == gemm] @ t.operations.column("flops")[t.operations.kind == gemm] for t in (whole, trace)
    ]
    assert flops[1] == flops[0] / 2
    assert (trace.header.rank, set(trace.header.groups)) == (3, {RankGroup("dp_shard", 2, 2), RankGroup("tp", 2, 1)})
    assert {axis for _, axis in payloads(trace)} == {"dp_shard", "tp"}
    names = np.array(trace.operations.name)[trace.sequence.operation]
    functional = np.flatnonzero(np.char.startswith(names, "_c10d_functional."))
    assert set(functional.tolist()) <= set(trace.waits.on.tolist())  # what a rank computes with has arrived


@pytest.mark.parametrize("context", ["gather", "all-to-all"])
def test_ranks_of_a_sequence_compute_a_part_of_it(context: str) -> None:
    whole = record(llama_job(), Strategy())
    trace = record(llama_job(), Strategy(mesh=Mesh(cp=2), parallelism=Parallelism(context=context)))
    linear = [t.counts()[t.operations.kind == 0] @ t.operations.column("flops")[t.operations.kind == 0] for t in (whole, trace)]
    assert linear[1] == linear[0] / 2
    assert {axis for _, axis in payloads(trace)} == {"cp"}


def test_stages_of_a_pipeline_are_the_whole_model() -> None:
    whole = record(llama_job(), Strategy(accumulation=4))
    strategy = Strategy(mesh=Mesh(pp=2), accumulation=4)
    first, last = (record(llama_job(), strategy, rank=rank) for rank in (0, 1))
    assert (first.header.stages, last.header.stages) == ((0,), (1,))
    assert sizes(first, "parameter") + sizes(last, "parameter") == sizes(whole, "parameter")
    assert first.flops() + last.flops() == whole.with_accumulation(4).flops()
    activation_bytes = 4 * 32 * LLAMA.width
    for trace in (first, last):  # four activations one way, four gradients the other
        assert payloads(trace) == {("send", "pp"): 4 * activation_bytes, ("recv_", "pp"): 4 * activation_bytes}
    all_at_once = record(llama_job(), strategy.but(parallelism=Parallelism(pipeline_schedule="gpipe")))
    kept = [live_bytes(trace).by_category["activation"] for trace in (first, all_at_once)]
    assert kept[0] < 0.75 * kept[1]  # two micro-batches in flight on the first of two stages, not four
    with pytest.raises(UnsupportedError, match="recorded with 4 micro-batches"):
        first.with_accumulation(8)


@pytest.mark.parametrize("mesh", [Mesh(pp=2, tp=2), Mesh(pp=2, dp_shard=2), Mesh(pp=2, dp_replicate=2)], ids=str)
def test_stages_lie_on_any_mesh(mesh: Mesh) -> None:
    trace = record(llama_job(), Strategy(mesh=mesh, accumulation=2), rank=mesh.devices - 1)
    assert ("send", "pp") in payloads(trace)
    assert len({axis for _, axis in payloads(trace)}) > 1


@pytest.mark.parametrize(
    "mesh", quick([Mesh(cp=2), Mesh(cp=2, tp=2), Mesh(cp=2, pp=2)], slow=[Mesh(cp=2), Mesh(cp=2, pp=2)]), ids=str
)
def test_composed_ranks_of_a_sequence_exchange_what_recorded_ones_do(mesh: Mesh) -> None:
    """Keys and values of the heads and of the blocks that a rank has."""

    def step(parts: int) -> Trace:
        job = language_job(lambda: Llama(LLAMA), vocabulary=512, seq_len=32 // parts)
        return record(job, Strategy("bf16", accumulation=mesh.pp)).with_accumulation(mesh.pp)

    strategy = Strategy("bf16", mesh=mesh, accumulation=mesh.pp)
    composed = rank_steps(step, strategy)
    for rank, one in zip((0, mesh.devices - 1), (composed[0], composed[-1]), strict=True):
        recorded = payloads(record(llama_job(), strategy, rank=rank))
        of_cp = {c.operation: c.payload_bytes for c in one.communication.collectives if c.group.axis == "cp"}
        assert of_cp["all_gather"] == recorded["all_gather_into_tensor", "cp"]
        assert of_cp["reduce_scatter"] == recorded["reduce_scatter_tensor", "cp"]
