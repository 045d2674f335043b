"""Attention of few queries to many keys, as in generating text: the keys and values stream by, split among units."""

from __future__ import annotations

import numpy as np

from gpuwise.cost.kernels.attention import MICROSECOND, kv_heads
from gpuwise.cost.kernels.shapes import USUAL_CLOCK_HZ, Hardware, KernelTerms, Shapes

FEW_QUERIES, KEYS_A_QUERY = 8, 16
# Query heads that share a key head are rows of one tile, so keys and values are read once a key head: PyTorch's FlashAttention
# exchanges heads for queries (`seqlenq_ngroups_swapped` in flash_attn/flash_api.cpp), TensorRT-LLM's XQA packs them likewise.
# A tile of tensor cores has 16 rows.
HEADS_A_TILE = 16.0
# With more than 32 heads a key head TensorRT-LLM falls back to a kernel that reads keys once a query head, 30 times slower
# (tables of ai-dynamo/aiconfigurator). PyTorch does not: such rows are another kernel's and set no figure.
MOST_HEADS_OF_ENGINES = 32
NOTHING_S = 1e-15


def is_decode(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Which forward attentions run as decoding."""
    few: np.ndarray = (queries <= FEW_QUERIES) & (keys >= KEYS_A_QUERY * queries)
    return few


def terms(shapes: Shapes, hardware: Hardware) -> KernelTerms:
    """memory: all operands once at full bandwidth. compute_tasks: 1 µs at 1.8 GHz for each head of a unit, where every query
    head has keys of its own; compute_grouped_tasks: the same for each tile of heads that share keys. compute_latency: 1 µs at
    1.8 GHz, for a curve over keys: how long one unit takes until the keys are split finer.

    Features: keys; head size; bulk, microseconds of all bytes at full bandwidth: it takes a latency's worth of bytes in flight
    to fill a chip's bandwidth (Little's law), so the more bandwidth the more bytes; cached, bytes over the cache.
    """
    batch, moved = np.maximum(shapes.batch, 1.0), shapes.moved_bytes
    slower = USUAL_CLOCK_HZ / hardware.clock_hz
    kv, queries = kv_heads(shapes), np.maximum(shapes.m, 1.0)
    grouped = batch / kv > 1.5
    tasks = np.where(grouped, kv * np.ceil(batch / kv * queries / HEADS_A_TILE), batch * queries)
    tasks_s = tasks / hardware.units * slower * MICROSECOND
    memory_s = moved / hardware.bandwidth_bytes_per_s
    return KernelTerms(
        {
            "memory": memory_s,
            "compute_tasks": np.where(grouped, NOTHING_S, tasks_s),
            "compute_grouped_tasks": np.where(grouped, tasks_s, NOTHING_S),
            "compute_latency": np.ones(len(batch)) * slower * MICROSECOND,
        },
        {
            "keys": np.maximum(shapes.n, 1.0),
            "head": np.maximum(shapes.k, 1.0),
            "bulk": np.maximum(memory_s / MICROSECOND, 1e-6),
            "cached": np.maximum(moved / np.maximum(hardware.cache_bytes, 1.0), 1e-9),
        },
        floor=slower,
    )
