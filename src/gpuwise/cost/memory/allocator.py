"""PyTorch's CUDA caching allocator, replayed: what it takes from the driver while a process allocates and frees.

The rules are those of c10/cuda/CUDACachingAllocator.cpp with its default settings (no max_split_size, no garbage
collection, no rounding to powers of two), for one stream. Sizes and addresses are counted in granules of 512 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuwise.cost.memory.segments import GRANULE_BYTES, SMALL_SIZE, Expandable, Segments


@dataclass(frozen=True)
class OutOfMemory:
    """The request that failed even after cached blocks were given back. event: its index."""

    event: int
    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True)
class Replay:
    """What the allocator held while the events ran; up to the failure where there was one.

    Attributes:
        peak_allocated_bytes: as torch.cuda.max_memory_allocated shows.
        peak_reserved_bytes: as torch.cuda.max_memory_reserved shows.
        peak_event: index of the first event that reached the allocated peak.
        reserved_at_peak_bytes: what was reserved then.
        out_of_memory: index of the allocation that could not be served; None where all were.
        cache_releases: how often cached blocks were given back to the driver to serve a request (num_alloc_retries).
        segments: held at the end (with expandable segments: pools that hold memory).
        block_bytes: what the block of each allocation takes: the request rounded up, and the rest of a block that was not
            split; 0 where it was never made.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_event: int
    reserved_at_peak_bytes: int
    cache_releases: int
    segments: int
    block_bytes: tuple[int, ...]
    out_of_memory: OutOfMemory | None = None

    @property
    def fragmentation(self) -> float:
        """Share of the reserved bytes that is in no block at the moment of the allocated peak."""
        reserved = self.reserved_at_peak_bytes
        return (reserved - self.peak_allocated_bytes) / reserved if reserved else 0.0


def replay(
    size_bytes: Sequence[int], order: Sequence[int], *, limit_bytes: int | None = None, expandable: bool = False
) -> Replay:
    """Runs allocations and frees in their order.

    Arguments:
        size_bytes: bytes asked by each allocation, above 0.
        order: one number an event: `k` makes allocation k, `~k` frees it.
        limit_bytes: what the driver can give in all; None: no limit.
        expandable: under PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.
    """
    kind: type[Segments] | type[Expandable] = Expandable if expandable else Segments
    small, large = kind(small=True), kind(small=False)
    room = (1 << 62) if limit_bytes is None else limit_bytes // GRANULE_BYTES
    start, block_units = [0] * len(size_bytes), [0] * len(size_bytes)
    allocated = peak_allocated = peak_event = reserved_at_peak = peak_reserved = releases = 0
    failure = None
    for event, which in enumerate(order):
        if which < 0:
            which = ~which
            size = block_units[which]
            (small if size_bytes[which] <= SMALL_SIZE * GRANULE_BYTES else large).free(start[which], size)
            allocated -= size
            continue
        units = -(-size_bytes[which] // GRANULE_BYTES)
        pool = small if units <= SMALL_SIZE else large
        block = pool.allocate(units)
        if block is None:
            grown = pool.grow(units, room - small.reserved - large.reserved)
            peak_reserved = max(peak_reserved, small.reserved + large.reserved)
            if not grown:
                releases += 1
                small.release()
                large.release()
                reserved = small.reserved + large.reserved
                if not pool.grow(units, room - reserved):
                    failure = OutOfMemory(event, units * GRANULE_BYTES, allocated * GRANULE_BYTES, reserved * GRANULE_BYTES)
                    break
                peak_reserved = max(peak_reserved, small.reserved + large.reserved)
            block = pool.allocate(units)
            assert block is not None
        start[which], size = block
        block_units[which] = size
        allocated += size
        if allocated > peak_allocated:
            peak_allocated, peak_event, reserved_at_peak = allocated, event, small.reserved + large.reserved
    return Replay(
        peak_allocated_bytes=peak_allocated * GRANULE_BYTES,
        peak_reserved_bytes=peak_reserved * GRANULE_BYTES,
        peak_event=peak_event,
        reserved_at_peak_bytes=reserved_at_peak * GRANULE_BYTES,
        cache_releases=releases,
        segments=small.segments + large.segments,
        block_bytes=tuple([size * GRANULE_BYTES for size in block_units]),
        out_of_memory=failure,
    )
