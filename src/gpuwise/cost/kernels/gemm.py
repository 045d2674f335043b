"""Matrix products: a grid of output tiles dealt to the chip's units in waves, each tile a chain of steps along the depth."""

from __future__ import annotations

import numpy as np

from gpuwise.cost.kernels.shapes import USUAL_CLOCK_HZ, Hardware, KernelTerms, Shapes

# Shapes of output tiles that libraries choose among (short side along the short side of the result), and into how many parts
# they split the depth where tiles are too few to fill the chip: NVIDIA, "Matrix Multiplication Background User's Guide",
# sections on tile and wave quantization; CUTLASS, "Efficient GEMM", on split-K.
TILES = ((128.0, 256.0), (128.0, 128.0), (64.0, 128.0), (64.0, 64.0), (16.0, 64.0))
FIXED_TILES = ((128, 128), (64, 128))
SPLITS = (1.0, 2.0, 4.0, 8.0, 16.0)
FULL_TILE = 128.0 * 128.0
# Operands enter a tile over its two sides while arithmetic fills its area: a tile of sides a and b costs
# 1 + EDGE (1/a + 1/b) an output. Each halving of the depth adds SPLIT_COST for adding up the parts. Fitted on bf16 products.
EDGE, SPLIT_COST = 20.0, 0.05
# The first operand and the result were just written or are read next: half of what fits half the cache does not reach memory.
CACHE_SHARE, CACHED_COST = 0.5, 0.5
# What a multiprocessor takes from the second-level cache, and writes, a clock (NVIDIA's tuning guides: 64 bytes a clock read).
READ_BYTES_PER_CLOCK, WRITTEN_BYTES_PER_CLOCK = 64.0, 32.0
# Between two products with the same weights other layers' pass through the cache: weights are still there where this many of
# their size fit into it, with the other operand and the result; nothing is left where they are a fifth too many, because a
# cache drops what was longest out of use. All multiprocessors together read it at this many bytes a clock each, which is
# assumed, and less than what one takes by itself; forecasts of chips left out hardly differ between 16 and 32.
TURNS, EXCESS, SHARED_READ_BYTES_PER_CLOCK = 6.0, 0.2, 24.0
# A wave's latency is counted in thousands of clocks.
WAVE_CLOCKS = 1000.0


def terms(shapes: Shapes, hardware: Hardware) -> KernelTerms:
    """compute: whole waves of tiles at the peak, of the best tile shape and split; compute_128x128 and
    compute_64x128: of that tile alone, which libraries take for batches whatever the size. compute_even: operations at the
    peak. compute_chain: a clock for each step of depth. operands: what tiles read through the second-level cache. memory: all
    operands and the result once. traffic: the same, weights at the cache's speed where they stay in it. results: what units
    write. Latencies, in clocks: latency_depth, one for each step of depth; latency_waves, to begin and end a wave of tiles.

    Features: depth k; waves, of full tiles a unit, whole ones, and waves_128x128, waves_64x128; even_waves, without rounding
    up; unit_bytes and unit_results, a unit's share of bytes; cached, the second operand (weights) over the cache.
    """
    k, units, clock_hz = np.maximum(shapes.k, 1.0), hardware.units, hardware.clock_hz
    waves = _waves(shapes, units)
    fixed = {f"{a}x{b}": _waves_of(shapes, units, a, b) for a, b in FIXED_TILES}
    full_tile_s = k * 2 * FULL_TILE * units / hardware.peak_flops_per_s
    even = np.maximum(shapes.batch * shapes.m * shapes.n / FULL_TILE / units, 1e-6)
    weights = shapes.second_operand_bytes
    others = np.maximum(shapes.moved_bytes - weights, 0.0)
    hot = np.minimum(others, CACHE_SHARE * hardware.cache_bytes)
    moved = weights + others - (1 - CACHED_COST) * hot
    return KernelTerms(
        {
            "compute": waves * full_tile_s,
            **{f"compute_{tile}": count * full_tile_s for tile, count in fixed.items()},
            "compute_even": shapes.flops / hardware.peak_flops_per_s,
            "compute_chain": k / clock_hz,
            "operands": waves * k * 256 * shapes.element_bytes / (READ_BYTES_PER_CLOCK * clock_hz),
            "memory": moved / hardware.bandwidth_bytes_per_s,
            "traffic": _traffic_s(moved, weights, hardware),
            "results": shapes.bytes_written / units / (WRITTEN_BYTES_PER_CLOCK * clock_hz),
            "latency_depth": k / clock_hz,
            "latency_waves": _waited_waves(shapes, fixed["128x128"]) * WAVE_CLOCKS / clock_hz,
        },
        {
            "k": k,
            "waves": waves,
            **{f"waves_{tile}": count for tile, count in fixed.items()},
            "even_waves": even,
            "unit_bytes": np.maximum(moved / units, 1.0),
            "unit_results": np.maximum(shapes.bytes_written / units, 1.0),
            "cached": np.maximum(weights / np.maximum(hardware.cache_bytes, 1.0), 1e-6),
        },
        floor=USUAL_CLOCK_HZ / clock_hz,
    )


def _waves(shapes: Shapes, units: np.ndarray | float) -> np.ndarray:
    """The least work of a unit, in full tiles, over all tile shapes and splits. Rounds up, and grows with every size."""
    short, long = np.minimum(shapes.m, shapes.n), np.maximum(shapes.m, shapes.n)
    best = np.full(short.shape, np.inf)
    for a, b in TILES:
        tiles_a_unit = shapes.batch * np.ceil(short / a) * np.ceil(long / b) / units
        cost = a * b / FULL_TILE * (1 + EDGE * (1 / a + 1 / b)) / (1 + EDGE * (1 / 128 + 1 / 256))
        for split in SPLITS:
            whole = np.ceil(tiles_a_unit * split)
            whole *= cost / split * (1 + SPLIT_COST * np.log2(split))
            np.minimum(best, whole, out=best)
    return np.maximum(best, 1e-6)


def _waited_waves(shapes: Shapes, waves: np.ndarray) -> np.ndarray:
    """Waves that wait for their first operands: all of a single product. Of a batch (the experts of a layer) tiles of few rows
    leave a multiprocessor room for others, whose work hides their wait: of its further waves only the share that is filled."""
    waves, filled = np.maximum(waves, 1.0), np.minimum(np.maximum(shapes.m, 1.0) / 128, 1.0)
    return np.where(shapes.batch > 1, 1.0 + (waves - 1.0) * filled, waves)


def _traffic_s(moved: np.ndarray, weights: np.ndarray, hardware: Hardware) -> np.ndarray:
    """All bytes once: weights that stay in the cache at its speed, where it is the faster one, all others at memory's."""
    turn = moved + (TURNS - 1) * weights
    kept = weights * np.clip((1 + EXCESS - turn / np.maximum(hardware.cache_bytes, 1.0)) / EXCESS, 0.0, 1.0)
    cache_bytes_per_s = hardware.units * SHARED_READ_BYTES_PER_CLOCK * hardware.clock_hz
    seconds: np.ndarray = (moved - kept) / hardware.bandwidth_bytes_per_s
    return seconds + kept / np.maximum(cache_bytes_per_s, hardware.bandwidth_bytes_per_s)


def _waves_of(shapes: Shapes, units: np.ndarray | float, a: int, b: int) -> np.ndarray:
    """Whole waves of tiles of a rows and b columns, in full tiles a unit."""
    waves = np.ceil(shapes.batch * np.ceil(shapes.m / a) * np.ceil(shapes.n / b) / units)
    return np.maximum(waves * (a * b / FULL_TILE), 1e-6)
