"""The ranks of benchmarks.megatron: against a recording of what one rank of Megatron-LM runs, written down as plain PyTorch."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from benchmarks.support.megatron_cases import megatron_cases
from benchmarks.support.megatron_kernels import with_megatron_kernels
from benchmarks.support.megatron_model import Gpt, gpt_job
from benchmarks.support.megatron_shape import GptShape
from benchmarks.support.megatron_step import megatron_ranks
from benchmarks.support.megatron_trainer import BIGSCIENCE_BF16, BIGSCIENCE_FP16, MEGATRON_2022, MEGATRON_DEEPSPEED
from torch import nn

from gpuwise.cost.calibration import calibration
from gpuwise.cost.host import host_s
from gpuwise.cost.parameters import parameters
from gpuwise.cost.rank_time import rank_time
from gpuwise.hardware.catalog import load_catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.job import Job
from gpuwise.job.models.language import next_token_batch, token_loss
from gpuwise.strategy import Mesh, Parallelism, Strategy
from gpuwise.trace import Trace
from gpuwise.trace.parallel.segments import segments_of
from gpuwise.trace.tables import CATEGORIES, KINDS, PHASES
from gpuwise.tracing.record import record

SHAPE = GptShape(hidden=256, layers=4, heads=8, seq_len=96, vocabulary=512)
TP = 2


def one_rank(core_again: bool, fused: bool = True) -> nn.Module:
    """The blocks as one of TP ranks has them: its heads and its part of the hidden features."""
    model = Gpt(SHAPE, core_again=core_again, fused=fused)
    hidden = SHAPE.hidden
    for block in model.layers:
        block.qkv = nn.Linear(hidden, 3 * hidden // TP)
        block.out = nn.Linear(hidden // TP, hidden)
        block.up = nn.Linear(hidden, 4 * hidden // TP)
        block.down = nn.Linear(4 * hidden // TP, hidden)
    return model


def products(trace: Trace) -> Counter[tuple[object, ...]]:
    """Phases and sizes of the products of the blocks in the first micro-batch."""
    sequence, segments = trace.sequence, segments_of(trace)
    inside = (segments >= 0) & (segments < len(trace.header.blocks)) & (sequence.micro_step == 0)
    inside &= trace.operations.kind[sequence.operation] == KINDS.index("gemm")
    columns = [trace.operations.column(name) for name in ("batch", "m", "n", "k", "flops")]
    return Counter(
        (PHASES[sequence.phase[at]], *(int(column[sequence.operation[at]]) for column in columns))
        for at in np.flatnonzero(inside).tolist()
    )


def of_scores(trace: Trace) -> Counter[tuple[object, ...]]:
    """Phases, kinds and bytes written of what has the size of a rank's scores, or of scores in fp32, in the first
    micro-batch."""
    sequence, operations = trace.sequence, trace.operations
    scores = 2 * SHAPE.heads // TP * SHAPE.seq_len**2
    written = operations.column("bytes_written")[sequence.operation]
    sized = np.isin(written, [2 * scores, 4 * scores]) & (sequence.micro_step == 0)
    return Counter(
        (PHASES[sequence.phase[at]], KINDS[operations.kind[sequence.operation[at]]], int(written[at]))
        for at in np.flatnonzero(sized).tolist()
    )


@pytest.mark.parametrize(("recompute", "fused"), [("full", True), ("full", False), ("selective", True)])
def test_a_tensor_parallel_rank_runs_the_products_of_its_heads_and_features(recompute: str, fused: bool) -> None:
    core_again = recompute == "selective"
    recorded = Strategy(precision="bf16", micro_batch=2, recompute="full" if recompute == "full" else "none")
    job = gpt_job(SHAPE, core_again=core_again, fused=fused)
    batch = partial(next_token_batch, vocabulary=SHAPE.vocabulary, seq_len=SHAPE.seq_len)
    rank = record(Job(partial(one_rank, core_again, fused), batch, token_loss, optimizer="adamw"), recorded)
    strategy = recorded.but(mesh=Mesh(tp=TP), parallelism=Parallelism(loss_parallel=True))
    (composed,) = megatron_ranks(record(job, recorded), strategy, trainer=MEGATRON_DEEPSPEED)
    assert products(composed.trace) == products(rank)
    if not fused:
        assert of_scores(composed.trace) == of_scores(rank)


def test_softmax_is_fused_for_four_score_matrices_of_up_to_2048_words() -> None:
    """16 heads over 8 ranks leave two."""
    gpt = replace(SHAPE, heads=16, seq_len=1024)
    fused = [gpt.fused_softmax(micro_batch=n, tp=tp) for n, tp in ((1, 4), (1, 8), (2, 8), (3, 8))]
    assert fused == [True, False, True, False]
    assert not replace(gpt, seq_len=4096).fused_softmax(micro_batch=4, tp=1)


def test_stages_and_states_add_up_to_the_model() -> None:
    recorded = Strategy(precision="bf16", micro_batch=2, accumulation=4, recompute="full")
    whole = with_megatron_kernels(record(gpt_job(SHAPE, core_again=False, fused=True), recorded), fused=True)
    whole = whole.with_accumulation(4)
    first, last = megatron_ranks(whole, recorded.but(mesh=Mesh(pp=2, dp_replicate=2)), trainer=MEGATRON_2022)
    assert [len(rank.trace.header.blocks) for rank in (first, last)] == [2, 2]
    state, parameter = CATEGORIES.index("optimizer_state"), CATEGORIES.index("parameter")
    hidden, embedding = SHAPE.hidden, SHAPE.vocabulary * SHAPE.hidden
    parameters = sum(p.numel() for p in Gpt(SHAPE, core_again=False, fused=True).parameters()) + embedding  # of both stages
    storages = [rank.trace.storages for rank in (first, last)]
    assert sum(int(s.size_bytes[s.category == parameter].sum()) for s in storages) == 2 * parameters
    assert sum(int(s.size_bytes[s.category == state].sum()) for s in storages) == 16 * parameters
    reduced = [c for rank in (first, last) for c in rank.communication.collectives if c.operation == "all_reduce"]
    assert sum(c.payload_bytes for c in reduced if c.group.axis == "dp_replicate") == 2 * parameters
    assert {c.payload_bytes for c in reduced if c.group.axis == "pp"} == {2 * embedding}
    sent = 2 * 2 * SHAPE.seq_len * hidden  # bytes of what a block passes on
    sends = [c for c in first.communication.collectives if c.operation == "send"]
    assert sends[0].payload_bytes == 2 * 4 * sent


def test_the_head_of_the_last_stage_is_divided_with_the_embedding_it_is_tied_to() -> None:
    recorded = Strategy(precision="bf16", micro_batch=2, accumulation=4, recompute="full")
    whole = record(gpt_job(SHAPE, core_again=False, fused=True), recorded).with_accumulation(4)
    strategy = recorded.but(mesh=Mesh(pp=2, tp=TP), parallelism=Parallelism(loss_parallel=True))
    _, last = megatron_ranks(whole, strategy, trainer=MEGATRON_DEEPSPEED)
    storages, hidden = last.trace.storages, SHAPE.hidden
    blocks = sum(p.numel() for block in one_rank(False).layers[SHAPE.layers // 2 :] for p in block.parameters())
    parameters = blocks + 2 * hidden + SHAPE.vocabulary // TP * hidden
    for name in ("parameter", "gradient"):
        assert int(storages.size_bytes[storages.category == CATEGORIES.index(name)].sum()) == 2 * parameters


def test_a_fused_sum_moves_the_bytes_of_its_inputs_its_output_and_its_mask() -> None:
    recorded = Strategy(precision="bf16", micro_batch=2)
    plain = record(gpt_job(SHAPE, core_again=False, fused=True), recorded)
    fused = with_megatron_kernels(plain, fused=True)
    row = fused.operations.name.index("dropout_add")
    elements = 2 * SHAPE.seq_len * SHAPE.hidden
    moved = fused.operations.column("bytes_read")[row] + fused.operations.column("bytes_written")[row]
    assert moved == 3 * 2 * elements + elements
    micro_batches = 2
    assert len(plain.sequence) - len(fused.sequence) == 2 * SHAPE.layers * micro_batches
    assert fused.flops() == plain.flops()


def test_collectives_run_while_the_device_waits_for_its_host() -> None:
    recorded = Strategy(precision="bf16", micro_batch=2, recompute="full")
    strategy = recorded.but(mesh=Mesh(tp=TP), parallelism=Parallelism(loss_parallel=True))
    (rank,) = megatron_ranks(
        record(gpt_job(SHAPE, core_again=False, fused=True), recorded), strategy, trainer=MEGATRON_DEEPSPEED
    )
    chip = load_catalog().chip("a100-80gb-sxm")
    cluster = Cluster(chip, TP, inside=load_catalog().link(chip.link_id or ""))
    slow_host = replace(parameters(), host_operation_s=dict.fromkeys(PHASES, 1e-3))
    times = rank_time(rank, cluster, parameters=slow_host, calibration=calibration(chip))
    assert times.busy_s == pytest.approx(host_s(rank.trace, chip, slow_host, rank.communication))
    assert times.exchange.exposed_s == pytest.approx(0.0, abs=1e-12)
    assert times.exchange.total_s > 0


def test_stages_are_cut_as_deepspeed_cuts_them() -> None:
    """78 blocks on 12 stages left the last with one; with embedding and head as blocks, 82 are 84 equal parts
    (chronicles-prequel.md, "Re-do" and "Rebalancing layers")."""
    uneven, even = (trainer.first_blocks(blocks, 12) for trainer, blocks in ((BIGSCIENCE_FP16, 78), (BIGSCIENCE_BF16, 82)))
    assert [*np.diff([*uneven, 78])] == [7] * 11 + [1]
    assert [*np.diff([*even, 82])] == [6] + [7] * 10 + [6]
    assert BIGSCIENCE_FP16.first_blocks(72, 6) == (0, 12, 24, 36, 48, 60)


def test_gradients_in_fp32_take_four_bytes_more_and_are_summed_in_fp32() -> None:
    recorded = Strategy(precision="bf16", micro_batch=2, accumulation=4, recompute="full")
    whole = record(gpt_job(SHAPE, core_again=False, fused=True), recorded).with_accumulation(4)
    strategy = recorded.but(mesh=Mesh(dp_replicate=2))
    (half,), (single,) = (
        megatron_ranks(whole, strategy, trainer=trainer)
        for trainer in (BIGSCIENCE_FP16, replace(BIGSCIENCE_FP16, fp32_gradients=True))
    )
    count = sum(p.numel() for p in Gpt(SHAPE, core_again=False, fused=True).parameters())
    sizes = [int(rank.trace.storages.size_bytes.sum()) for rank in (half, single)]
    assert sizes[1] - sizes[0] == 4 * count
    of_replicas = [[(c.operation, c.payload_bytes) for c in rank.communication.collectives] for rank in (half, single)]
    assert of_replicas == [[("all_reduce", 2 * count)], [("all_reduce", 4 * count), ("all_gather", 2 * count)]]


def test_models_of_as_many_parameters_are_told_apart_by_the_table_they_stand_in(tmp_path: Path) -> None:
    row = {
        "subsets": "bigscience",
        "num_gpus": 384,
        "parallelism": "dp8 tp8 pp6",
        "batch_per_gpu": 4,
        "global_batch": 2048,
        "notes": "NHEADS=96",
        "step_time_s": 100.0,
        "peak_mem_gb": np.nan,
    }
    rows = [("GPT 182B", 736), ("GPT 182B", 748), ("GPT 178B", 926), ("GPT 200B", 474)]
    (tmp_path / "published").mkdir()
    table = pd.DataFrame([{**row, "model": model, "source_path": f"page#L{line}"} for model, line in rows])
    table.to_csv(tmp_path / "published" / "end_to_end.csv")
    pd.DataFrame({"system_source": []}).to_csv(tmp_path / "published" / "distributed.csv")
    cases = [case for case in megatron_cases(tmp_path) if case.group == "bigscience"]
    assert [case.shape.architecture for case in cases] == ["13824x78", "13312x84", "13312x82"]
    assert [case.trainer.fp32_gradients for case in cases] == [False, False, True]
    assert {case.shape.heads for case in cases} == {96}


def test_a_fused_update_moves_36_bytes_a_parameter_and_keeps_14() -> None:
    recorded = Strategy(precision="bf16", micro_batch=2)
    (rank,) = megatron_ranks(
        record(gpt_job(SHAPE, core_again=False, fused=True), recorded), recorded, trainer=MEGATRON_DEEPSPEED
    )
    count = sum(p.numel() for p in Gpt(SHAPE, core_again=False, fused=True).parameters())
    trace = rank.trace
    moved = trace.operations.column("bytes_read") + trace.operations.column("bytes_written")
    assert int(trace.counts("optimizer") @ moved) == 36 * count
    state = trace.storages.category == CATEGORIES.index("optimizer_state")
    assert int(trace.storages.size_bytes[state].sum()) == 14 * count
