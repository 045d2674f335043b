"""GPT-3's blocks on one of several tensor-parallel ranks, as benchmarks.support.calculon_space searches over them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuwise.cost.network.collectives import group_calls
from gpuwise.hardware.cluster import Cluster
from gpuwise.plan.compose.parts import OPERATIONS
from gpuwise.plan.compose.shallow import AFTER_BLOCKS, BEFORE_BLOCKS, MIDDLE_BLOCK
from gpuwise.plan.compose.table import BlockTable
from gpuwise.plan.compose.variant import BlockVariant
from gpuwise.trace.header import RankGroup

RECOMPUTES = ("full", "selective", "none")


@dataclass(frozen=True)
class TensorRank:
    """A block on one of tp ranks. Arrays have the shape (micro-batches, recomputes, with sequence parallelism).

    Attributes:
        forward_s, backward_s, again_s: of a block and a micro-batch.
        edge_s: of what lies before and behind the blocks.
        saved_bytes: kept from a block's forward to its backward; sent_bytes: what it passes on.
        inside_bytes: most at any moment of its backward.
        exchange_s: along tp, by network, with the network as a last axis.
        block_bytes, edge_bytes: of parameters.
        update_s_per_byte: of an update, a byte of parameters.
    """

    forward_s: np.ndarray
    backward_s: np.ndarray
    again_s: np.ndarray
    edge_s: np.ndarray
    saved_bytes: np.ndarray
    sent_bytes: np.ndarray
    inside_bytes: np.ndarray
    exchange_s: np.ndarray
    block_bytes: float
    edge_bytes: float
    update_s_per_byte: float


@dataclass(frozen=True)
class Fabric:
    """The two networks: inside of a machine, and between machines. cluster: all devices. wide: those of one machine."""

    cluster: Cluster
    wide: int

    def groups(self, ranks: int) -> tuple[RankGroup, RankGroup]:
        """A group with its ranks side by side, and one with each in a machine of its own."""
        return RankGroup("inside", min(ranks, self.wide), 1), RankGroup("between", ranks, self.wide)

    def spans(self, devices: int) -> np.ndarray:
        """Which of the networks reaches so many devices."""
        return np.array([devices <= self.wide, True])


def tensor_rank(table: BlockTable, fabric: Fabric, tp: int) -> TensorRank:
    """The prices of a block on one of tp ranks."""
    entries = []
    for recompute in RECOMPUTES:
        for sequence in (False, True):
            variant = BlockVariant(recompute, sequence and tp > 1)
            entries.append(
                (table.blocks(variant, tp=tp, sharded=False), table.lives(variant, tp=tp, sharded=False, freed=False))
            )
    count = len(table.micro_batches)

    def grid(rows: list[np.ndarray]) -> np.ndarray:
        return np.stack(rows, axis=1).reshape(count, len(RECOMPUTES), 2, *rows[0].shape[1:])

    seconds = grid([blocks.parts.device_s[..., 1] for blocks, _ in entries])
    edges = seconds[..., BEFORE_BLOCKS, :].sum(axis=-1) + seconds[..., AFTER_BLOCKS, :].sum(axis=-1)
    payload = grid([blocks.payload_bytes[:, 1] for blocks, _ in entries])
    calls = grid([np.broadcast_to(blocks.calls[1], (count, len(OPERATIONS))) for blocks, _ in entries])
    holdings, update = table.holdings(tp=tp, sharded=False)
    return TensorRank(
        seconds[..., MIDDLE_BLOCK, 0],
        seconds[..., MIDDLE_BLOCK, 1],
        seconds[..., MIDDLE_BLOCK, 2],
        edges,
        grid([lives.saved[:, MIDDLE_BLOCK] for _, lives in entries]),
        grid([blocks.send_bytes for blocks, _ in entries]),
        grid([lives.peaks[:, MIDDLE_BLOCK, 1, 1, 1, 1, 0] for _, lives in entries]),
        _exchange_s(table, fabric, tp, payload=payload, calls=calls),
        float(holdings.parameter_bytes[MIDDLE_BLOCK]),
        float(holdings.parameter_bytes[BEFORE_BLOCKS]),
        update.device_s.each / 2,
    )


def _exchange_s(table: BlockTable, fabric: Fabric, tp: int, *, payload: np.ndarray, calls: np.ndarray) -> np.ndarray:
    if tp == 1:
        return np.zeros((*payload.shape[:-1], 1))
    result = []
    for group in fabric.groups(tp):
        total = np.zeros(payload.shape[:-1])
        for number, operation in enumerate(OPERATIONS):
            total += calls[..., number] * seconds_of(
                table, fabric, operation, group, payload[..., number] / np.maximum(1, calls[..., number])
            )
        result.append(total)
    return np.stack(result, axis=-1)


def seconds_of(table: BlockTable, fabric: Fabric, operation: str, group: RankGroup, payload_bytes: np.ndarray) -> np.ndarray:
    """Seconds of one call by the fastest algorithm."""
    if group.ranks == 1:
        return np.zeros(np.shape(payload_bytes))
    lines = group_calls(operation, group, fabric.cluster, table.parameters).lines
    return np.minimum.reduce([line.latency_s + line.s_per_byte * payload_bytes for line in lines])
