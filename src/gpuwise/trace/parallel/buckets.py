"""The buckets of gradients that DistributedDataParallel (DDP) reduces, one all-reduce each."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gpuwise.trace.parallel.tied import with_sums_apart
from gpuwise.trace.tables import CATEGORIES
from gpuwise.trace.trace import Trace

BUCKET_BYTES = 25 * 2**20  # DistributedDataParallel's bucket_cap_mb
FIRST_BUCKET_BYTES = 2**20  # torch.distributed._DEFAULT_FIRST_BUCKET_BYTES, PyTorch 2.13: a small one, which starts early
_GRADIENT = CATEGORIES.index("gradient")


def bucket_count(trace: Trace) -> int:
    """Number of buckets of a step's gradients, in the order in which backward has them. Those of a tied weight are one sum."""
    storages = with_sums_apart(trace).storages
    rows = np.flatnonzero(storages.category == _GRADIENT)
    return buckets_of(storages.size_bytes[rows[np.argsort(storages.born[rows], kind="stable")]].tolist())


def buckets_of(gradient_bytes: Iterable[int]) -> int:
    """Number of buckets of gradients in the order in which they become ready.

    A bucket is full with the tensor that takes it to its size or beyond: a larger tensor ends one.
    Source: compute_bucket_assignment_by_size in torch/csrc/distributed/c10d/reducer.cpp, PyTorch 2.13.
    """
    count, filled_bytes, size_bytes = 0, 0, FIRST_BUCKET_BYTES
    for tensor_bytes in gradient_bytes:
        filled_bytes += tensor_bytes
        if filled_bytes >= size_bytes:
            count, filled_bytes, size_bytes = count + 1, 0, BUCKET_BYTES
    return max(1, count + (filled_bytes > 0))
