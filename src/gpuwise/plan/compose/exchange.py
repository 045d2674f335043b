"""Communication of many strategies at once: arrays instead of gpuwise.cost.network.collectives' single steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gpuwise.cost.calibration import calibration
from gpuwise.cost.network.buffers import copy_s
from gpuwise.cost.network.collectives import group_calls
from gpuwise.cost.parameters import Parameters
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.types import Chip
from gpuwise.trace.header import RankGroup
from gpuwise.trace.parallel.communication import OVERLAPS


@dataclass(frozen=True)
class Collectives:
    """Collectives of many steps, as gpuwise.trace.parallel.communication.Collective has those of one.

    Attributes:
        operation, group, overlaps, in_update: as there.
        payload_bytes, calls, copied_bytes: as there, arrays that broadcast to the shape of the steps.
    """

    operation: str
    group: RankGroup
    payload_bytes: np.ndarray
    calls: np.ndarray
    overlaps: str = "nothing"
    in_update: bool = False
    copied_bytes: np.ndarray | float = 0.0


@dataclass(frozen=True)
class ExchangeTime:
    """The communication of many steps, in seconds as CommunicationTime has them.

    Attributes:
        exposed_s: what communication adds.
        each_micro_batch_s: the part of it that micro-batches wait for.
    """

    exposed_s: np.ndarray
    each_micro_batch_s: np.ndarray


def call_s(
    operation: str, group: RankGroup, cluster: Cluster, parameters: Parameters, *, payload_bytes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of one call by the fastest algorithm, and its latency. Raises UnsupportedError for an unknown link."""
    best_s, latency_s = np.asarray(np.inf), np.asarray(0.0)
    for line in group_calls(operation, group, cluster, parameters).lines:
        seconds = line.latency_s + line.s_per_byte * payload_bytes
        latency_s = np.where(seconds < best_s, line.latency_s, latency_s)
        best_s = np.minimum(best_s, seconds)
    return best_s, latency_s


def exchange_time(
    collectives: Sequence[Collectives],
    cluster: Cluster,
    *,
    forward_s: np.ndarray,
    backward_s: np.ndarray,
    micro_batches: np.ndarray,
    parameters: Parameters,
) -> ExchangeTime:
    """The time of collectives, as gpuwise.cost.network.collectives.communication_time has it, with copies into buffers."""
    windows = {"nothing": 0.0, "step": backward_s + forward_s, "last backward": backward_s / micro_batches}
    exposed_s = np.zeros(np.shape(forward_s))
    waited_s = np.zeros(np.shape(forward_s))
    overlap_share = 0.0 if cluster.chip.kind == "cpu" else parameters.overlap_share
    collectives = [one for one in collectives if one.group.ranks > 1 and cluster.devices > 1]
    for overlaps in OVERLAPS:
        seconds, last_call_s = np.zeros(np.shape(forward_s)), np.zeros(np.shape(forward_s))
        for one in collectives:
            if one.overlaps == overlaps:
                calls = np.maximum(1.0, one.calls)
                each_s, latency_s = call_s(
                    one.operation, one.group, cluster, parameters, payload_bytes=one.payload_bytes / calls
                )
                there = one.payload_bytes > 0
                calls_s = np.where(there, calls * each_s, 0.0)
                seconds = seconds + calls_s
                last_call_s = np.maximum(last_call_s, np.where(there, latency_s, 0.0))
                if overlaps == "nothing" and not one.in_update:
                    waited_s = waited_s + calls_s
        hidden = np.minimum(np.maximum(0.0, seconds - last_call_s), overlap_share * windows[overlaps])
        exposed_s = exposed_s + seconds - hidden * (1 - parameters.overlap_slowdown)
    if cluster.chip.kind != "cpu":
        exposed_s = exposed_s + sum(_copies_s(one, cluster.chip, parameters) for one in collectives)
    return ExchangeTime(exposed_s, waited_s)


def _copies_s(collectives: Collectives, chip: Chip, parameters: Parameters) -> np.ndarray:
    """Seconds of the copies of these calls, see gpuwise.cost.network.buffers.copies_s."""
    calls = np.maximum(1.0, collectives.calls)
    each_bytes = np.broadcast_to(
        collectives.copied_bytes / calls, np.broadcast_shapes(np.shape(calls), np.shape(collectives.copied_bytes))
    )
    sizes, seconds = _copy_curve(chip, parameters)
    copied: np.ndarray = np.where(each_bytes > 0, calls * np.interp(each_bytes, sizes, seconds), 0.0)
    return copied


@lru_cache(maxsize=32)
def _copy_curve(chip: Chip, parameters: Parameters) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of copies of ascending sizes, between which they grow linearly nearly everywhere."""
    sizes = np.geomspace(1.0, 2.0**42, 1024)
    return sizes, copy_s(sizes, chip, precision="bf16", parameters=parameters, calibration=calibration(chip))
