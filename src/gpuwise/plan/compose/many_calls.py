"""Calls of collectives on many clusters at once: the lines of each network and group are looked up once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuwise.cost.network.algorithms import Line
from gpuwise.cost.network.collectives import group_lines
from gpuwise.cost.parameters import Parameters
from gpuwise.errors import UnsupportedError
from gpuwise.hardware.cluster import Cluster
from gpuwise.plan.compose.exchange import COPY_BYTES, RankGroups, copy_curve_s, fastest
from gpuwise.plan.space.layouts import divisors
from gpuwise.trace.header import RankGroup

_OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
_LINES = 8  # algorithms of an operation at most


class Networks:
    """The networks of clusters.

    Arguments:
        clusters: those on whose networks calls are looked up.
        parameters: figures of the cost model.

    Attributes:
        number: of the network of each cluster.
        problems: by cluster, why its network cannot be priced; "" where it can.
    """

    def __init__(self, clusters: Sequence[Cluster], parameters: Parameters):
        self._parameters = parameters
        self._degrees = np.unique(np.concatenate([divisors(devices) for devices in {one.devices for one in clusters}]))
        self._index_of = np.searchsorted(self._degrees, np.arange(self._degrees[-1] + 1))
        numbers: dict[object, int] = {}
        self._examples: list[Cluster] = []
        number = []
        for cluster in clusters:
            key = _network(cluster)
            if key not in numbers:
                numbers[key] = len(numbers)
                self._examples.append(cluster)
            number.append(numbers[key])
        self.number = np.array(number)
        self.problems = [_problem(cluster, parameters) for cluster in clusters]
        self._per_machine = np.array([one.devices_per_machine for one in self._examples])
        codes = len(self._examples) * len(self._degrees) ** 2
        self._lines = np.zeros((len(_OPERATIONS), 2, _LINES, codes))
        self._lines[:, 0] = np.inf
        self._priced = np.zeros((len(_OPERATIONS), codes), dtype=bool)

    def lines(self, operation: str, number: np.ndarray, group: RankGroup | RankGroups) -> np.ndarray:
        """Latency and seconds a byte of each algorithm, infinite where a group has not that one. Shape (2, algorithms, rows).

        number: of the network, see `number`.
        """
        row, count = _OPERATIONS.index(operation), len(self._degrees)
        apart = np.minimum(group.stride, self._per_machine[number])  # farther apart, each rank is in a machine of its own
        ranks, stride = self._index_of[group.ranks], self._index_of[apart]
        code = (number * count + ranks) * count + stride
        needed = np.zeros(self._priced.shape[1], dtype=bool)
        needed[code.ravel()] = True
        for missing in np.flatnonzero(needed & ~self._priced[row]).tolist():
            network, of_ranks, of_stride = np.unravel_index(missing, (len(self._examples), count, count))
            one = RankGroup(group.axis, int(self._degrees[of_ranks]), int(self._degrees[of_stride]))
            if one.ranks > 1:
                quickest = _quickest(group_lines(operation, one, self._examples[network], self._parameters))
                self._lines[row][:, : len(quickest), missing] = np.array(quickest).T
            self._priced[row, missing] = True
        used = int(np.isfinite(self._lines[row, 0][:, needed]).any(axis=1).sum())
        return self._lines[row][:, :used][:, :, code]


def _quickest(lines: Sequence[Line]) -> list[tuple[float, float]]:
    """Latency and seconds a byte of the algorithms that are the fastest at some size, by latency."""
    chosen: list[tuple[float, float]] = []
    for latency_s, s_per_byte in sorted((line.latency_s, line.s_per_byte) for line in lines):
        if not chosen or s_per_byte < chosen[-1][1]:
            chosen.append((latency_s, s_per_byte))
    return chosen


class ManyCalls:
    """Calls of steps on several clusters, as ClusterCalls has those on one.

    Arguments:
        networks: of the clusters.
        number: of the network of each step.
        copies_s: of each cluster, as copy_curves_s has them.
        cluster: of each step.
        overlap_share: of each step.
    """

    def __init__(
        self,
        networks: Networks,
        number: np.ndarray,
        copies_s: np.ndarray,
        cluster: np.ndarray,
        overlap_share: np.ndarray | float,
    ):
        self._networks, self._number, self._copies_s, self._cluster = networks, number, copies_s, cluster
        self.overlap_share: np.ndarray | float = overlap_share

    def call_s(self, operation: str, group: RankGroup | RankGroups, payload_bytes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        latency_s, s_per_byte = self._networks.lines(operation, self._number, group)
        return fastest(zip(latency_s, s_per_byte, strict=True), payload_bytes)

    def copy_s(self, each_bytes: np.ndarray) -> np.ndarray:
        steps_per_byte = (len(COPY_BYTES) - 1) / np.log(COPY_BYTES[-1])
        below = np.clip((np.log(np.maximum(1.0, each_bytes)) * steps_per_byte).astype(np.int64), 0, len(COPY_BYTES) - 2)
        share = (each_bytes - COPY_BYTES[below]) / (COPY_BYTES[below + 1] - COPY_BYTES[below])
        low_s, high_s = self._copies_s[self._cluster, below], self._copies_s[self._cluster, below + 1]
        return low_s + np.maximum(0.0, share) * (high_s - low_s)


def copy_curves_s(clusters: Sequence[Cluster], parameters: Parameters) -> np.ndarray:
    """Seconds of copies of COPY_BYTES on each cluster; 0 on CPUs. Shape (clusters, sizes)."""
    none = np.zeros(len(COPY_BYTES))
    return np.stack([none if one.chip.kind == "cpu" else copy_curve_s(one.chip, parameters) for one in clusters])


def _network(cluster: Cluster) -> tuple[object, ...]:
    """What the prices of collectives in a group depend on: of all devices only where a link was measured among them."""
    between = cluster.between
    devices = cluster.devices if between is not None and between.allreduce_busbw_bytes_per_s else None
    on_cpu = cluster.chip.kind == "cpu"
    return cluster.inside, between, cluster.devices_per_machine, cluster.between_serves, on_cpu, devices


def _problem(cluster: Cluster, parameters: Parameters) -> str:
    if cluster.devices > 1:
        try:
            group_lines("all_reduce", RankGroup("dp_shard", cluster.devices, 1), cluster, parameters)
        except UnsupportedError as error:
            return error.what
    return ""
