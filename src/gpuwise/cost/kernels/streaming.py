"""Kernels that move bytes: elementwise, copies, random numbers, reductions, pooling, gathers, scatters, optimizer updates.
Few bytes do not fill a chip; what fits its cache comes from there."""

from __future__ import annotations

import numpy as np

from gpuwise.cost.kernels.shapes import Hardware, KernelTerms, Shapes

INDEX_S = 1e-6  # what a unit is taken to spend on an index of a scatter, before the calibrated scale
SORTED = 2048.0  # indices are sorted first: in kernels that take as long as this many more, however few there are


def terms(shapes: Shapes, hardware: Hardware) -> KernelTerms:
    """memory: all bytes at full bandwidth. rows: indices (the column m, where one is recorded) dealt to the chip's units.

    The gradient of an embedding has such rows: it sorts the indices, so that equal ones add up in a fixed order.

    Features: unit_bytes, a unit's share of the bytes; cached, bytes over those of the cache (a large number without one).
    """
    moved = shapes.moved_bytes
    indices = np.where(shapes.m > 0, shapes.m + SORTED, 0.0)
    return KernelTerms(
        {"memory": moved / hardware.bandwidth_bytes_per_s, "rows": INDEX_S * indices / hardware.units},
        features(moved, hardware),
    )


def features(moved_bytes: np.ndarray, hardware: Hardware) -> dict[str, np.ndarray]:
    """The features that decide how fast bytes move. Both grow with the bytes."""
    return {
        "unit_bytes": np.maximum(moved_bytes / hardware.units, 1.0),
        "cached": np.maximum(moved_bytes / np.maximum(hardware.cache_bytes, 1.0), 1e-6),
    }
