"""The memory of a caching allocator: separate segments, or one range that expands.

Both classes have the same methods: `allocate` takes a cached block, `grow` takes memory from the driver, `free` frees a
block, and `release` returns unused memory. Sizes and addresses are counted in granules of 512 bytes. Only
gpuwise.cost.memory.allocator uses this module.
"""

from __future__ import annotations

from bisect import bisect_left, insort

# c10/core/AllocatorConfig.h and c10/cuda/CUDACachingAllocator.cpp (PyTorch 2.13), by the names there.
GRANULE_BYTES = 512  # kMinBlockSize
_MIB = 2**20 // GRANULE_BYTES
SMALL_SIZE = 1 * _MIB  # kSmallSize: larger requests go to the large pool
_SMALL_BUFFER = 2 * _MIB  # kSmallBuffer
_LARGE_BUFFER = 20 * _MIB  # kLargeBuffer
_MIN_LARGE_ALLOC = 10 * _MIB  # kMinLargeAlloc: from here a request gets a segment of its own size ...
_ROUND_LARGE = 2 * _MIB  # ... rounded up to this (kRoundLarge)

_ADDRESS_BITS = 64  # a key orders blocks by (size, address); in granules that is more than int64 counts in bytes
_ADDRESS_MASK = (1 << _ADDRESS_BITS) - 1
_ENDLESS = 20 << (_ADDRESS_BITS - 6)  # whole pages of either size


class _FreeBlocks:
    """Cached blocks, ordered by (size, address) and indexed by their first and last addresses."""

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.size_at: dict[int, int] = {}
        self.size_until: dict[int, int] = {}

    def add(self, start: int, size: int) -> None:
        insort(self.keys, size << _ADDRESS_BITS | start)
        self.size_at[start] = size
        self.size_until[start + size] = size

    def remove(self, start: int, size: int) -> None:
        del self.keys[bisect_left(self.keys, size << _ADDRESS_BITS | start)]
        del self.size_at[start], self.size_until[start + size]

    def free(self, start: int, size: int) -> None:
        """Adds a block and merges it with the free blocks before and after it."""
        before = self.size_until.get(start)
        if before is not None:
            self.remove(start - before, before)
            start -= before
            size += before
        after = self.size_at.get(start + size)
        if after is not None:
            self.remove(start + size, after)
            size += after
        self.add(start, size)

    def blocks(self) -> list[tuple[int, int]]:
        """(start, size) of each, smallest first."""
        return [(key & _ADDRESS_MASK, key >> _ADDRESS_BITS) for key in self.keys]


class Segments(_FreeBlocks):
    """Classic segments: each is one driver allocation, returned only as a whole.

    cudaMalloc places a segment below the earlier ones. This is observed, not documented: with it the reserved bytes of 20
    fine-tuning runs on a Tesla T4 are off by 0.0 % in the median and 0.7 % at worst (benchmarks/memory_t4.py). It matters
    because the allocator takes the lower of two free blocks of one size.
    """

    def __init__(self, *, small: bool) -> None:
        super().__init__()
        self.small = small
        self.least_rest = 1 if small else SMALL_SIZE + 1  # should_split: what must be left over for a block to be split
        self.reserved = 0
        self.segment_size: dict[int, int] = {}
        self._lowest = 1 << (_ADDRESS_BITS - 1)

    @property
    def segments(self) -> int:
        return len(self.segment_size)

    def allocate(self, units: int) -> tuple[int, int] | None:
        """(start, size) of the best cached block for a request, split if the rules say so; None without one."""
        keys = self.keys
        index = bisect_left(keys, units << _ADDRESS_BITS)
        if index == len(keys):
            return None
        key = keys.pop(index)
        start, size = key & _ADDRESS_MASK, key >> _ADDRESS_BITS
        del self.size_at[start]
        rest = size - units
        if rest < self.least_rest:
            del self.size_until[start + size]
            return start, size
        insort(keys, rest << _ADDRESS_BITS | start + units)
        self.size_at[start + units] = self.size_until[start + size] = rest
        return start, units

    def grow(self, units: int, room: int) -> bool:
        """Takes memory for a request from the driver, which has `room` left; False if that is too little."""
        if self.small:
            size = _SMALL_BUFFER
        elif units < _MIN_LARGE_ALLOC:
            size = _LARGE_BUFFER
        else:
            size = -(-units // _ROUND_LARGE) * _ROUND_LARGE
        if size > room:
            return False
        self._lowest -= size + 1  # a granule apart, so that blocks of two segments never touch
        self.segment_size[self._lowest] = size
        self.add(self._lowest, size)
        self.reserved += size
        return True

    def release(self) -> None:
        """Returns wholly free segments to the driver."""
        for start, size in self.blocks():
            if self.segment_size.get(start) == size:
                self.remove(start, size)
                del self.segment_size[start]
                self.reserved -= size


class Expandable(_FreeBlocks):
    """expandable_segments:True: one address range that grows page by page; any free page can be returned.

    Returned pages leave a hole that is filled before the range grows. The model assumes an endless range (PyTorch reserves
    addresses for 9/8 of the device's memory, and then another such range).
    """

    def __init__(self, *, small: bool) -> None:
        super().__init__()
        self.page = _SMALL_BUFFER if small else _LARGE_BUFFER
        self.reserved = 0
        self.holes = _FreeBlocks()  # addresses without memory: whole pages
        self.holes.add(0, _ENDLESS)

    @property
    def segments(self) -> int:
        return int(self.reserved > 0)

    def allocate(self, units: int) -> tuple[int, int] | None:
        keys = self.keys
        index = bisect_left(keys, units << _ADDRESS_BITS)
        if index == len(keys):
            return None
        # get_free_block: a growable block counts as large as it could become, so that a fixed block is taken first.
        while index + 1 < len(keys) and self._could_be(keys[index + 1]) < self._could_be(keys[index]):
            index += 1
        start, size = keys[index] & _ADDRESS_MASK, keys[index] >> _ADDRESS_BITS
        self.remove(start, size)
        if size > units:
            self.add(start + units, size - units)
        return start, units

    def _could_be(self, key: int) -> int:
        size = key >> _ADDRESS_BITS
        return size + self.holes.size_at.get((key & _ADDRESS_MASK) + size, 0)

    def grow(self, units: int, room: int) -> bool:
        start = self._lowest(units)
        while (size := self.size_at.get(start, 0)) < units:
            hole = self.holes.size_at[start + size]
            pages = min(hole, -(-(units - size) // self.page) * self.page)
            if pages > room:
                return False
            room -= pages
            self.reserved += pages
            self.holes.remove(start + size, hole)
            if hole > pages:
                self.holes.add(start + size + pages, hole - pages)
            self.free(start + size, pages)
        return True

    def _lowest(self, units: int) -> int:
        """find_expandable_block: the lowest address from which contiguous holes and free blocks hold a request."""
        for hole in sorted(self.holes.size_at):
            start = end = hole - self.size_until.get(hole, 0)
            while end - start < units and (size := self.size_at.get(end) or self.holes.size_at.get(end)):
                end += size
            if end - start >= units:
                return start
        raise AssertionError("the last hole is endless")

    def release(self) -> None:
        for start, size in self.blocks():
            first, last = -(-start // self.page) * self.page, (start + size) // self.page * self.page
            if first >= last:
                continue
            self.remove(start, size)
            if first > start:
                self.add(start, first - start)
            if start + size > last:
                self.add(last, start + size - last)
            self.holes.free(first, last - first)
            self.reserved -= last - first
