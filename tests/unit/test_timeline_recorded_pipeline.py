"""Pipelines of recorded ranks: their streams and their stages together, against all their rows in one simulation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from test_trace_sharded import language_job

from gpuwise.cost.calibration import Calibration
from gpuwise.cost.host import launch_s
from gpuwise.cost.kernels import kernel_times
from gpuwise.cost.network.collectives import collective_time
from gpuwise.cost.parameters import parameters
from gpuwise.cost.rank_time import RankTime, rank_times, slowest
from gpuwise.cost.timeline.stages import pipeline_wait
from gpuwise.hardware import load_catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.types import Link
from gpuwise.job import Job
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.strategy import Mesh, Parallelism, Strategy
from gpuwise.trace import Trace
from gpuwise.trace.parallel.ranks import RankStep
from gpuwise.trace.parallel.recorded import collective_of, split_communication
from gpuwise.tracing import record

H100 = load_catalog().chip("h100-80gb-sxm")
GENERIC = Calibration(())  # figures that no fit moves: what is compared is the order in which rows run
CLUSTER = Cluster(H100, 4, inside=Link("inside", "a wire", "scale-up", allreduce_busbw_bytes_per_s=40e9))
NO_SLOWDOWN = replace(parameters(), overlap_slowdown=0.0)


def job() -> Job:
    config = LlamaConfig(vocabulary=4096, width=2048, layers=2, heads=16, kv_heads=16, hidden=5504)
    return language_job(lambda: Llama(config), vocabulary=4096, seq_len=2048)


def forecast_s(ranks: tuple[Trace, ...]) -> float:
    """As gpuwise.cost.price has it."""
    steps = [RankStep(str(number), *split_communication(trace), recorded=trace) for number, trace in enumerate(ranks)]
    strategy = ranks[0].header.strategy
    times: tuple[RankTime, ...] = rank_times(steps, CLUSTER, strategy=strategy, parameters=NO_SLOWDOWN, calibration=GENERIC)
    wait = pipeline_wait(times, strategy, CLUSTER)
    return slowest(times).busy_s + wait.idle_s + wait.send_s


def simulated_s(ranks: tuple[Trace, ...]) -> float:
    """All rows of two ranks, one after the other as the host launches them; a receive ends with the send of the other rank."""
    sent: dict[int, list[float]] = {0: [], 1: []}
    left = [_rows(number, trace, sent) for number, trace in enumerate(ranks)]
    ends = [0.0, 0.0]
    running = {0, 1}
    while running:
        for number in tuple(running):
            for end in left[number]:
                if end is None:  # waits for the other rank
                    break
                ends[number] = max(ends[number], end)
            else:
                running.discard(number)
    return max(ends)


def _rows(number: int, trace: Trace, sent: dict[int, list[float]]) -> Iterator[float | None]:
    """The end of each row; None while the row waits for a send of the other rank."""
    kernel_s = kernel_times(trace, H100, NO_SLOWDOWN, GENERIC).device_s
    launched_s = np.cumsum(launch_s(trace, H100, NO_SLOWDOWN))
    free_s, group_free_s, received, ends = defaultdict(float), defaultdict(float), 0, []
    waits = defaultdict(list)
    for position, stream, on in zip(trace.waits.position, trace.waits.stream, trace.waits.on, strict=True):
        waits[int(position)].append((int(stream), int(on)))
    for position, (row, stream) in enumerate(zip(trace.sequence.operation, trace.sequence.stream, strict=True)):
        if not trace.repeats[position]:
            ends.append(0.0)
            continue
        for waiting, on in waits[position]:
            free_s[waiting] = max(free_s[waiting], ends[on])
        begin, seconds, group = max(free_s[stream], launched_s[position]), float(kernel_s[row]), None
        if trace.operations.is_collective[row]:
            group = trace.header.groups[trace.operations.group[row]]
            operation, seconds = collective_of(trace.operations.name[row]), 0.0
            if operation is not None:
                payload = float(trace.operations.payload_bytes[row])
                seconds = collective_time(
                    operation, payload_bytes=payload, group=group, cluster=CLUSTER, parameters=NO_SLOWDOWN
                ).seconds
            if group.axis == "pp" and operation is None:
                while len(sent[1 - number]) <= received:
                    yield None
                begin, received = max(begin, sent[1 - number][received]), received + 1
            elif group.axis != "pp":
                begin = max(begin, group_free_s[group])
        ends.append(begin + seconds)
        free_s[stream] = ends[-1]
        if group is not None and group.axis != "pp":
            group_free_s[group] = ends[-1]
        elif group is not None and seconds:
            sent[number].append(ends[-1])
        yield ends[-1]


@pytest.mark.parametrize(
    ("mesh", "schedule"),
    [
        (Mesh(pp=2), "1f1b"),
        (Mesh(pp=2, tp=2), "gpipe"),
        (Mesh(pp=2, dp_shard=2), "1f1b"),
        (Mesh(pp=2, dp_replicate=2), "1f1b"),
    ],
    ids=str,
)
def test_a_pipeline_of_recorded_ranks_takes_as_long_as_all_its_rows(mesh: Mesh, schedule: str) -> None:
    parallelism = Parallelism(pipeline_schedule=schedule, shard="gradients")
    strategy = Strategy(precision="bf16", micro_batch=2, accumulation=4, mesh=mesh, parallelism=parallelism)
    ranks = tuple(record(job(), strategy, rank=rank * (mesh.devices // mesh.pp)) for rank in range(mesh.pp))

    assert forecast_s(ranks) == pytest.approx(simulated_s(ranks), rel=0.03)
