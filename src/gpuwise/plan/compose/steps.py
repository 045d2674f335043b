"""The time of the steps of a mesh at all variants and micro-batches, composed from a BlockTable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuwise.cost.host import collective_s, host_factor, launches_s, micro_batch_s
from gpuwise.hardware.cluster import Cluster
from gpuwise.plan.compose.data_exchange import RankBytes, calls_of, data_collectives, data_launches, sharing_of
from gpuwise.plan.compose.exchange import ClusterCalls, Collectives, ExchangeTime, exchange_time
from gpuwise.plan.compose.parts import BLOCK_OPERATIONS, OPERATIONS
from gpuwise.plan.compose.pipeline import pipeline_s
from gpuwise.plan.compose.ranks import PipelineRanks
from gpuwise.plan.compose.shallow import AFTER_BLOCKS, BEFORE_BLOCKS
from gpuwise.plan.compose.table import BlockTable
from gpuwise.plan.compose.variant import BlockVariant
from gpuwise.strategy import Strategy
from gpuwise.trace.parallel.communication import group_along
from gpuwise.trace.parallel.variant import is_sharded, shard_ranks
from gpuwise.trace.tables import PHASES

_FORWARD, _BACKWARD, _RECOMPUTE = (PHASES.index(name) for name in ("forward", "backward", "recompute"))


@dataclass(frozen=True)
class MeshSteps:
    """Steps on one mesh, of all variants and micro-batches.

    Arguments:
        table: its blocks.
        cluster: the devices of the mesh.
        strategy: mesh, schedule and shards; its batch and the settings of variants do not count.
        variants: of the blocks.
        ranks: of the pipeline.
        accumulation: micro-batches of a step, for each micro-batch of the table. Shape (micro-batches,).
    """

    table: BlockTable
    cluster: Cluster
    strategy: Strategy
    variants: Sequence[BlockVariant]
    ranks: PipelineRanks
    accumulation: np.ndarray

    @property
    def sharded(self) -> bool:
        return is_sharded(self.strategy)

    def step_s(self) -> np.ndarray:
        """Seconds of each step, without input. Shape (variants, micro-batches)."""
        phase_s, alone_s, busy_s, update_s = self._alone()
        exchange = self._exchange(phase_s).beside_launches(np.maximum(0.0, alone_s - busy_s))
        of_rank_s = alone_s + exchange.exposed_s
        if self.strategy.mesh.pp == 1:
            return of_rank_s[0]
        batches_s = alone_s - update_s + exchange.each_micro_batch_s
        longer = batches_s / phase_s.sum(axis=-1) / (self.accumulation * self.strategy.parallelism.stages_per_rank)
        kinds = [0, 1, 2] if len(phase_s) == 3 else [0, 1, 1]  # first, middle, last
        ends_s = pipeline_s(
            self.strategy.parallelism.stages_per_rank,
            ranks=self.strategy.mesh.pp,
            micro_batches=self.accumulation,
            forward_s=(longer * phase_s[..., _FORWARD])[kinds],
            backward_s=(longer * (phase_s[..., _BACKWARD] + phase_s[..., _RECOMPUTE]))[kinds],
            send_s=self._send_s(),
        )[[0, 1, 2] if len(phase_s) == 3 else [0, 2]]
        whole_s = np.maximum(ends_s + of_rank_s - batches_s, of_rank_s).max(axis=0)
        return whole_s

    def _blocks(self, name: str) -> np.ndarray:
        """A field of the variants' parts. Shape (variants, ...)."""
        tp = self.strategy.mesh.tp
        return np.stack(
            [getattr(self.table.blocks(variant, tp=tp, sharded=self.sharded).parts, name) for variant in self.variants]
        )

    def _alone(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Seconds of micro-batches by phase, of the rank without communication, of its kernels, and of its update.

        The first has the shape (ranks, variants, micro-batches, phases), the others that without phases.
        """
        weights, further = self.ranks.weights, (self.accumulation - 1)[:, None]
        device_s = np.einsum("rc,vmcpu->rvmpu", weights, self._blocks("device_s"))
        phase_s = device_s[..., 0] + further * device_s[..., 1]
        of_update = self.table.holdings(tp=self.strategy.mesh.tp, sharded=self.sharded)[1]
        elements = self._updated_elements()
        update_s = of_update.device_s.at(elements)[:, None, None]
        busy_s = phase_s.sum(axis=-1) + update_s
        alone_s = np.maximum(busy_s, self._host_s(elements))
        stretch = alone_s / busy_s
        return phase_s * stretch[..., None], alone_s, busy_s, update_s * stretch

    def _host_s(self, elements: np.ndarray) -> np.ndarray:
        """Seconds in which the host launches the step, as gpuwise.cost.host has them."""
        factor = host_factor(self.table.chip, self.table.parameters)
        if not factor:
            return np.zeros(1)
        figures, further = self.table.parameters, (self.accumulation - 1)[:, None]
        calls, kernels = (
            np.einsum("rc,vcpu->rvpu", self.ranks.weights, self._blocks(name))[:, :, None] for name in ("calls", "kernels")
        )
        each_s = np.array([figures.host_operation_s[phase] for phase in PHASES])
        each_launch_s = calls * each_s[: calls.shape[-2], None] + kernels * figures.host_kernel_s
        of_batches: np.ndarray = (each_launch_s[..., 0] + further * each_launch_s[..., 1]).sum(axis=-1)
        of_batches = of_batches + self.accumulation * micro_batch_s(figures)
        of_batches = of_batches + collective_s(figures) * calls_of(self._launched())
        if self._exchanges_data:
            beside = data_launches(
                sharing_of(self.strategy),
                self._rank_bytes(),
                precision=self.strategy.precision,
                accumulation=self.accumulation,
            )
            of_batches = of_batches + launches_s(beside, figures)
        of_update = self.table.holdings(tp=self.strategy.mesh.tp, sharded=self.sharded)[1]
        update_s = of_update.calls.at(elements) * each_s[-1] + of_update.kernels.at(elements) * figures.host_kernel_s
        return factor * (of_batches + update_s[:, None, None])

    def _updated_elements(self) -> np.ndarray:
        """Elements that each rank updates."""
        of_rank = self.table.holdings(tp=self.strategy.mesh.tp, sharded=self.sharded)[0]
        gradient_bytes = of_rank.of_ranks(self.ranks.weights)[1]
        size_bytes, _ = self.table.element_bytes(sharded=self.sharded)
        return gradient_bytes / size_bytes / shard_ranks(self.strategy)

    def _exchange(self, phase_s: np.ndarray) -> ExchangeTime:
        return exchange_time(
            self._collectives(),
            ClusterCalls(self.cluster, self.table.parameters),
            forward_s=phase_s[..., _FORWARD],
            backward_s=phase_s[..., _BACKWARD] + phase_s[..., _RECOMPUTE],
            micro_batches=self.accumulation,
            parameters=self.table.parameters,
        )

    def _collectives(self) -> list[Collectives]:
        mesh = self.strategy.mesh
        return [
            *(self._tensor_collectives() if mesh.tp > 1 else []),
            *(self._collectives_in_blocks() if mesh.cp > 1 else []),
            *(self._data_collectives() if self._exchanges_data else []),
        ]

    def _launched(self) -> list[Collectives]:
        """Those that the host's time counts, see gpuwise.cost.host."""
        of_data = () if self.strategy.mesh.pp == 1 else ("dp", "data")
        return [one for one in self._collectives() if not (of_data and one.group.axis.startswith(of_data))]

    def _tensor_collectives(self) -> list[Collectives]:
        weights, tp = self.ranks.weights, self.strategy.mesh.tp
        blocks = [self.table.blocks(variant, tp=tp, sharded=self.sharded) for variant in self.variants]
        times = np.column_stack([weights[:, BEFORE_BLOCKS], self.ranks.blocks, weights[:, AFTER_BLOCKS], self.ranks.blocks > 0])
        payload = np.einsum("re,vmeo->rvmo", times, np.stack([one.payload_bytes for one in blocks]))
        calls = np.einsum("re,veo->rvo", times, np.stack([one.calls for one in blocks]))[:, :, None]
        group, count = group_along(self.strategy.mesh, "tp"), self.accumulation
        return [
            Collectives(operation, group, payload[..., number] * count, calls[..., number] * count)
            for number, operation in enumerate(OPERATIONS)
            if payload[..., number].any()
        ]

    def _collectives_in_blocks(self) -> list[Collectives]:
        tp, times = self.strategy.mesh.tp, self.ranks.blocks[:, None, None] * self.accumulation
        blocks = [self.table.blocks(variant, tp=tp, sharded=self.sharded).rows for variant in self.variants]
        payload, calls = (np.stack([getattr(one, name) for one in blocks]) for name in ("block_bytes", "block_calls"))
        group = group_along(self.strategy.mesh, "cp")
        return [
            Collectives(operation, group, payload[..., number] * times, calls[:, None, number] * times)
            for number, operation in enumerate(BLOCK_OPERATIONS)
        ]

    @property
    def _exchanges_data(self) -> bool:
        return self.sharded or self.strategy.mesh.dp_replicate > 1

    def _data_collectives(self) -> list[Collectives]:
        gathered_bytes, _ = self.table.element_bytes(sharded=self.sharded)
        return data_collectives(
            sharing_of(self.strategy),
            self._rank_bytes(),
            gathered_bytes=gathered_bytes,
            accumulation=self.accumulation,
            in_flight=self._in_flight(),
        )

    def _rank_bytes(self) -> RankBytes:
        of_rank, weights = self.table.holdings(tp=self.strategy.mesh.tp, sharded=self.sharded)[0], self.ranks.weights
        parameter, gradient = of_rank.of_ranks(weights)
        edges = weights.copy()
        edges[:, BEFORE_BLOCKS + 1 : AFTER_BLOCKS] = 0.0
        rest, buckets = of_rank.of_ranks(edges)[0], np.full(len(weights), self.table.job.buckets)
        columns = (parameter, gradient, rest, self.ranks.blocks, of_rank.tensors_of_ranks(weights), buckets)
        return RankBytes(*(one.reshape(-1, 1, 1) for one in columns))

    def _in_flight(self) -> np.ndarray:
        return self.ranks.in_flight(self.accumulation)[:, None] if self.strategy.mesh.pp > 1 else np.ones((1, 1, 1))

    def _send_s(self) -> np.ndarray:
        """Seconds of one send between stages. Shape (variants, micro-batches)."""
        tp = self.strategy.mesh.tp
        size_bytes = np.stack([self.table.blocks(one, tp=tp, sharded=self.sharded).send_bytes for one in self.variants])
        group = group_along(self.strategy.mesh, "pp")
        return ClusterCalls(self.cluster, self.table.parameters).call_s("send", group, size_bytes)[0]
