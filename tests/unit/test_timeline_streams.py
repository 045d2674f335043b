"""Streams of recorded ranks: small steps by hand, and recorded ones against what composed ones are priced at."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_trace_sharded import gpt_job, language_job

from gpuwise.cost.calibration import Calibration, calibration
from gpuwise.cost.host import host_s, launch_s
from gpuwise.cost.network.collectives import collective_time
from gpuwise.cost.parameters import parameters
from gpuwise.cost.rank_time import rank_time
from gpuwise.cost.timeline.durations import durations
from gpuwise.cost.timeline.streams import Durations, simulated, stream_time
from gpuwise.hardware import load_catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.types import Link
from gpuwise.job import Job
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.strategy import Mesh, Strategy
from gpuwise.trace import RankGroup, Trace
from gpuwise.trace.header import Header
from gpuwise.trace.parallel.data_parallel import data_parallel
from gpuwise.trace.parallel.ranks import RankStep
from gpuwise.trace.parallel.recorded import split_communication
from gpuwise.trace.parallel.variant import recorded_as
from gpuwise.trace.tables import COLUMNS, KINDS, Operations, OperationSequence, Storages, Waits
from gpuwise.tracing import record

H100 = load_catalog().chip("h100-80gb-sxm")
CLUSTER = Cluster(H100, 8, inside=Link("inside", "a switch", "scale-up", allreduce_busbw_bytes_per_s=400e9))
SLOW = Cluster(H100, 8, inside=Link("inside", "a wire", "scale-up", allreduce_busbw_bytes_per_s=2e9))
PRODUCT, GATHER, OTHER_GATHER = 0, 1, 2


GROUPS = (RankGroup("dp_shard", 8, 1), RankGroup("cp", 8, 8))


def step(rows: list[tuple[int, int, int, int]], waits: list[tuple[int, int, int]], *, accumulation: int = 1) -> Trace:
    """A step of products and gathers. rows: operation, phase, micro_step, stream."""
    header = Header("job", "0" * 16, {"micro_batch": 1}, Strategy(accumulation=accumulation), 1, 1, groups=GROUPS)
    kinds = np.array([KINDS.index("gemm"), KINDS.index("collective"), KINDS.index("collective")])
    operations = Operations(
        ("aten.mm.default", *["c10d._allgather_base_.default"] * 2),
        kinds,
        ("float32",) * 3,
        np.ones((3, len(COLUMNS)), dtype=np.int64),
        np.array([-1, 0, 1]),
    )
    operation, phase, micro_step, stream = np.array(rows).T
    sequence = OperationSequence(operation, np.zeros(len(rows), dtype=int), phase, micro_step, stream)
    table = np.array(waits, dtype=int).reshape(-1, 3).T
    none = np.zeros(0, dtype=int)
    return Trace(header, operations, sequence, Storages(*[none] * 5), ("",), Waits(*table)).check()


def seconds(trace: Trace, *, product_s: float, gather_s: float, launched_s: float = 0.0) -> Durations:
    each = np.array([product_s, gather_s, gather_s])[trace.sequence.operation]
    return Durations(each, np.full(len(trace.sequence), launched_s), np.zeros(len(trace.sequence), dtype=bool))


# Gather, product, gather, product: the second gather runs beside the first product.
PREFETCHED = step([(GATHER, 0, 0, 1), (PRODUCT, 0, 0, 0), (GATHER, 0, 0, 1), (PRODUCT, 0, 0, 0)], waits=[(1, 0, 0), (3, 0, 2)])


@pytest.mark.parametrize(("gather_s", "whole_s"), [(1.0, 5.0), (2.0, 6.0), (3.0, 8.0)])
def test_a_gather_runs_beside_the_product_before(gather_s: float, whole_s: float) -> None:
    rows = simulated(PREFETCHED, seconds(PREFETCHED, product_s=2.0, gather_s=gather_s))
    assert rows.whole_s == pytest.approx(whole_s)
    assert rows.start_s.tolist()[1] == gather_s


def test_what_runs_beside_communication_is_slower() -> None:
    """One of the first product's two seconds is beside the gather: with half of it more, the step takes that longer."""
    rows = simulated(PREFETCHED, seconds(PREFETCHED, product_s=2.0, gather_s=1.0), slowdown=0.5)
    assert rows.whole_s == pytest.approx(5.5)
    assert simulated(PREFETCHED, seconds(PREFETCHED, product_s=2.0, gather_s=1.0), one_stream=True).whole_s == pytest.approx(6)


