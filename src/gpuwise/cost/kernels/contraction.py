"""Matrix products and convolutions (as implicit ones): a grid of output tiles dealt to the chip's units in waves."""

from __future__ import annotations

import numpy as np

from gpuwise.cost.kernels.shapes import Hardware, KernelTerms, Shapes

TILE = 128.0


def terms(shapes: Shapes, hardware: Hardware) -> KernelTerms:
    """compute: operations at the peak. memory: operands and result once at full bandwidth.

    Features: depth k; outputs n across; waves, outputs of a unit in tiles; rows m.
    """
    outputs = shapes.batch * shapes.m * shapes.n
    return KernelTerms(
        {
            "compute": shapes.flops / hardware.peak_flops_per_s,
            "memory": shapes.moved_bytes / hardware.bandwidth_bytes_per_s,
        },
        {
            "k": np.maximum(shapes.k, 1.0),
            "m": np.maximum(shapes.m, 1.0),
            "n": np.maximum(shapes.n, 1.0),
            "waves": np.maximum(outputs / (TILE * TILE * hardware.units), 1e-6),
        },
    )
