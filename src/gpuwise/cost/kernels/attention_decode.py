"""Attention of few queries to many keys, as in generating text: the keys and values stream by, split among units."""

from __future__ import annotations

import numpy as np

from gpuwise.cost.kernels.attention import MICROSECOND, kv_heads
from gpuwise.cost.kernels.shapes import Hardware, KernelTerms, Shapes

FEW_QUERIES, KEYS_A_QUERY = 8, 16
# Query heads that share keys run together, in tiles of 16 rows of tensor cores; with more than 32 of them (or one) each reads
# its keys by itself. So do the kernels of TensorRT-LLM that ai-dynamo/aiconfigurator measured: 30 times slower from 32 to 48.
HEADS_A_TILE, MOST_HEADS = 16.0, 32.0
NOTHING_S = 1e-15
UNIT_BYTES_PER_S = 64e9  # what a unit takes in at 64 bytes a cycle of 1 GHz


def is_decode(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Which forward attentions run as decoding."""
    few: np.ndarray = (queries <= FEW_QUERIES) & (keys >= KEYS_A_QUERY * queries)
    return few


def terms(shapes: Shapes, hardware: Hardware) -> KernelTerms:
    """memory: all operands once at full bandwidth. memory_stream: all into the units, from cache or memory. memory_reread: keys
    and values once for each query head, where heads do not run together. compute_tasks, compute_grouped_tasks: 1 µs for each
    head, or tile of heads, of a unit. compute_latency: 1 µs, for a curve over keys: how long one unit takes until the keys are
    split finer.

    Features: keys; head size; share, bytes a unit; cached, bytes over the cache.
    """
    batch, moved = np.maximum(shapes.batch, 1.0), shapes.moved_bytes
    kv = kv_heads(shapes)
    together = batch / kv
    grouped = (together > 1.5) & (together < MOST_HEADS + 0.5)
    tasks = np.where(grouped, kv * np.ceil(together / HEADS_A_TILE), batch) * np.maximum(shapes.m, 1.0)
    tasks_s = tasks / hardware.units * MICROSECOND
    reread = batch * shapes.n * shapes.k * 2 * shapes.element_bytes / hardware.bandwidth_bytes_per_s
    return KernelTerms(
        {
            "memory": moved / hardware.bandwidth_bytes_per_s,
            "memory_stream": moved / hardware.units / UNIT_BYTES_PER_S,
            "memory_reread": np.where(grouped, NOTHING_S, reread),
            "compute_tasks": np.where(grouped, NOTHING_S, tasks_s),
            "compute_grouped_tasks": np.where(grouped, tasks_s, NOTHING_S),
            "compute_latency": np.full(len(batch), MICROSECOND),
        },
        {
            "keys": np.maximum(shapes.n, 1.0),
            "head": np.maximum(shapes.k, 1.0),
            "share": np.maximum(moved / hardware.units, 1e-3),
            "cached": np.maximum(moved / np.maximum(hardware.cache_bytes, 1.0), 1e-9),
        },
    )