def test_collectives_of_a_group_run_one_after_the_other() -> None:
    trace = step([(GATHER, 0, 0, 1), (GATHER, 0, 0, 2)], waits=[])
    assert simulated(trace, seconds(trace, product_s=1.0, gather_s=1.0)).end_s.tolist() == [1.0, 2.0]


def test_collectives_of_two_groups_share_a_link() -> None:
    """Four seconds of one and one of the other: both are done after five, the shorter after two."""
    trace = step([(GATHER, 0, 0, 1), (OTHER_GATHER, 0, 0, 2)], waits=[])
    each = Durations(np.array([4.0, 1.0]), np.zeros(2), np.zeros(2, dtype=bool))
    assert simulated(trace, each).end_s.tolist() == [5.0, 2.0]
    apart = replace(each, crosses=np.array([False, True]))
    assert simulated(trace, apart).end_s.tolist() == [4.0, 1.0]


def test_no_row_begins_before_the_host_has_launched_it() -> None:
    rows = simulated(PREFETCHED, seconds(PREFETCHED, product_s=0.1, gather_s=0.1, launched_s=1.0))
    assert rows.start_s == pytest.approx([1.0, 2.0, 3.0, 4.0])


@pytest.mark.parametrize("accumulation", [1, 2, 3, 7])
def test_micro_batches_run_as_often_as_the_step_has_them(accumulation: int) -> None:
    """Each gathers for a second, computes for two, and the next gather waits for that; the update takes two more."""
    rows = [(GATHER, 0, micro, 1) if kind else (PRODUCT, 0, micro, 0) for micro in (0, 1) for kind in (1, 0)]
    trace = step([*rows, (PRODUCT, 3, 2, 0)], waits=[(1, 0, 0), (2, 1, 1), (3, 0, 2)], accumulation=accumulation)
    placed = simulated(trace, seconds(trace, product_s=2.0, gather_s=1.0))
    assert placed.whole_s == pytest.approx(3 * accumulation + 2)
    added = stream_time(trace, seconds(trace, product_s=2.0, gather_s=1.0), slowdown=0.0)
    assert added.exposed_s == pytest.approx(accumulation)
    assert added.by_axis == {"dp_shard": pytest.approx(accumulation), "cp": 0}
    assert added.total_s == pytest.approx(accumulation)


def llama_job() -> Job:
    config = LlamaConfig(vocabulary=4096, width=4096, layers=3, heads=32, kv_heads=8, hidden=14336)
    return language_job(lambda: Llama(config), vocabulary=4096, seq_len=2048)


@pytest.mark.parametrize(("mesh", "accumulation"), [(Mesh(dp_shard=8), 1), (Mesh(dp_shard=8), 5), (Mesh(dp_replicate=8), 1)])
def test_recorded_ranks_hide_about_as_much_as_the_rule_for_composed_ones(mesh: Mesh, accumulation: int) -> None:
    """Of the seconds of a step. What a rank copies into and out of buffers is in both."""
    strategy = Strategy(mesh=mesh, precision="bf16", accumulation=accumulation)
    recorded = record(llama_job(), strategy)
    # Figures that no fit moves: what is compared is which communication is hidden, and a quicker step makes it a larger share.
    step, figures = RankStep("", *split_communication(recorded)), {"parameters": parameters(), "calibration": Calibration(())}
    rule, streams = (rank_time(of, CLUSTER, **figures) for of in (step, replace(step, recorded=recorded)))
    assert streams.exchange.total_s == pytest.approx(rule.exchange.total_s, rel=1e-6)
    assert streams.exchange.exposed_s != rule.exchange.exposed_s
    assert streams.busy_s == pytest.approx(rule.busy_s, rel=0.1)
    assert 0 < streams.exchange.exposed_s < streams.exchange.total_s
    assert sum(streams.exchange.by_axis.values()) == pytest.approx(streams.exchange.exposed_s)


