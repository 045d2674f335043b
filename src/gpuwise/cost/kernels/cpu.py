"""Kernels of CPUs: vector units of every core, fed from caches; weights come from memory once a step.

A step of one image reads each weight once and no cache holds a whole model, so weights have a term of their own beside the
activations, which the operation before has left in the last-level cache where they fit. Few outputs leave cores idle, and
every kernel wakes them all and waits for the last, so its floor grows with their number.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuwise.cost.kernels.conv import reuse
from gpuwise.cost.kernels.shapes import Hardware, KernelTerms, Shapes

# Where a CPU's cache is unknown: between that of laptops (24 MiB) and of one tile of a server.
UNKNOWN_CACHE_BYTES = 32 * 2**20
# Keys that PyTorch's attention on CPUs takes at a time (kvSplitSize of aten/src/ATen/native/cpu/FlashAttentionKernel.cpp).
KEY_BLOCK = 512
TURN_S = 1e-9  # what a core is taken to spend on a row that it moves, before the calibrated scale


def terms(kernel_class: str, shapes: Shapes, hardware: Hardware) -> KernelTerms:
    """The terms of a class of kernels on a CPU."""
    kind = kernel_class.split("_")[0]
    if kind in ("gemm", "conv", "rnn"):
        return contraction(shapes, hardware)
    if kind == "attention":
        return attention(shapes, hardware)
    if kind in ("embedding", "scatter"):
        return gathering(shapes, hardware)
    return drawing(shapes, hardware) if kind == "random" else streaming(shapes, hardware)


def contraction(shapes: Shapes, hardware: Hardware) -> KernelTerms:
    """compute: operations at the peak; compute_peak: likewise, and no shape makes it quicker. weights: the second operand
    once at full bandwidth; memory: all other bytes, likewise.

    Features: depth k; columns n; rows m; outputs of a core; reuse of each input (9 for 3×3 at stride 1); weights and cached,
    their bytes and all others over the last-level cache.
    """
    groups, m, n, k = (np.maximum(x, 1.0) for x in (shapes.batch, shapes.m, shapes.n, shapes.k))
    weights = np.minimum(shapes.second_operand_bytes, shapes.bytes_read)
    others = shapes.moved_bytes - weights
    return KernelTerms(
        {
            "compute": shapes.flops / hardware.peak_flops_per_s,
            "compute_peak": shapes.flops / hardware.peak_flops_per_s,
            "weights": weights / hardware.bandwidth_bytes_per_s,
            "memory": others / hardware.bandwidth_bytes_per_s,
        },
        {
            "k": k,
            "n": n,
            "m": m,
            "outputs": np.maximum(groups * m * n / hardware.units, 1e-3),
            "reuse": reuse(shapes),
            "weights": cached(weights, hardware),
            "cached": cached(others, hardware),
        },
        waking(hardware),
    )


def attention(shapes: Shapes, hardware: Hardware) -> KernelTerms:
    """compute and compute_peak: see contraction, with what a causal kernel computes and masks. memory: all operands once at
    full bandwidth.

    Features: keys; head size; queries of a core, all heads; cached, bytes over the last-level cache.
    """
    arithmetic_s = shapes.flops * not_skipped(shapes) / hardware.peak_flops_per_s
    return KernelTerms(
        {
            "compute": arithmetic_s,
            "compute_peak": arithmetic_s,
            "memory": shapes.moved_bytes / hardware.bandwidth_bytes_per_s,
        },
        {
            "keys": np.maximum(shapes.n, 1.0),
            "head": np.maximum(shapes.k, 1.0),
            "queries": np.maximum(shapes.batch * shapes.m / hardware.units, 1e-3),
            "cached": cached(shapes.moved_bytes, hardware),
        },
        waking(hardware),
    )


def not_skipped(shapes: Shapes) -> np.ndarray:
    """The work of a causal kernel over the half that counts: it takes keys in blocks and skips only whole blocks."""
    kept: np.ndarray = np.minimum(2.0, 1.0 + KEY_BLOCK / np.maximum(shapes.n, 1.0))
    return np.where(shapes.causal > 0, kept, 1.0)


def streaming(shapes: Shapes, hardware: Hardware) -> KernelTerms:
    """memory: all bytes at full bandwidth. Features: unit_bytes, a core's share of the bytes; cached, bytes
    over the last-level cache; window, numbers that a result of a pool is of, 1 where none is told."""
    moved = shapes.moved_bytes
    return KernelTerms(
        {"memory": moved / hardware.bandwidth_bytes_per_s},
        {
            "unit_bytes": np.maximum(moved / hardware.units, 1.0),
            "cached": cached(moved, hardware),
            "window": np.maximum(shapes.k, 1.0),
        },
        waking(hardware),
    )


def gathering(shapes: Shapes, hardware: Hardware) -> KernelTerms:
    """Gathers and scatters. rows: turns of a loop around short copies (the column m), dealt to the cores; memory and features:
    see streaming. The gradient of an embedding clears its whole table, whose bytes are written, and adds its rows one by one.

    Feature table: bytes of the table whose rows are moved, over the last-level cache.
    """
    streamed = streaming(shapes, hardware)
    table = np.maximum(shapes.n, 1.0) * np.maximum(shapes.k, 1.0) * shapes.element_bytes
    return replace(
        streamed,
        seconds={**streamed.seconds, "rows": TURN_S * shapes.m / hardware.units},
        features={**streamed.features, "table": cached(table, hardware)},
    )


def drawing(shapes: Shapes, hardware: Hardware) -> KernelTerms:
    """Random numbers. serial: a clock of one core for each, as one generator makes them one after the other (Intel's
    processors apart: ATen/native/cpu/DistributionKernels.cpp); memory and features: see streaming."""
    streamed = streaming(shapes, hardware)
    numbers = shapes.bytes_written / shapes.element_bytes
    return replace(streamed, seconds={**streamed.seconds, "serial": numbers / hardware.clock_hz})


def waking(hardware: Hardware) -> np.ndarray:
    """A kernel's floor against that on one core: threads are woken and joined in a tree, a level for each doubling."""
    return 1 + np.log2(np.maximum(np.asarray(hardware.units, dtype=float), 1.0))


def cached(moved_bytes: np.ndarray, hardware: Hardware) -> np.ndarray:
    cache_bytes = np.where(np.asarray(hardware.cache_bytes) > 0, hardware.cache_bytes, UNKNOWN_CACHE_BYTES)
    return np.maximum(moved_bytes / cache_bytes, 1e-6)
