"""One point of benchmarks.support.calculon_space in plain Python."""

from __future__ import annotations

from functools import lru_cache

from benchmarks.support.calculon_blocks import Fabric, TensorRank, tensor_rank
from benchmarks.support.calculon_space import (
    BATCH,
    DP_OVERLAP,
    GRADIENT_BYTES,
    HOST_BYTES_PER_S,
    LAYERS,
    STATE_BYTES,
    TP_OVERLAPS,
)
from gpuwise.cost.network.collectives import group_calls
from gpuwise.plan.compose.table import BlockTable
from gpuwise.trace.header import RankGroup


@lru_cache(maxsize=16)
def _rank(table: BlockTable, fabric: Fabric, tp: int) -> TensorRank:
    return tensor_rank(table, fabric, tp)


def _call_s(table: BlockTable, fabric: Fabric, operation: str, group: RankGroup, payload_bytes: float) -> float:
    if group.ranks == 1:
        return 0.0
    lines = group_calls(operation, group, fabric.cluster, table.parameters).lines
    return min(line.latency_s + line.s_per_byte * payload_bytes for line in lines)


def point_s(table: BlockTable, fabric: Fabric, point: tuple[int, ...]) -> float:
    """Seconds of a step at a point, by calculon_space.NAMES."""
    tp, pp, dp, stages, micro_batch, recompute, communication, again, shard, weights_off, activations_off, state_off = point[
        :12
    ]
    overlap, tp_network, pp_network, dp_overlap, dp_network = point[12:]
    rank, layers = _rank(table, fabric, tp), LAYERS // pp
    row = table.micro_batches.tolist().index(micro_batch)
    at = row, recompute, int(communication == 2)
    backward_s = float(rank.backward_s[at] + rank.again_s[at])
    compute = layers * (float(rank.forward_s[at]) + backward_s) + float(rank.edge_s[at]) / pp
    exchange = layers * float(rank.exchange_s[at][tp_network]) * (1 + again / 6)
    to_host = 2 * layers * rank.block_bytes if weights_off else 0.0
    if activations_off:
        variant = row, recompute, int(communication == 2)
        to_host += 2 * layers * float(rank.saved_bytes[variant])
    micro_s = max(compute + exchange * (1 - float(TP_OVERLAPS[overlap])), to_host / HOST_BYTES_PER_S)
    hop = 0.0
    if pp > 1:
        group = RankGroup("pp", pp, fabric.wide if pp_network else 1)
        hop = 2 * stages * _call_s(table, fabric, "send", group, float(rank.sent_bytes[at]) / (tp if communication else 1))
    parameter_bytes = layers * rank.block_bytes + rank.edge_bytes
    late = 0.0
    if dp > 1:
        group = fabric.groups(dp)[dp_network]
        late = _call_s(table, fabric, "all_reduce", group, GRADIENT_BYTES / 2 * parameter_bytes)
        if dp_overlap:
            late = max(late - DP_OVERLAP * layers * backward_s, late / layers)
    split = dp if shard else 1
    update = rank.update_s_per_byte * parameter_bytes / split
    if state_off:
        update += 2 * STATE_BYTES / 2 * parameter_bytes / split / HOST_BYTES_PER_S
    return (BATCH // dp // micro_batch + (pp - 1) / stages) * (micro_s + hop) + late + update