@pytest.mark.parametrize("mesh", [Mesh(dp_shard=8), Mesh(dp_replicate=8)])
def test_composed_ranks_take_about_as_long_as_recorded_ones(mesh: Mesh) -> None:
    """With what they copy into and out of the buffers of their collectives, which a recording has among its rows."""
    strategy = Strategy(mesh=mesh, precision="amp-bf16", micro_batch=2)
    recorded, plain = record(llama_job(), strategy), recorded_as(strategy).but(mesh=Mesh())
    trace, communication = data_parallel(record(llama_job(), plain).with_accumulation(1), strategy)
    own = split_communication(recorded)
    figures = {"parameters": parameters(), "calibration": calibration(H100)}
    steps = RankStep("", trace, communication), RankStep("", *own, recorded=recorded)
    composed_s, recorded_s = (rank_time(step, CLUSTER, **figures).busy_s for step in steps)
    assert composed_s == pytest.approx(recorded_s, rel=0.08)  # of three blocks: the rest of the model is a large part


def test_a_step_is_no_shorter_than_its_communication() -> None:
    strategy = Strategy(mesh=Mesh(dp_shard=8))
    trace = record(gpt_job(), strategy)
    kernels = np.full(len(trace.operations), 1e-6)
    each = durations(trace, SLOW, kernel_s=kernels, parameters=parameters())
    rows, collective = simulated(trace, each), trace.operations.is_collective[trace.sequence.operation]
    assert rows.whole_s >= float(each.device_s[collective & (trace.repeats > 0)].sum())
    gather = np.flatnonzero(collective)[0]
    payload = float(trace.operations.payload_bytes[trace.sequence.operation[gather]])
    call = collective_time(
        "all_gather", payload_bytes=payload, group=trace.header.groups[0], cluster=SLOW, parameters=parameters()
    )
    assert each.device_s[gather] == pytest.approx(call.seconds)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("accumulation", [1, 4])
def test_launches_of_positions_sum_to_those_of_the_step(accumulation: int, compiled: bool) -> None:
    trace = record(gpt_job(), Strategy()).with_accumulation(accumulation)
    trace = replace(trace, header=replace(trace.header, strategy=trace.header.strategy.but(compile=compiled)))
    launched_s = float((launch_s(trace, H100, parameters()) * trace.repeats).sum())
    assert launched_s > 0
    assert launched_s == pytest.approx(host_s(trace, H100, parameters()))


@pytest.mark.parametrize("mesh", [Mesh(dp_shard=8), Mesh(dp_replicate=8)])
def test_computation_hides_most_of_an_exchange_and_never_more_than_itself(mesh: Mesh) -> None:
    """The exchange lasts longer than what it runs beside; computation is not slowed."""
    config = LlamaConfig(vocabulary=4096, width=2048, layers=4, heads=16, kv_heads=16, hidden=5504)
    job = language_job(lambda: Llama(config), vocabulary=4096, seq_len=2048)
    strategy = Strategy(mesh=mesh, precision="bf16", micro_batch=4)
    recorded = record(job, strategy)
    step = RankStep("", *split_communication(recorded), recorded=recorded)
    wire = replace(CLUSTER, inside=Link("inside", "a wire", "scale-up", allreduce_busbw_bytes_per_s=25e9))
    figures = replace(parameters(), overlap_slowdown=0.0)
    time = rank_time(step, wire, parameters=figures, calibration=calibration(H100))
    beside_s = time.phase_s["backward"] + (time.phase_s["forward"] if mesh.dp_shard > 1 else 0.0)
    assert time.exchange.total_s > beside_s
    assert 0.6 * beside_s < time.exchange.total_s - time.exchange.exposed_s < beside_s
