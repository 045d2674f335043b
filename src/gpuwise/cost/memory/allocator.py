"""A replay of PyTorch's CUDA caching allocator: the memory it takes from the driver while a process allocates and frees.

The rules are those of c10/cuda/CUDACachingAllocator.cpp with its default settings (no max_split_size, no garbage
collection, no rounding to powers of two). A block serves requests of its own stream alone: each stream has its pools. Sizes
and addresses are counted in granules of 512 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuwise.cost.memory.segments import GRANULE_BYTES, SMALL_SIZE, Expandable, Segments

Pool = Segments | Expandable


@dataclass(frozen=True)
class OutOfMemory:
    """A request that failed even after all cached blocks were returned to the driver. `event` is its index."""

    event: int
    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True)
class Replay:
    """The allocator's memory over a run of events, up to the first failure.

    Attributes:
        peak_allocated_bytes: peak as PyTorch's max_memory_allocated shows it.
        peak_reserved_bytes: peak as PyTorch's max_memory_reserved shows it.
        peak_event: index of the first event that reached the allocated peak.
        reserved_at_peak_bytes: bytes reserved at peak_event.
        out_of_memory: index of the allocation that failed; None if all succeeded.
        cache_releases: how often cached blocks were returned to the driver to serve a request (num_alloc_retries).
        segments: number of segments at the end (with expandable segments: pools with memory).
        block_bytes: bytes of each allocation's block: the rounded request, plus the rest of a block that was not split;
            0 for allocations that were never made.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_event: int
    reserved_at_peak_bytes: int
    cache_releases: int
    segments: int
    block_bytes: tuple[int, ...]
    out_of_memory: OutOfMemory | None = None


def replay(
    size_bytes: Sequence[int],
    order: Sequence[int],
    *,
    streams: Sequence[int] | None = None,
    limit_bytes: int | None = None,
    expandable: bool = False,
) -> Replay:
    """Replays allocations and frees in order.

    Arguments:
        size_bytes: bytes requested by each allocation, above 0.
        order: one number per event: `k` makes allocation k, `~k` frees it.
        streams: number of the stream that is current at each allocation; None (the default): all are on one.
        limit_bytes: total bytes that the driver can give; None for no limit.
        expandable: replay PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.
    """
    requested_units = [-(-size // GRANULE_BYTES) for size in size_bytes]
    pools: dict[tuple[int, bool], Pool] = {}
    pool_of = []
    for stream, units in zip(streams or [0] * len(size_bytes), requested_units, strict=True):
        key = stream, units <= SMALL_SIZE
        if key not in pools:
            pools[key] = Expandable(small=key[1]) if expandable else Segments(small=key[1])
        pool_of.append(pools[key])
    room = (1 << 62) if limit_bytes is None else limit_bytes // GRANULE_BYTES
    start, block_units = [0] * len(size_bytes), [0] * len(size_bytes)
    allocated = reserved = peak_allocated = peak_event = reserved_at_peak = peak_reserved = releases = 0
    failure = None
    for event, which in enumerate(order):
        if which < 0:
            which = ~which
            size = block_units[which]
            pool_of[which].free(start[which], size)
            allocated -= size
            continue
        units, pool = requested_units[which], pool_of[which]
        block = pool.allocate(units)
        if block is None:
            grown = pool.grow(units, room - reserved)
            reserved = sum(other.reserved for other in pools.values())
            peak_reserved = max(peak_reserved, reserved)
            if not grown:
                releases += 1
                for other in pools.values():
                    other.release()
                reserved = sum(other.reserved for other in pools.values())
                if not pool.grow(units, room - reserved):
                    failure = OutOfMemory(event, units * GRANULE_BYTES, allocated * GRANULE_BYTES, reserved * GRANULE_BYTES)
                    break
                reserved = sum(other.reserved for other in pools.values())
                peak_reserved = max(peak_reserved, reserved)
            block = pool.allocate(units)
            assert block is not None
        start[which], size = block
        block_units[which] = size
        allocated += size
        if allocated > peak_allocated:
            peak_allocated, peak_event, reserved_at_peak = allocated, event, reserved
    return Replay(
        peak_allocated_bytes=peak_allocated * GRANULE_BYTES,
        peak_reserved_bytes=peak_reserved * GRANULE_BYTES,
        peak_event=peak_event,
        reserved_at_peak_bytes=reserved_at_peak * GRANULE_BYTES,
        cache_releases=releases,
        segments=sum(pool.segments for pool in pools.values()),
        block_bytes=tuple([size * GRANULE_BYTES for size in block_units]),
        out_of_memory=failure,
    )
