"""Communication of many strategies at once: arrays instead of gpuwise.cost.network.collectives' single steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

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
class RankGroups:
    """Groups of ranks along one axis of many meshes, as RankGroup has one.

    Attributes:
        axis: as there.
        ranks, stride: as there, of each mesh.
    """

    axis: str
    ranks: np.ndarray
    stride: np.ndarray


@dataclass(frozen=True)
class Collectives:
    """Collectives of many steps, as gpuwise.trace.parallel.communication.Collective has those of one.

    Attributes:
        operation, group, overlaps, in_update: as there.
        payload_bytes, calls, copied_bytes: as there, arrays that broadcast to the shape of the steps.
    """

    operation: str
    group: RankGroup | RankGroups
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
        copies_s: the part of it in which ranks copy into buffers and out of them.
    """

    exposed_s: np.ndarray
    each_micro_batch_s: np.ndarray
    copies_s: np.ndarray

    def beside_launches(self, waiting_s: np.ndarray) -> ExchangeTime:
        """As gpuwise.cost.rank_time.beside_launches has it of one step."""
        copied_s = np.minimum(waiting_s, self.copies_s)
        hidden_s = np.minimum(waiting_s - copied_s, self.each_micro_batch_s)
        return ExchangeTime(self.exposed_s - copied_s - hidden_s, self.each_micro_batch_s - hidden_s, self.copies_s - copied_s)


class Calls(Protocol):
    """What calls of collectives take on the devices of many steps."""

    overlap_share: np.ndarray | float

    def call_s(self, operation: str, group: RankGroup | RankGroups, payload_bytes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Seconds of one call by the fastest algorithm, and its latency."""

    def copy_s(self, each_bytes: np.ndarray) -> np.ndarray:
        """Seconds of one copy into a buffer or out of it; 0 where the devices are CPUs."""


class ClusterCalls:
    """Calls on one cluster. Raises UnsupportedError for a link without figures."""

    def __init__(self, cluster: Cluster, parameters: Parameters):
        self._cluster, self._parameters = cluster, parameters
        self._on_cpu = cluster.chip.kind == "cpu"  # its cores move the bytes themselves
        self.overlap_share: np.ndarray | float = 0.0 if self._on_cpu else parameters.overlap_share

    def call_s(self, operation: str, group: RankGroup | RankGroups, payload_bytes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        assert isinstance(group, RankGroup)
        lines = group_calls(operation, group, self._cluster, self._parameters).lines if group.ranks > 1 else ()
        return fastest(((line.latency_s, line.s_per_byte) for line in lines), payload_bytes)

    def copy_s(self, each_bytes: np.ndarray) -> np.ndarray:
        if self._on_cpu:
            return np.zeros(np.shape(each_bytes))
        return np.interp(each_bytes, COPY_BYTES, copy_curve_s(self._cluster.chip, self._parameters))


def fastest(
    lines: Iterable[tuple[np.ndarray | float, np.ndarray | float]], payload_bytes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of calls by the fastest of some algorithms, each a latency and seconds a byte; and its latency. 0 without any."""
    best_s, latency_s = np.full(np.shape(payload_bytes), np.inf), np.zeros(np.shape(payload_bytes))
    for line_s, s_per_byte in lines:
        seconds = line_s + s_per_byte * payload_bytes
        latency_s = np.where(seconds < best_s, line_s, latency_s)
        best_s = np.minimum(best_s, seconds)
    return np.where(np.isfinite(best_s), best_s, 0.0), latency_s


def exchange_time(
    collectives: Sequence[Collectives],
    calls: Calls,
    *,
    forward_s: np.ndarray,
    backward_s: np.ndarray,
    micro_batches: np.ndarray,
    parameters: Parameters,
) -> ExchangeTime:
    """The time of collectives, as gpuwise.cost.network.collectives.communication_time has it, with copies into buffers."""
    windows = {"nothing": 0.0, "step": backward_s + forward_s, "last backward": backward_s / micro_batches}
    exposed_s, waited_s, copies_s = (np.zeros(np.shape(forward_s)) for _ in range(3))
    for overlaps in OVERLAPS:
        beside = [one for one in collectives if one.overlaps == overlaps]
        seconds, last_call_s = np.zeros(np.shape(forward_s)), np.zeros(np.shape(forward_s))
        for one in beside:
            times = np.maximum(1.0, one.calls)
            each_s, latency_s = calls.call_s(one.operation, one.group, one.payload_bytes / times)
            there = (one.payload_bytes > 0) & (np.asarray(one.group.ranks) > 1)
            calls_s = np.where(there, times * each_s, 0.0)
            seconds = seconds + calls_s
            last_call_s = np.maximum(last_call_s, np.where(there, latency_s, 0.0))
            if overlaps == "nothing" and not one.in_update:
                waited_s = waited_s + calls_s
            copied = np.where(np.asarray(one.group.ranks) > 1, one.copied_bytes, 0.0) / times
            if copied.any():
                copies_s = copies_s + times * np.where(copied > 0, calls.copy_s(copied), 0.0)
        if beside:
            hidden = np.minimum(np.maximum(0.0, seconds - last_call_s), calls.overlap_share * windows[overlaps])
            exposed_s = exposed_s + seconds - hidden * (1 - parameters.overlap_slowdown)
    return ExchangeTime(exposed_s + copies_s, waited_s, copies_s)


COPY_BYTES = np.geomspace(1.0, 2.0**42, 1024)  # ascending sizes, between which copies grow linearly nearly everywhere


@lru_cache(maxsize=256)
def copy_curve_s(chip: Chip, parameters: Parameters) -> np.ndarray:
    """Seconds of copies of COPY_BYTES."""
    return copy_s(COPY_BYTES, chip, precision="bf16", parameters=parameters, calibration=calibration(chip))
