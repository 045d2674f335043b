"""Collectives of engines: small sums over NVLink in one kernel, where each device reads the parts of all others.

NCCL's sums of a few kilobytes take several times as long. vLLM, SGLang and TensorRT-LLM have such kernels between devices of
one machine that read each other's memory over NVLink (vllm-project/vllm#2192). The figures are a line through the measurements
of sgl-project/sglang#2904 (2, 4 and 8 H100, 512 bytes to 1 MiB, without launch).
"""

from __future__ import annotations

from gpuwise.hardware.cluster import Cluster
from gpuwise.trace.header import RankGroup

CALL_S, RANK_S = 3.1e-6, 0.4e-6  # of a call, and of each device
SHARE = 1 / 7  # of the link's bandwidth, for 2 (n - 1) / n of the payload
MOST_RANKS = 8


def low_latency_s(operation: str, payload_bytes: float, group: RankGroup, cluster: Cluster) -> float | None:
    """Seconds of a call; None where engines have no such kernel."""
    link = cluster.inside
    inside = group.ranks <= min(cluster.devices_per_machine, MOST_RANKS)
    if link is None or not link.technology.startswith("nvlink") or not link.per_direction_bytes_per_s or not inside:
        return None
    passes = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}.get(operation)
    if passes is None:
        return None
    moved = passes * (group.ranks - 1) / group.ranks * payload_bytes
    return CALL_S + RANK_S * group.ranks + moved / (SHARE * link.per_direction_bytes_per_s)
