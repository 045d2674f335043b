"""One of several replicas: data parallel as DistributedDataParallel (DDP) does it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuwise.trace.header import RankGroup
from gpuwise.trace.parallel.blocks import block_of_modules
from gpuwise.trace.parallel.buckets import bucket_count
from gpuwise.trace.parallel.communication import Collective, Communication
from gpuwise.trace.parallel.launches import TrainedUnits, of_replicas
from gpuwise.trace.parallel.tied import with_sums_apart
from gpuwise.trace.tables import BEFORE, CATEGORIES
from gpuwise.trace.trace import Trace

_GRADIENT = CATEGORIES.index("gradient")
COPIES = 3  # of a gradient: read, divided by the ranks, and written into its bucket (reducer.cpp, PyTorch 2.13), as recorded


def replicated(trace: Trace, group: RankGroup, *, of_stage: bool = False) -> tuple[Trace, Communication]:
    """DDP with gradients as views of its buckets: the buckets stay, and are reduced once a step.

    Arguments:
        group: the ranks that hold the same parameters.
        of_stage: whether the step is a pipeline's rank: fully_shard reduces its blocks one by one, and then the rest.
    """
    trace = with_sums_apart(trace)  # a bucket takes the sum
    storages = trace.storages
    gradient = storages.category == _GRADIENT
    kept = replace(
        storages, born=np.where(gradient, BEFORE, storages.born), died=np.where(gradient, len(trace.sequence), storages.died)
    )
    reduced_bytes = int(storages.size_bytes[gradient].sum())
    block = block_of_modules(trace.modules, trace.header.blocks)[storages.module[gradient]]
    calls = len(np.unique(block)) if of_stage else bucket_count(trace)
    reduction = Collective(
        "all_reduce",
        group,
        reduced_bytes,
        calls,
        overlaps="last backward",
        in_update=True,
        copied_bytes=COPIES * reduced_bytes,
    )
    launches = of_replicas(
        TrainedUnits(len(trace.header.blocks), int(gradient.sum()), trace.header.strategy.precision), trace.accumulation
    )
    return replace(trace, storages=kept), Communication(launches=launches).and_also(reduction)
