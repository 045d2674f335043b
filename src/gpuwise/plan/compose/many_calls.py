"""Calls of collectives on many clusters at once: the lines of each network and group are looked up once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuwise.cost.network.collectives import group_calls
from gpuwise.cost.parameters import Parameters
from gpuwise.errors import UnsupportedError
from gpuwise.hardware.cluster import Cluster
from gpuwise.plan.compose.exchange import COPY_BYTES, RankGroups, copy_curve_s, fastest
from gpuwise.plan.space.layouts import divisors
from gpuwise.trace.header import RankGroup

_OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "send")
_LINES = 8  # algorithms of an operation at most


class Networks:
    """The networks of clusters with equally many devices.

    Arguments:
        clusters: those on whose networks calls are looked up.
        parameters: figures of the cost model.

    Attributes:
        problems: by cluster, why its network cannot be priced; "" where it can.
    """

    def __init__(self, clusters: Sequence[Cluster], parameters: Parameters):
        self._parameters = parameters
        self._degrees = divisors(clusters[0].devices)
        numbers: dict[object, int] = {}
        self._examples: list[Cluster] = []
        for cluster in clusters:
            key = _network(cluster)
            if key not in numbers:
                numbers[key] = len(numbers)
                self._examples.append(cluster)
        self.number = np.array([numbers[_network(cluster)] for cluster in clusters])
        of_network = [_problem(cluster, parameters) for cluster in self._examples]
        self.problems = [of_network[number] for number in self.number.tolist()]
        codes = len(self._examples) * len(self._degrees) ** 2
        self._lines = np.full((len(_OPERATIONS), 2, _LINES, codes), np.inf)
        self._priced = np.zeros((len(_OPERATIONS), codes), dtype=bool)

    def lines(self, operation: str, number: np.ndarray, group: RankGroup | RankGroups) -> np.ndarray:
        """Latency and seconds a byte of each algorithm, infinite where a group has not that one. Shape (2, algorithms, rows).

        number: of the network, see `number`.
        """
        row, count = _OPERATIONS.index(operation), len(self._degrees)
        ranks, stride = (np.searchsorted(self._degrees, degree) for degree in (group.ranks, group.stride))
        code = (number * count + ranks) * count + stride
        needed = np.zeros(self._priced.shape[1], dtype=bool)
        needed[code.ravel()] = True
        for missing in np.flatnonzero(needed & ~self._priced[row]).tolist():
            network, of_ranks, of_stride = np.unravel_index(missing, (len(self._examples), count, count))
            one = RankGroup(group.axis, int(self._degrees[of_ranks]), int(self._degrees[of_stride]))
            if one.ranks > 1:
                priced = group_calls(operation, one, self._examples[network], self._parameters).lines
                self._lines[row][:, : len(priced), missing] = np.array([(x.latency_s, x.s_per_byte) for x in priced]).T
            self._priced[row, missing] = True
        used = np.isfinite(self._lines[row, 0]).any(axis=1)
        return self._lines[row][:, used][:, :, code]


class ManyCalls:
    """Calls of steps on several clusters, as ClusterCalls has those on one.

    Arguments:
        networks, copies_s: of the clusters; the latter as copy_curves has them.
        cluster: of each step. Shape (steps,).
        overlap_share: of each step.
    """

    def __init__(self, networks: Networks, copies_s: np.ndarray, cluster: np.ndarray, overlap_share: np.ndarray):
        self._networks, self._copies_s, self._cluster = networks, copies_s, cluster
        self.overlap_share: np.ndarray | float = overlap_share

    def call_s(self, operation: str, group: RankGroup | RankGroups, payload_bytes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        latency_s, s_per_byte = self._networks.lines(operation, self._networks.number[self._cluster], group)
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
    """What the prices of collectives among so many devices depend on."""
    return cluster.inside, cluster.between, cluster.devices_per_machine, cluster.between_serves, cluster.chip.kind == "cpu"


def _problem(cluster: Cluster, parameters: Parameters) -> str:
    if cluster.devices > 1:
        try:
            group_calls("all_reduce", RankGroup("dp_shard", cluster.devices, 1), cluster, parameters)
        except UnsupportedError as error:
            return error.what
    return ""
