"""The host of Megatron-LM beside its device: against queues worked through one operation at a time."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.support.megatron_host import MegatronHost, beside_megatron_host, no_host, queued_s
from benchmarks.support.megatron_model import gpt_job
from benchmarks.support.megatron_shape import GptShape
from benchmarks.support.megatron_step import megatron_ranks
from benchmarks.support.megatron_trainer import MEGATRON_DEEPSPEED

from gpuwise.cost.host import launch_s
from gpuwise.cost.parameters import parameters
from gpuwise.cost.rank_time import RankTime, rank_times
from gpuwise.hardware.catalog import load_catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.strategy import Mesh, Parallelism, Strategy
from gpuwise.trace import Trace
from gpuwise.trace.tables import PHASES
from gpuwise.tracing.record import record

SHAPE = GptShape(hidden=256, layers=4, heads=8, seq_len=64, vocabulary=512)
SLOW = MegatronHost(forward_s=1e-3, backward_s=1e-3, collective_s=0.0)
FREE = MegatronHost(forward_s=0.0, backward_s=0.0, collective_s=0.0)


def one_by_one(device_s: np.ndarray, host_s: np.ndarray) -> float:
    launched = done = 0.0
    for device, host in zip(device_s.tolist(), host_s.tolist(), strict=True):
        launched += host
        done = max(done, launched) + device
    return done


@pytest.mark.parametrize("seed", range(5))
def test_a_queue_ends_when_its_last_operation_does(seed: int) -> None:
    numbers = np.random.default_rng(seed)
    device_s, host_s = numbers.exponential(size=50), numbers.exponential(size=50)
    assert queued_s(device_s=device_s, host_s=host_s) == pytest.approx(one_by_one(device_s, host_s))


def rank_and_cluster(mesh: Mesh) -> tuple[RankTime, Cluster]:
    recorded = Strategy(precision="bf16", micro_batch=2, accumulation=4, recompute="full")
    whole = record(gpt_job(SHAPE, core_again=False, fused=True), recorded).with_accumulation(4)
    strategy = recorded.but(mesh=mesh, parallelism=Parallelism(loss_parallel=mesh.tp > 1))
    ranks = megatron_ranks(whole, strategy, trainer=MEGATRON_DEEPSPEED)
    chip = load_catalog().chip("a100-80gb-sxm")
    cluster = Cluster(chip, mesh.devices, inside=load_catalog().link(chip.link_id or ""))
    return rank_times(ranks, cluster, strategy=strategy, parameters=no_host(parameters()))[0], cluster


def launched_s(trace: Trace, host: MegatronHost, phases: tuple[str, ...]) -> float:
    """Seconds that the host launches operations of these phases."""
    seconds = launch_s(trace, load_catalog().chip("a100-80gb-sxm"), host.figures()) * trace.repeats
    return float(seconds[np.isin(trace.sequence.phase, [PHASES.index(phase) for phase in phases])].sum())


def test_a_slow_host_hides_the_collectives_of_micro_batches() -> None:
    rank, cluster = rank_and_cluster(Mesh(tp=2))
    slow = beside_megatron_host(rank, cluster, host=SLOW, blocking=False)
    assert rank.exchange.each_micro_batch_s > 0
    assert slow.exchange.each_micro_batch_s < 0.1 * rank.exchange.each_micro_batch_s
    launched = launched_s(rank.step.trace, SLOW, ("forward", "recompute", "backward"))
    assert slow.alone_s == pytest.approx(launched, rel=0.02)


def test_launches_that_block_add_up_with_kernels_and_collectives() -> None:
    rank, cluster = rank_and_cluster(Mesh(tp=2))
    slow = beside_megatron_host(rank, cluster, host=SLOW, blocking=True)
    launched = launched_s(rank.step.trace, SLOW, ("forward", "recompute", "backward"))
    assert slow.exchange.exposed_s == pytest.approx(rank.exchange.exposed_s)
    assert slow.alone_s == pytest.approx(rank.alone_s + launched, rel=0.01)


def test_a_stage_waits_for_its_device_between_forward_and_backward() -> None:
    """A host that is slow in forward alone is not made up for in backward."""
    rank, cluster = rank_and_cluster(Mesh(pp=2))
    host = MegatronHost(forward_s=1e-3, backward_s=0.0, collective_s=0.0)
    slow, free = (beside_megatron_host(rank, cluster, host=each, blocking=False) for each in (host, FREE))
    assert slow.phase_s["forward"] == pytest.approx(launched_s(rank.step.trace, host, ("forward",)), rel=0.02)
    assert slow.phase_s["backward"] + slow.phase_s["recompute"] >= free.phase_s["backward"] + free.phase_s["recompute"]


def test_launches_that_block_wait_for_sends_and_receipts() -> None:
    rank, cluster = rank_and_cluster(Mesh(tp=2, pp=2))
    assert rank.send is not None
    sent = [c for c in rank.step.communication.collectives if c.operation == "send"]
    part = 2 * 2 * SHAPE.seq_len * SHAPE.hidden // 2  # bytes that one of two ranks sends in a micro-batch
    assert [(c.payload_bytes, c.calls) for c in sent] == [(2 * 4 * part, 2 * 4)]
    alone, waiting = (beside_megatron_host(rank, cluster, host=FREE, blocking=True, neighbours=count) for count in (0, 1))
    assert waiting.send is None
    assert waiting.alone_s - alone.alone_s == pytest.approx(2 * 4 * rank.send.seconds)
