"""Attention in one kernel (flash, memory-efficient, cuDNN): queries in tiles, blocks of keys streamed past each.

A causal mask leaves half of the work out except in the blocks on the diagonal, which run in full; a window leaves out more.
Either shows in the operations (flops), from which the keys that a query meets follow.
"""

from __future__ import annotations

import numpy as np

from gpuwise.cost.kernels.shapes import USUAL_CLOCK_HZ, Hardware, KernelTerms, Shapes

# Rows of a tile and keys of a block, as FlashAttention-2 and -3 have them on most head sizes (arXiv:2307.08691, 2407.08608).
TILE, BLOCK = 128.0, 64.0
MICROSECOND = 1e-6


def kv_heads(shapes: Shapes) -> np.ndarray:
    """Key and value heads of all samples, from the bytes read: batch has all query heads. Between 1 and batch."""
    keys = np.maximum(shapes.n * shapes.k * shapes.element_bytes, 1.0)
    return np.clip(key_bytes(shapes) / (2 * keys), 1.0, np.maximum(shapes.batch, 1.0))


def key_bytes(shapes: Shapes) -> np.ndarray:
    """Keys and values: what a forward kernel reads beside the queries."""
    return np.maximum(shapes.bytes_read - shapes.batch * shapes.m * shapes.k * shapes.element_bytes, 1.0)


def terms(shapes: Shapes, hardware: Hardware) -> KernelTerms:
    """Forward. compute: whole tiles of queries by whole blocks of keys at the peak. compute_last: the tile with most keys, on
    one unit. compute_tiles: 1 µs for each wave of tiles, where the query heads that share keys fill tiles together;
    compute_heads: where each head has its own. memory_queries: queries and results at full bandwidth; memory_keys: keys and
    values.

    Features: keys of the last query; head size; waves, tiles a unit; query_share and key_share, bytes a unit.
    """
    batch, queries, n, k = (np.maximum(x, 1.0) for x in (shapes.batch, shapes.m, shapes.n, shapes.k))
    kv, read = kv_heads(shapes), key_bytes(shapes)
    tiles = kv * np.ceil(queries * batch / kv / TILE)
    met = np.clip(shapes.flops / (4 * batch * queries * k), 1.0, n)
    keys = BLOCK * (np.ceil(met / BLOCK) + shapes.causal)
    most = np.minimum(met * (1 + shapes.causal), n)
    written = np.maximum(shapes.moved_bytes - read, 1.0)
    slower = USUAL_CLOCK_HZ / hardware.clock_hz
    return KernelTerms(
        {
            "compute": 4 * tiles * TILE * keys * k / hardware.peak_flops_per_s,
            "compute_last": 4 * TILE * BLOCK * np.ceil(most / BLOCK) * k / (hardware.peak_flops_per_s / hardware.units),
            "compute_tiles": np.ceil(tiles / hardware.units) * slower * MICROSECOND,
            "compute_heads": np.ceil(batch * np.ceil(queries / TILE) / hardware.units) * slower * MICROSECOND,
            "memory_queries": written / hardware.bandwidth_bytes_per_s,
            "memory_keys": read / hardware.bandwidth_bytes_per_s,
        },
        {
            "keys": np.maximum(most, 1.0),
            "head": k,
            "waves": np.maximum(tiles / hardware.units, 1e-6),
            "query_bulk": np.maximum(written / hardware.bandwidth_bytes_per_s / MICROSECOND, 1e-6),
            "key_bulk": np.maximum(read / hardware.bandwidth_bytes_per_s / MICROSECOND, 1e-6),
        },
        floor=slower,
    )


def backward_terms(shapes: Shapes, hardware: Hardware) -> KernelTerms:
    """Backward: keys in tiles, blocks of queries streamed past each. Terms and features as forward's, roles exchanged;
    memory: all operands and gradients at full bandwidth.
    """
    batch, queries, n, k = (np.maximum(x, 1.0) for x in (shapes.batch, shapes.m, shapes.n, shapes.k))
    tiles = batch * np.ceil(n / TILE)
    met = np.clip(shapes.flops / (10 * batch * n * k), 1.0, queries)
    rows = BLOCK * (np.ceil(met / BLOCK) + shapes.causal)
    most = np.minimum(met * (1 + shapes.causal), queries)
    return KernelTerms(
        {
            "compute": 10 * tiles * TILE * rows * k / hardware.peak_flops_per_s,
            "compute_last": 10 * TILE * BLOCK * np.ceil(most / BLOCK) * k / (hardware.peak_flops_per_s / hardware.units),
            "memory": shapes.moved_bytes / hardware.bandwidth_bytes_per_s,
        },
        {"keys": np.maximum(most, 1.0), "head": k, "waves": np.maximum(tiles / hardware.units, 1e-6)},
    )
