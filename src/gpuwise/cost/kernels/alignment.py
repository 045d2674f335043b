"""Which matrix products keep tensor cores waiting because rows of an operand begin between whole words.

Tensor cores are fed by loads of 16 bytes. Where a matrix in memory has an odd number of 2-byte numbers a row (a vocabulary of
50,257 or 267,735 words), every other row begins off such a boundary and is loaded number by number.
"""

from __future__ import annotations

import numpy as np

from gpuwise.trace.tables import KINDS
from gpuwise.trace.trace import Trace

HALF = ("float16", "bfloat16")


def unaligned(trace: Trace) -> np.ndarray:
    """Whether each distinct operation is a single product in half precision of matrices with odd rows. Shape (operations,).

    Rows of activations, weights and their gradients are as long as a layer's inputs and outputs, never as the batch: n and
    k of a forward product (m counts its samples), m and n of a weight's gradient (k does). So a batch's size never matters.
    """
    operations = trace.operations
    m, n, k = (operations.column(name) for name in ("m", "n", "k"))
    half = np.array([dtype in HALF for dtype in operations.dtype], dtype=bool)
    single = (operations.kind == KINDS.index("gemm")) & (operations.column("batch") <= 1) & half
    forward = trace.counts("forward") > 0
    by_sample = forward | np.isin(m, m[single & forward])
    result: np.ndarray = single & (_odd(n) | _odd(np.where(by_sample, k, m)))
    return result


def _odd(sizes: np.ndarray) -> np.ndarray:
    odd: np.ndarray = (sizes % 2 == 1) & (sizes > 1)
    return odd
