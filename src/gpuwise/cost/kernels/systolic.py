"""Kernels of TPUs and other chips that run a compiled graph: products on systolic arrays, the rest fused to them.

An array holds a tile of one operand and streams the other through it, so both are padded to its side. Loading a tile takes
as long as streaming as many rows. What hardly fills an array runs in the vector unit instead. Chains of elementwise work
run there, too, on what the products leave on the chip.
"""

from __future__ import annotations

import numpy as np

from gpuwise.cost.kernels.shapes import Hardware, KernelTerms, Shapes

# Numbers along a side of the array, by architecture: 128 on TPUs before v6e, 256 since (Google Cloud, TPU architecture).
# Trainium's and Inferentia's tensor engine is 128 wide (AWS Neuron documentation, NKI architecture guide); Gaudi's engines
# can be configured (docs.habana.ai, Gaudi Architecture) and count as the usual.
USUAL_SIDE = 128.0
ARRAY_SIDE = {"TPU v6e": 256.0, "TPU7x": 256.0}
SUBLANES = 8.0  # rows of a TPU's vector register: rows are padded to these
# Four arrays of 128 × 128 multiply 64 numbers for each lane of an 8 × 128 vector unit (TPU v5e).
VECTOR_TIMES = 64.0


def terms(kernel_class: str, shapes: Shapes, hardware: Hardware) -> KernelTerms:
    """The terms of a class of kernels on a systolic chip."""
    if kernel_class.split("_")[0] in ("gemm", "conv", "attention", "rnn"):
        return contraction(shapes, hardware)
    return streaming(shapes, hardware)


def contraction(shapes: Shapes, hardware: Hardware) -> KernelTerms:
    """compute: operations at the peak, operands padded. memory: all operands once at full bandwidth. No features."""
    m, n, k = (np.maximum(x, 1.0) for x in (shapes.m, shapes.n, shapes.k))
    side = np.asarray(hardware.array_side, dtype=float)
    rows = np.maximum(_up(m, SUBLANES), side)
    padded = rows / m * (_up(n, side) / n) * (_up(k, side) / k)
    return KernelTerms(
        {
            "compute": shapes.flops * np.minimum(padded, VECTOR_TIMES) / hardware.peak_flops_per_s,
            "memory": shapes.moved_bytes / hardware.bandwidth_bytes_per_s,
        },
        {},
    )


def streaming(shapes: Shapes, hardware: Hardware) -> KernelTerms:
    """memory: all bytes at full bandwidth; an entry's scale below 1 says that fusion leaves a share of them. No features."""
    return KernelTerms({"memory": shapes.moved_bytes / hardware.bandwidth_bytes_per_s}, {})


def _up(size: np.ndarray, to: np.ndarray | float) -> np.ndarray:
    return np.ceil(size / to) * to
