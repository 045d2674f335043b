"""Ranks that share one CPU, as devices that a forecast can price: each has an equal part of it."""

from __future__ import annotations

import os
from dataclasses import replace

from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.detect.memory import detect_memory
from gpuwise.hardware.links import MEASURED_HERE
from gpuwise.hardware.types import AchievedRates, Chip, Link, Source
from gpuwise.notes import Note
from gpuwise.notes import step as step_notes
from gpuwise.notes.parallel import ranks_share_cpu
from gpuwise.plan.space.legal import slice_of

ROUGH_SOURCE = Source("python -m benchmarks.gloo_here", "2026-11-23")
# Of two processes on two cores of an AMD EPYC, PyTorch 2.13: `python -m benchmarks.gloo_here` prints them, and the smallest and
# largest ratio of calls between 2 and 4 processes to what they give.
ROUGH = AchievedRates(
    all_reduce_devices=2,
    all_reduce_busbw_bytes_per_s=0.9e9,
    all_reduce_latency_s=0.25e-3,
    collective_busbw_bytes_per_s={"all_reduce": 0.9e9, "all_gather": 0.7e9, "reduce_scatter": 0.35e9, "broadcast": 2.4e9},
    collective_spread=(0.2, 8.0),
)
# What a rank's Python takes around a collective within a step, beside the call that gloo_link prices: the hooks and copies of
# FSDP2, DTensor's redistribution, autograd's functions. Processor time of steps of narrow decoders of 4 and 8 blocks on two
# ranks, beyond that of one rank, by collective: 1.1 ms of shards, 1.6 to 2.4 ms of tensor parallelism, 1.5 ms of context
# parallelism, 1.4 ms of replicas (two cores that other programs use, too; PyTorch 2.13).
AROUND_A_CALL_S = 1.3e-3


def ranks_on_cpu(chip: Chip, ranks: int, *, memory_bytes: int | None) -> Cluster:
    """So many ranks on this machine's CPU, each with an equal part of its cores, bandwidth and memory.

    Arguments:
        memory_bytes: what programs can use on the machine; None where unknown.
    """
    of_each = None if memory_bytes is None else memory_bytes // ranks
    cores, share = chip.sm_count or 0, share_of_cpu(chip, ranks)
    link = gloo_link(chip, ranks)
    crowded = max(1.0, ranks / cores) if cores else 1.0
    inside = replace(link, latency_s=(link.latency_s or 0.0) + AROUND_A_CALL_S * crowded)
    shared_cores = cores if 0 < cores < ranks else None
    return Cluster(slice_of(chip, share), ranks, inside=inside, memory_bytes=of_each, shared_cores=shared_cores)


def part_of_threads(chip: Chip, threads: int | None) -> Chip:
    """What so many threads have of this machine's CPU; of None it is what OMP_NUM_THREADS says, or all. Others stay whole."""
    if chip.kind != "cpu":
        return chip
    threads, cores = threads or threads_of_environment(), chip.sm_count or 0
    return slice_of(chip, share_of_cpu(chip, cores / threads)) if threads and threads < cores else chip


def threads_of_environment() -> int | None:
    """OMP_NUM_THREADS, which PyTorch obeys; None where it is not set to a number."""
    text = os.environ.get("OMP_NUM_THREADS", "")
    return int(text) if text.isdecimal() and int(text) else None


def memory_notes(needed_bytes: int) -> tuple[Note, ...]:
    """That a step needs more memory than other programs leave it on this machine now; empty where they leave enough."""
    free_bytes = detect_memory().available_bytes
    if free_bytes is None or needed_bytes <= free_bytes:
        return ()
    return (step_notes.more_than_is_free(needed_bytes=needed_bytes, free_bytes=free_bytes),)


def threads_note(chip: Chip) -> Note | None:
    """Why a step has a part of this machine's CPU; None where it has all cores."""
    threads, cores = threads_of_environment(), chip.sm_count or 0
    return step_notes.threads_of_environment(threads=threads, cores=cores) if threads and threads < cores else None


def share_of_cpu(chip: Chip, parts: float) -> float:
    """The share of a processor's figures that one of so many equal parts of its cores has, at most 1."""
    threads, cores = chip.achieved.threads if chip.achieved else 0, chip.sm_count or 0
    measured_cores = min(threads or cores, cores)  # of its figures: OMP_NUM_THREADS may have been below the cores
    return min(1.0, cores / parts / measured_cores) if measured_cores else 1 / parts


def shared_cpu_note(chip: Chip, ranks: int) -> Note:
    """What a forecast of ranks on a CPU assumes."""
    link, rates = gloo_link(chip, ranks), _rates(chip)
    return ranks_share_cpu(
        ranks=ranks,
        cores=chip.sm_count or 0,
        exchange_bytes_per_s=link.allreduce_busbw_bytes_per_s or 0.0,
        measured_between=0 if rates is ROUGH else rates.all_reduce_devices,
    )


def gloo_link(chip: Chip, ranks: int) -> Link:
    """gloo between the ranks of one machine: as `gpuwise measure` timed it between processes on this CPU, else a rough figure.

    Each process moves bytes with a core of its own. Where ranks outnumber cores, they share them: bandwidth falls and calls
    take longer in that proportion. A ring of more ranks also takes more turns. What was not measured has the spread of the
    rough figures.
    """
    rates = _rates(chip)
    devices, cores = rates.all_reduce_devices, chip.sm_count
    crowded = 1.0 if cores is None else max(1.0, ranks / cores) / max(1.0, devices / cores)
    turns = (ranks - 1) / (devices - 1)
    rate_of = {name: rate / crowded for name, rate in rates.collective_busbw_bytes_per_s.items()}
    if "broadcast" in rate_of:
        rate_of["send"] = rate_of["broadcast"]  # both are from one rank to another
    measured = f"as measured here between {devices} (± {100 * rates.all_reduce_error:.0f} %)"
    assert rates.all_reduce_busbw_bytes_per_s is not None
    assert rates.all_reduce_latency_s is not None
    return Link(
        "gloo-loopback",
        f"gloo between processes {'of another machine' if rates is ROUGH else measured}",
        "scale-up",
        allreduce_busbw_bytes_per_s=rates.all_reduce_busbw_bytes_per_s / crowded,
        latency_s=rates.all_reduce_latency_s * turns * crowded,
        collective_busbw_bytes_per_s=rate_of,
        exchange_spread=(rates.collective_spread if ranks == devices else None) or ROUGH.collective_spread,
        source=ROUGH_SOURCE if rates is ROUGH else MEASURED_HERE,
    )


def _rates(chip: Chip) -> AchievedRates:
    """What was measured between processes of this CPU, else the rough figures."""
    rates = chip.achieved
    if rates is None or rates.all_reduce_devices < 2 or not (rates.all_reduce_busbw_bytes_per_s and rates.all_reduce_latency_s):
        return ROUGH
    return rates
