"""The time of the strategies of a Space on many clusters, and a lower bound of it that does not depend on the layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuwise.cost.rates import family
from gpuwise.hardware.cluster import Cluster
from gpuwise.plan.compose.data_exchange import RankBytes, Sharing, data_collectives
from gpuwise.plan.compose.exchange import RankGroups, exchange_time
from gpuwise.plan.compose.job_arrays import JobArrays
from gpuwise.plan.compose.many_calls import ManyCalls, Networks, copy_curves_s
from gpuwise.plan.compose.parts import OPERATIONS
from gpuwise.plan.compose.pipeline import pipeline_s
from gpuwise.plan.compose.shallow import AFTER_BLOCKS, BEFORE_BLOCKS, FIRST_BLOCK, LAST_BLOCK
from gpuwise.plan.compose.space_rows import Space
from gpuwise.strategy.parallelism import SHARDS

_SAFE = 1 - 1e-9  # sums in another order differ by less


@dataclass(frozen=True)
class StrategyRows:
    """Strategies on clusters. All have shape (rows,).

    Attributes:
        cluster: index of the cluster.
        work, layout: of the Space.
    """

    cluster: np.ndarray
    work: np.ndarray
    layout: np.ndarray

    def __len__(self) -> int:
        return len(self.cluster)

    def chosen(self, rows: np.ndarray) -> StrategyRows:
        return StrategyRows(self.cluster[rows], self.work[rows], self.layout[rows])


class RowTime:
    """Seconds of strategies on clusters of equally many devices.

    Arguments:
        batch_s, update_s: of the clusters' chips, as JobArrays has them; shape (..., chips) behind their own axes.
        chip: of each cluster.
    """

    def __init__(self, arrays: JobArrays, space: Space, clusters: Sequence[Cluster], prices: ChipPrices):
        self._arrays, self._space, self._parameters = arrays, space, arrays.blocks.parameters
        works, self._chip = space.works, prices.chip
        self._networks = Networks(clusters, self._parameters)
        self.problems = self._networks.problems
        self._copies_s = copy_curves_s(clusters, self._parameters)
        self._overlap = np.array([0.0 if one.chip.kind == "cpu" else self._parameters.overlap_share for one in clusters])
        self._on_gpu = np.array([float(family(one.chip) == "gpu") for one in clusters])
        self._weights = space.weights[works.pipe].transpose(1, 0, 2)  # (ranks, works, sections)
        further = works.accumulation - 1
        cells = prices.batch_s[..., works.entry, works.column]  # (2, micro-steps, sections, chips, works)
        both = cells[:, 0] + further * cells[:, 1]
        self._forward_s, self._backward_s = np.einsum("rws,dscw->drcw", self._weights, both)
        launch_s = arrays.launch_s[works.entry]
        each = launch_s[..., 0] + further[:, None] * launch_s[..., 1]
        self._launch_s = (self._weights * each).sum(axis=-1)  # (ranks, works)
        self._set_holdings(prices)
        self._tensor_s = self._tensor_exchange_s()
        self._send_s = self._sends_s()

    def _set_holdings(self, prices: ChipPrices) -> None:
        arrays, weights = self._arrays, self._weights
        holding = self._holding = arrays.holding[self._space.works.entry]
        edges = weights.copy()
        edges[..., FIRST_BLOCK : LAST_BLOCK + 1] = 0.0
        self._parameter, self._gradient = arrays.held_bytes(holding, weights)
        self._rest = arrays.held_bytes(holding, edges)[0]
        self._blocks = weights[..., FIRST_BLOCK : LAST_BLOCK + 1].sum(axis=-1)
        self._elements = self._gradient / arrays.element_bytes[holding]
        costs = [update.cost((0.0, 0.0)) for update in arrays.updates]
        operation_s, kernel_s = self._parameters.host_operation_s["optimizer"], self._parameters.host_kernel_s
        self._update_launch_s = np.array(
            [[getattr(c.calls, x) * operation_s + getattr(c.kernels, x) * kernel_s for c in costs] for x in ("base", "each")]
        )
        self._update_s = prices.update_s

    def _tensor_exchange_s(self) -> np.ndarray:
        """Seconds of exchanges along tp in a step. Shape (ranks, networks, works)."""
        works, weights, blocks = self._space.works, self._weights, self._blocks
        times = np.stack([weights[..., BEFORE_BLOCKS], blocks, weights[..., AFTER_BLOCKS], blocks > 0], axis=-1)
        payload = np.einsum("rwe,weo->orw", times, self._arrays.payload_bytes[works.entry, works.column])
        calls = np.einsum("rwe,weo->orw", times, self._arrays.calls[works.entry])
        number = np.unique(self._networks.number)
        result = np.zeros((len(weights), number.max() + 1, len(works.tp)))
        rows = np.flatnonzero(works.tp > 1)
        group = RankGroups("tp", works.tp[rows], np.ones_like(rows))
        usable = [n for n in number.tolist() if not self.problems[int(np.flatnonzero(self._networks.number == n)[0])]]
        for network in usable if len(rows) else ():
            for operation, of_payload, of_calls in zip(OPERATIONS, payload[:, :, rows], calls[:, :, rows], strict=True):
                if of_payload.any():
                    each = np.maximum(1.0, of_calls)
                    seconds = self._call_s(operation, network, group, of_payload / each)
                    result[:, network, rows] += np.where(of_payload > 0, works.accumulation[rows] * each * seconds, 0.0)
        return result

    def _sends_s(self) -> np.ndarray:
        """The stride of a pipeline's ranks is the size of all the rest. Shape (networks, works)."""
        works = self._space.works
        size = self._arrays.send_bytes[works.entry, works.column]
        devices = int(works.tp[0] * works.pp[0]) * self._data_parallel(0)
        group = RankGroups("pp", works.pp, devices // works.pp)
        result = np.zeros((self._networks.number.max() + 1, len(works.tp)))
        for network in range(len(result)):
            if not self.problems[int(np.flatnonzero(self._networks.number == network)[0])]:
                result[network] = self._call_s("send", network, group, size)
        return result

    def _data_parallel(self, work: int) -> int:
        layout = self._space.works.first[work]
        return int(self._space.layouts.dp_replicate[layout] * self._space.layouts.dp_shard[layout])

    def _call_s(self, operation: str, network: int, group: RankGroups, payload_bytes: np.ndarray) -> np.ndarray:
        cluster = int(np.flatnonzero(self._networks.number == network)[0])
        calls = ManyCalls(self._networks, self._copies_s, np.array([cluster]), np.zeros(1))
        return calls.call_s(operation, group, payload_bytes)[0]

    def least_s(self) -> np.ndarray:
        """A lower bound of the time of a work in all its layouts on each cluster. Shape (clusters, works).

        Without the exchange of gradients and parameters, and with the update of the least and of the most elements, whichever
        is shorter: a host that launches longer stretches the phases and hides exchanges along tp.
        """
        works, layouts, chip = self._space.works, self._space.layouts, self._chip
        most = np.maximum.reduceat(layouts.dp_shard, np.unique(works.first))[np.unique(works.first, return_inverse=True)[1]]
        busy, tensor_s = (self._forward_s + self._backward_s)[:, chip], self._tensor_s[:, self._networks.number]
        fixed_s, each_s = (part[chip][:, self._holding] for part in self._update_s)
        fixed_launch_s, each_launch_s = self._update_launch_s[:, self._holding]
        fewest = self._elements / most
        least_update_s = fixed_s + np.minimum(each_s * fewest[:, None], each_s * self._elements[:, None])
        most_update_s = fixed_s + np.maximum(each_s * fewest[:, None], each_s * self._elements[:, None])
        launches = [
            self._launch_s + fixed_launch_s + of(each_launch_s * fewest, each_launch_s * self._elements)
            for of in (np.minimum, np.maximum)
        ]
        least_host_s, most_host_s = (self._on_gpu[:, None] * one[:, None] for one in launches)
        of_rank_s = np.maximum(busy + least_update_s + tensor_s, least_host_s)
        result = of_rank_s.max(axis=0)
        rows = np.flatnonzero(works.pp > 1)
        if len(rows):
            busy, tensor_s = busy[:, :, rows], tensor_s[:, :, rows]
            stretch = np.maximum(1.0, least_host_s[:, :, rows] / (busy + most_update_s[:, :, rows]))
            hidden_s = np.maximum(0.0, most_host_s[:, :, rows] - busy - least_update_s[:, :, rows])
            batches_s = stretch * busy + np.maximum(0.0, tensor_s - hidden_s)
            longer = batches_s / busy / (works.accumulation * works.stages)[rows]
            ends_s = pipeline_s(
                works.stages[rows],
                ranks=works.pp[rows],
                micro_batches=works.accumulation[rows],
                forward_s=longer * self._forward_s[:, chip][:, :, rows],
                backward_s=longer * self._backward_s[:, chip][:, :, rows],
                send_s=self._send_s[self._networks.number][:, rows],
            )
            result[:, rows] = np.maximum(result[:, rows], ends_s[0] + least_update_s[0][:, rows])
        return result * _SAFE

    def step_s(self, rows: StrategyRows) -> np.ndarray:
        """Seconds of each step, without input."""
        works = self._space.works
        sharded = self._space.sharded[rows.layout]
        pipelined = works.pp[rows.work] > 1
        result = np.zeros(len(rows))
        for kind, there in (
            ("replicas", ~sharded & ~pipelined),
            ("replicas", ~sharded & pipelined),
            ("shards", sharded & ~pipelined),
            ("stages", sharded & pipelined),
        ):
            chosen = np.flatnonzero(there)
            if len(chosen):
                result[chosen] = self._of_kind(kind, rows.chosen(chosen), ranks=3 if pipelined[chosen[0]] else 1)
        return result

    def _of_kind(self, kind: str, rows: StrategyRows, *, ranks: int) -> np.ndarray:
        layouts, works, work, cluster = self._space.layouts, self._space.works, rows.work, rows.cluster
        chip, holding, accumulation = self._chip[cluster], self._holding[work], works.accumulation[work]
        split = layouts.dp_shard[rows.layout]
        forward_s, backward_s = self._forward_s[:ranks, chip, work], self._backward_s[:ranks, chip, work]
        elements = self._elements[:ranks, work] / split
        update_s = self._update_s[0][chip, holding] + self._update_s[1][chip, holding] * elements
        launch_s = self._update_launch_s[0][holding] + self._update_launch_s[1][holding] * elements
        busy_s = forward_s + backward_s + update_s
        alone_s = np.maximum(busy_s, self._on_gpu[cluster] * (self._launch_s[:ranks, work] + launch_s))
        stretch = alone_s / busy_s
        forward_s, backward_s, update_s = forward_s * stretch, backward_s * stretch, update_s * stretch
        of_ranks = (self._parameter, self._gradient, self._rest, self._blocks)
        shard = layouts.shard[rows.layout]
        shard = np.where(shard == len(SHARDS), 0, shard)
        stride = works.tp[work]
        sharing = Sharing(
            kind,
            RankGroups("dp_replicate", layouts.dp_replicate[rows.layout], stride * split),
            RankGroups("dp_shard", split, stride),
            shard == SHARDS.index("parameters"),
            shard == SHARDS.index("optimizer"),
        )
        collectives = data_collectives(
            sharing,
            RankBytes(*(one[:ranks, work] for one in of_ranks)),
            gathered_bytes=self._arrays.element_bytes[holding],
            accumulation=accumulation,
            in_flight=works.in_flight[:ranks, work],
        )
        exchange = exchange_time(
            collectives,
            ManyCalls(self._networks, self._copies_s, cluster, self._overlap[cluster]),
            forward_s=forward_s,
            backward_s=backward_s,
            micro_batches=accumulation,
            parameters=self._parameters,
        )
        waited_s = self._tensor_s[:ranks, self._networks.number[cluster], work]
        waited_s = waited_s - np.minimum(np.maximum(0.0, alone_s - busy_s), waited_s)
        of_rank_s = alone_s + exchange.exposed_s + waited_s
        if ranks == 1:
            return of_rank_s[0]
        batches_s = alone_s - update_s + waited_s
        longer = batches_s / (forward_s + backward_s) / (accumulation * works.stages[work])
        ends_s = pipeline_s(
            works.stages[work],
            ranks=works.pp[work],
            micro_batches=accumulation,
            forward_s=longer * forward_s,
            backward_s=longer * backward_s,
            send_s=self._send_s[self._networks.number[cluster], work],
        )
        whole_s: np.ndarray = np.maximum(ends_s + of_rank_s - batches_s, of_rank_s).max(axis=0)
        return whole_s


@dataclass(frozen=True)
class ChipPrices:
    """The seconds of a job's blocks on several chips.

    Attributes:
        chip: of each cluster, an index.
        batch_s: as JobArrays.batch_s, with an axis of chips before that of entries.
        update_s: as JobArrays.update_s, with an axis of chips before the last.
    """

    chip: np.ndarray
    batch_s: np.ndarray
    update_s: np.ndarray

    def of(self, clusters: Sequence[int]) -> ChipPrices:
        """The same of some of the clusters."""
        chips, chip = np.unique(self.chip[list(clusters)], return_inverse=True)
        return ChipPrices(chip, self.batch_s[:, :, :, chips], self.update_s[:, chips])
