"""The time of the strategies of a Space on many clusters, and a lower bound of it that does not depend on the layout."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuwise.cost.host import collective_s, host_factor, launches_s, micro_batch_s
from gpuwise.hardware.cluster import Cluster
from gpuwise.plan.compose.chip_prices import ChipPrices
from gpuwise.plan.compose.data_exchange import RankBytes, Sharing, calls_of, data_collectives, data_launches
from gpuwise.plan.compose.exchange import RankGroups, exchange_time, fastest
from gpuwise.plan.compose.job_arrays import JobArrays
from gpuwise.plan.compose.many_calls import ManyCalls, Networks, copy_curves_s
from gpuwise.plan.compose.parts import BLOCK_OPERATIONS, OPERATIONS
from gpuwise.plan.compose.pipeline import pipeline_s
from gpuwise.plan.compose.shallow import AFTER_BLOCKS, BEFORE_BLOCKS, FIRST_BLOCK, LAST_BLOCK
from gpuwise.plan.compose.space_rows import Space, StrategyRows
from gpuwise.strategy.parallelism import SHARDS

_SAFE = 1 - 1e-9  # sums in another order differ by less


class RowTime:
    """Seconds of strategies on clusters of equally many devices.

    Arguments:
        prices: of the clusters' chips.
        networks, number: the networks, and which of them each cluster has. They can be priced.
    """

    def __init__(
        self,
        arrays: JobArrays,
        space: Space,
        clusters: Sequence[Cluster],
        prices: ChipPrices,
        networks: Networks,
        number: np.ndarray,
    ):
        self._arrays, self._space, self._parameters = arrays, space, arrays.blocks.parameters
        works, self._chip = space.works, prices.chip
        self._networks, self._number = networks, number
        self._distinct, self._network = np.unique(number, return_inverse=True)
        self._copies_s = copy_curves_s(clusters, self._parameters)
        self._overlap = np.array([0.0 if one.chip.kind == "cpu" else self._parameters.overlap_share for one in clusters])
        self._host = np.array([host_factor(one.chip, self._parameters) for one in clusters])
        self._weights = space.weights[works.pipe].transpose(1, 0, 2)  # (ranks, works, sections)
        further = works.accumulation - 1
        cells = prices.batch_s[..., works.entry, works.column]  # (2, micro-steps, sections, chips, works)
        both = cells[:, 0] + further * cells[:, 1]
        self._forward_s, self._backward_s = np.einsum("rws,dscw->drcw", self._weights, both)
        launch_s = arrays.launch_s[works.entry]
        each = launch_s[..., 0] + further[:, None] * launch_s[..., 1]
        self._launch_s = (self._weights * each).sum(axis=-1)  # (ranks, works)
        self._launch_s += works.accumulation * micro_batch_s(self._parameters)
        self._set_holdings(prices)
        frames, frame = np.unique(works.first, return_inverse=True)
        self._most_shards = np.maximum.reduceat(space.layouts.shards, frames)[frame]
        self._set_exchanged()

    def _set_holdings(self, prices: ChipPrices) -> None:
        arrays, weights = self._arrays, self._weights
        holding = self._holding = arrays.holding[self._space.works.entry]
        edges = weights.copy()
        edges[..., FIRST_BLOCK : LAST_BLOCK + 1] = 0.0
        self._parameter, self._gradient = arrays.held_bytes(holding, weights)
        self._rest = arrays.held_bytes(holding, edges)[0]
        self._tensors = arrays.held_tensors(holding, weights)
        self._buckets = np.full(self._tensors.shape, arrays.blocks.buckets)
        self._blocks = weights[..., FIRST_BLOCK : LAST_BLOCK + 1].sum(axis=-1)
        everywhere = arrays.held_bytes(arrays.whole_holding[self._space.works.entry], weights)
        self._elements = everywhere[1] / arrays.element_bytes[holding]
        # Ranks of ep differ by their experts alone: of the other ranks a rank lacks as many bytes as it has, for each of them.
        others = np.maximum(1, self._space.layouts.ep[self._space.works.first] - 1)
        self._experts = [
            (whole - own) / others for whole, own in zip(everywhere, (self._parameter, self._gradient), strict=True)
        ]
        costs = [update.cost((0.0, 0.0)) for update in arrays.updates]
        operation_s, kernel_s = self._parameters.host_operation_s["optimizer"], self._parameters.host_kernel_s
        self._update_launch_s = np.array(
            [[getattr(c.calls, x) * operation_s + getattr(c.kernels, x) * kernel_s for c in costs] for x in ("base", "each")]
        )
        self._update_s = prices.update_s

    def _set_exchanged(self) -> None:
        """What works exchange along tp, cp, ep and pp; its seconds on networks are added where they are asked for."""
        works, layouts, weights, blocks = self._space.works, self._space.layouts, self._weights, self._blocks
        times = np.stack([weights[..., BEFORE_BLOCKS], blocks, weights[..., AFTER_BLOCKS], blocks > 0], axis=-1)
        self._payload = np.einsum("rwe,weo->orw", times, self._arrays.payload_bytes[works.entry, works.column])
        self._calls = np.einsum("rwe,weo->orw", times, self._arrays.calls[works.entry])
        calls = self._arrays.block_calls[works.entry] * (self._arrays.block_bytes[works.entry, works.column] > 0)
        in_blocks = blocks * calls.sum(axis=1)
        self._launch_s += collective_s(self._parameters) * works.accumulation * (self._calls.sum(axis=0) + in_blocks)
        self._send_bytes = self._arrays.send_bytes[works.entry, works.column]
        self._of_stage = works.tp * layouts.dp_replicate[works.first] * layouts.shards[works.first]
        self._tensor_s = np.full((len(weights), len(self._distinct), len(works)), np.nan)
        self._send_s = np.full(self._tensor_s.shape[1:], np.nan)
        self._in_blocks = (layouts.cp * layouts.ep)[works.first]  # one of both is 1
        self._tensor_s[..., (works.tp == 1) & (self._in_blocks == 1)] = 0.0
        self._send_s[:, works.pp == 1] = 0.0

    def _tensor_exchange_s(self, cluster: np.ndarray, work: np.ndarray, *, ranks: int) -> np.ndarray:
        """Seconds of exchanges along tp, cp and ep in a step. Shape (ranks, rows)."""
        network = self._network[cluster]
        missing = np.flatnonzero(np.isnan(self._tensor_s[0, network, work]))
        if len(missing):
            there, of = network[missing], work[missing]
            self._tensor_s[:, there, of] = self._along_tensor_s(there, of)
            parts = np.flatnonzero(self._in_blocks[of] > 1)
            if len(parts):
                self._tensor_s[:, there[parts], of[parts]] += self._in_blocks_s(there[parts], of[parts])
        return self._tensor_s[:ranks, network, work]

    def _along_tensor_s(self, network: np.ndarray, work: np.ndarray) -> np.ndarray:
        tp, accumulation = self._space.works.tp[work], self._space.works.accumulation[work]
        group = RankGroups("tp", tp, np.ones_like(tp))
        result = np.zeros((len(self._weights), len(work)))
        for operation, payload, calls in zip(OPERATIONS, self._payload[:, :, work], self._calls[:, :, work], strict=True):
            if payload.any():
                each = np.maximum(1.0, calls)
                result += np.where(
                    payload > 0, accumulation * each * self._call_s(operation, network, group, payload / each), 0.0
                )
        return result

    def _in_blocks_s(self, network: np.ndarray, work: np.ndarray) -> np.ndarray:
        """Seconds of exchanges along cp or ep in a step. Shape (ranks, rows)."""
        works, entry = self._space.works, self._space.works.entry[work]
        group = RankGroups("cp", self._in_blocks[work], works.tp[work])
        payload, calls = self._arrays.block_bytes[entry, works.column[work]], self._arrays.block_calls[entry]
        result = np.zeros(len(work))
        for number, operation in enumerate(BLOCK_OPERATIONS):
            each = payload[:, number] / np.maximum(1.0, calls[:, number])
            if each.any():
                result += np.where(each > 0, calls[:, number] * self._call_s(operation, network, group, each), 0.0)
        whole: np.ndarray = self._blocks[:, work] * works.accumulation[work] * result
        return whole

    def _one_send_s(self, cluster: np.ndarray, work: np.ndarray) -> np.ndarray:
        """Seconds of a send to the next stage, whose ranks are as far away as there are ranks of a stage. Shape (rows,)."""
        network = self._network[cluster]
        missing = np.flatnonzero(np.isnan(self._send_s[network, work]))
        if len(missing):
            there, of = network[missing], work[missing]
            group = RankGroups("pp", self._space.works.pp[of], self._of_stage[of])
            self._send_s[there, of] = self._call_s("send", there, group, self._send_bytes[of])
        result: np.ndarray = self._send_s[network, work]
        return result

    def _call_s(self, operation: str, network: np.ndarray, group: RankGroups, payload_bytes: np.ndarray) -> np.ndarray:
        """Seconds of one call. network: of each row, among those of these clusters."""
        latency_s, s_per_byte = self._networks.lines(operation, self._distinct[network], group)
        return fastest(zip(latency_s, s_per_byte, strict=True), payload_bytes)[0]

    def least_s(self, cluster: np.ndarray, work: np.ndarray) -> np.ndarray:
        """A lower bound of the time of works on clusters, in all their layouts. Shape (rows,), as both arguments.

        Without the exchange of gradients and parameters, and with the update of the least and of the most elements, whichever
        is shorter: a host that launches longer stretches the phases and hides exchanges along tp.
        """
        result, pipelined = np.zeros(len(work)), self._space.works.pp[work] > 1
        for rows, ranks in ((np.flatnonzero(~pipelined), 1), (np.flatnonzero(pipelined), 3)):
            if len(rows):
                result[rows] = self._least_s(cluster[rows], work[rows], ranks=ranks)
        return result * _SAFE

    def _least_s(self, cluster: np.ndarray, work: np.ndarray, *, ranks: int) -> np.ndarray:
        works, chip, holding = self._space.works, self._chip[cluster], self._holding[work]
        forward_s, backward_s = self._forward_s[:ranks, chip, work], self._backward_s[:ranks, chip, work]
        busy_s, tensor_s = forward_s + backward_s, self._tensor_exchange_s(cluster, work, ranks=ranks)
        ends = self._elements[:ranks, work] / self._most_shards[work], self._elements[:ranks, work]
        update_s, launch_s = (
            [fixed + each * elements for elements in ends]
            for fixed, each in (
                (self._update_s[0][chip, holding], self._update_s[1][chip, holding]),
                (self._update_launch_s[0][holding], self._update_launch_s[1][holding]),
            )
        )
        least_update_s = np.minimum(*update_s)
        least_host_s = self._host[cluster] * (self._launch_s[:ranks, work] + np.minimum(*launch_s))
        whole_s = np.maximum(busy_s + least_update_s + tensor_s, least_host_s)
        if ranks == 1:
            return whole_s[0]
        # A host that takes longer stretches all phases by the same factor, and hides at most what it adds.
        most_s = busy_s + np.maximum(*update_s)
        stretch = np.maximum(least_host_s, most_s + tensor_s) / most_s
        longer = stretch / (works.accumulation * works.stages)[work]
        ends_s = pipeline_s(
            works.stages[work],
            ranks=works.pp[work],
            micro_batches=works.accumulation[work],
            forward_s=longer * forward_s,
            backward_s=longer * backward_s,
            send_s=self._one_send_s(cluster, work),
        )
        result: np.ndarray = np.maximum(whole_s.max(axis=0), ends_s[0] + least_update_s[0])
        return result

    def step_s(self, rows: StrategyRows) -> np.ndarray:
        """Seconds of each step, without input."""
        works = self._space.works
        sharded = self._space.sharded[rows.layout]
        pipelined = works.pp[rows.work] > 1
        result = np.zeros(len(rows))
        for kind, there in (
            ("replicas", ~sharded & ~pipelined),
            ("replicated stages", ~sharded & pipelined),
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
        split = layouts.shards[rows.layout]
        forward_s, backward_s = self._forward_s[:ranks, chip, work], self._backward_s[:ranks, chip, work]
        elements = self._elements[:ranks, work] / split
        update_s = self._update_s[0][chip, holding] + self._update_s[1][chip, holding] * elements
        launch_s = self._update_launch_s[0][holding] + self._update_launch_s[1][holding] * elements
        busy_s = forward_s + backward_s + update_s
        shard = layouts.shard[rows.layout]
        shard = np.where(shard == len(SHARDS), 0, shard)
        stride, ep = works.tp[work], layouts.ep[rows.layout]
        sharing = Sharing(
            kind,
            RankGroups("dp_replicate", layouts.dp_replicate[rows.layout], stride * split),
            RankGroups("dp_shard", split, stride),
            RankGroups("dp_shard/ep", split // ep, stride * ep),
            shard == SHARDS.index("parameters"),
            shard == SHARDS.index("optimizer"),
        )
        columns = (self._parameter, self._gradient, self._rest, self._blocks, self._tensors, self._buckets, *self._experts)
        of_ranks = RankBytes(*(one[:ranks, work] for one in columns))
        collectives = data_collectives(
            sharing,
            of_ranks,
            gathered_bytes=self._arrays.element_bytes[holding],
            accumulation=accumulation,
            in_flight=works.in_flight[:ranks, work],
        )
        beside = data_launches(
            sharing,
            of_ranks,
            precision=self._arrays.blocks.techniques.precision,
            accumulation=accumulation,
        )
        calls = calls_of(collectives) if ranks == 1 else 0.0  # see gpuwise.cost.host
        launch_s = launch_s + collective_s(self._parameters) * calls + launches_s(beside, self._parameters)
        alone_s = np.maximum(busy_s, self._host[cluster] * (self._launch_s[:ranks, work] + launch_s))
        stretch = alone_s / busy_s
        waiting_s = alone_s - busy_s
        forward_s, backward_s, update_s = forward_s * stretch, backward_s * stretch, update_s * stretch
        exchange = exchange_time(
            collectives,
            ManyCalls(self._networks, self._number[cluster], self._copies_s, cluster, self._overlap[cluster]),
            forward_s=forward_s,
            backward_s=backward_s,
            micro_batches=accumulation,
            parameters=self._parameters,
        )
        copied_s = np.minimum(waiting_s, exchange.copies_s)
        waited_s = self._tensor_exchange_s(cluster, work, ranks=ranks)
        waited_s = waited_s - np.minimum(waiting_s - copied_s, waited_s)
        of_rank_s = alone_s + exchange.exposed_s - copied_s + waited_s
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
            send_s=self._one_send_s(cluster, work),
        )
        whole_s: np.ndarray = np.maximum(ends_s + of_rank_s - batches_s, of_rank_s).max(axis=0)
        return whole_s
