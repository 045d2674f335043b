"""The fast replay against an allocator written to be obvious: every block of every segment in a list, searched in full."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpuwise.cost.memory.allocator import Replay, replay

KIB, MIB = 2**10, 2**20


@dataclass
class Block:
    start: int
    size: int
    state: str  # "used", "free" or "unmapped"


class Pool(NamedTuple):
    stream: int
    small: bool


@dataclass
class Obvious:
    """c10/cuda/CUDACachingAllocator.cpp in bytes. Each stream has two pools. A segment is its blocks by address."""

    expandable: bool
    limit: int
    segments: dict[Pool, list[list[Block]]] = field(default_factory=lambda: defaultdict(list))
    address: int = 0
    releases: int = 0
    peak_reserved: int = 0

    def reserved(self) -> int:
        return sum(b.size for pool in self.segments.values() for s in pool for b in s if b.state != "unmapped")

    def allocated(self) -> int:
        return sum(b.size for pool in self.segments.values() for s in pool for b in s if b.state == "used")

    def malloc(self, size: int, stream: int = 0) -> Block | None:
        size = (size + 511) // 512 * 512
        pool = Pool(stream, small=size <= MIB)
        result = self.find(pool, size) or self.take(pool, size)
        self.peak_reserved = max(self.peak_reserved, self.reserved())
        if result is None:
            self.releases += 1
            self.release()
            result = self.take(pool, size)
            self.peak_reserved = max(self.peak_reserved, self.reserved())
        if result is None:
            return None
        segment, block = result
        rest = block.size - size
        if (rest >= 512) if pool.small or self.expandable else (rest > MIB):
            segment.insert(segment.index(block) + 1, Block(block.start + size, rest, "free"))
            block.size = size
        block.state = "used"
        return block

    def free(self, block: Block) -> None:
        block.state = "free"
        for pool in self.segments.values():
            for segment in pool:
                merge(segment)

    def find(self, pool: Pool, size: int) -> tuple[list[Block], Block] | None:
        fitting = [
            (b.size, b.start, segment, b)
            for segment in self.segments[pool]
            for b in segment
            if b.state == "free" and b.size >= size
        ]
        fitting.sort(key=lambda row: row[:2])
        chosen = 0
        while chosen + 1 < len(fitting) and self.could_be(*fitting[chosen + 1][2:]) < self.could_be(*fitting[chosen][2:]):
            chosen += 1
        return fitting[chosen][2:] if fitting else None

    def could_be(self, segment: list[Block], block: Block) -> int:
        after = segment.index(block) + 1
        grows = after < len(segment) and segment[after].state == "unmapped"
        return block.size + (segment[after].size if grows else 0)

    def take(self, pool: Pool, size: int) -> tuple[list[Block], Block] | None:
        return self.expand(pool, size) if self.expandable else self.segment(pool, size)

    def segment(self, pool: Pool, size: int) -> tuple[list[Block], Block] | None:
        requested = 2 * MIB if size <= MIB else 20 * MIB if size < 10 * MIB else (size + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
        if self.reserved() + requested > self.limit:
            return None
        self.address -= requested
        block = Block(self.address, requested, "free")
        self.segments[pool].append([block])
        return self.segments[pool][-1], block

    def expand(self, pool: Pool, size: int) -> tuple[list[Block], Block] | None:
        page = 2 * MIB if pool.small else 20 * MIB
        if not self.segments[pool]:
            self.segments[pool].append([Block(0, 10**6 * page, "unmapped")])
        (segment,) = self.segments[pool]
        begin = next(i for i, b in enumerate(segment) if self.starts_a_run(segment, i, size))
        while True:
            mapped = segment[begin] if segment[begin].state == "free" else None
            if mapped and mapped.size >= size:
                return segment, mapped
            hole = segment[begin + 1] if mapped else segment[begin]
            missing = size - (mapped.size if mapped else 0)
            pages = min(hole.size, (missing + page - 1) // page * page)
            if self.reserved() + pages > self.limit:
                return None
            segment.insert(segment.index(hole), Block(hole.start, pages, "free"))
            hole.start, hole.size = hole.start + pages, hole.size - pages
            if not hole.size:
                segment.remove(hole)
            merge(segment)

    @staticmethod
    def starts_a_run(segment: list[Block], index: int, size: int) -> bool:
        """Whether an unmapped block, or a free one right before one, begins enough space that nobody uses."""
        if index and segment[index - 1].state == "free":
            return False  # the run begins there
        first = [b.state for b in segment[index : index + 2]]
        if not (first[0] == "unmapped" or first == ["free", "unmapped"]):
            return False
        space = 0
        for block in segment[index:]:
            if block.state == "used" or space >= size:
                break
            space += block.size
        return space >= size

    def release(self) -> None:
        for which, pool in self.segments.items():
            if not self.expandable:
                pool[:] = [s for s in pool if not (len(s) == 1 and s[0].state == "free")]
                continue
            page = 2 * MIB if which.small else 20 * MIB
            for segment in pool:
                for block in [b for b in segment if b.state == "free"]:
                    first, last = (block.start + page - 1) // page * page, (block.start + block.size) // page * page
                    if first < last:
                        end, index = block.start + block.size, segment.index(block)
                        parts = [(block.start, first, "free"), (first, last, "unmapped"), (last, end, "free")]
                        segment[index : index + 1] = [Block(a, b - a, state) for a, b, state in parts if b > a]
                merge(segment)


def merge(segment: list[Block]) -> None:
    for index in range(len(segment) - 1, 0, -1):
        left, right = segment[index - 1], segment[index]
        if left.state == right.state != "used":
            left.size += right.size
            del segment[index]


def obviously(
    sizes: list[int], order: list[int], streams: list[int], limit: int, expandable: bool
) -> tuple[Obvious, int, int, int | None]:
    """The allocator at the end, its allocated peak, the event that reached it, and the event that failed."""
    allocator, live, peak, peak_event = Obvious(expandable, limit), {}, 0, 0
    for event, which in enumerate(order):
        if which < 0:
            allocator.free(live.pop(~which))
            continue
        block = allocator.malloc(sizes[which], streams[which])
        if block is None:
            return allocator, peak, peak_event, event
        live[which] = block
        small = [s for pool, segments in allocator.segments.items() if pool == Pool(0, small=True) for s in segments]
        spans = sorted((b.start, b.start + b.size) for s in small for b in s if b.state == "used")
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
        if allocator.allocated() > peak:
            peak, peak_event = allocator.allocated(), event
    return allocator, peak, peak_event, None


# Around every limit of the rules: 512 bytes, 1 MiB, what a 20 MiB segment leaves over, 10 MiB, 20 MiB.
SIZES = st.one_of(
    st.integers(1, 3000),
    st.integers(MIB - 1500, MIB + 1500),
    st.integers(1, 40).map(lambda n: n * MIB),
    st.builds(lambda n, off: n * MIB + off, st.sampled_from([2, 9, 10, 11, 18, 19, 20, 21, 39]), st.integers(-700, 700)),
    st.integers(1, 50 * MIB),
)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Sizes of allocations, and an order in which they are made and some of them freed."""
    sizes: list[int] = []
    order: list[int] = []
    alive: list[int] = []
    requested = draw(st.sampled_from([SIZES, st.integers(2, 14).map(lambda n: n * MIB)]))
    for choice, size in draw(st.lists(st.tuples(st.integers(0, 59), requested), max_size=80)):
        if choice < 28 and alive:
            which = alive.pop(choice % len(alive))
            order.append(~which)
        else:
            alive.append(len(sizes))
            order.append(len(sizes))
            sizes.append(size)
    return sizes, order


@settings(deadline=None, max_examples=250)
@given(histories(), st.one_of(st.none(), st.integers(0, 300).map(lambda n: n * MIB)), st.booleans(), st.integers(1, 3))
def test_the_replay_does_what_the_obvious_allocator_does(
    history: tuple[list[int], list[int]], limit: int | None, expandable: bool, count: int
) -> None:
    sizes, order = history
    streams = [size % count for size in sizes]
    result = replay(sizes, order, streams=streams, limit_bytes=limit, expandable=expandable)
    truth, peak, peak_event, failed = obviously(sizes, order, streams, 10**15 if limit is None else limit, expandable)
    assert result.peak_allocated_bytes == peak
    assert result.peak_event == peak_event
    assert result.peak_reserved_bytes == truth.peak_reserved
    assert result.cache_releases == truth.releases
    assert (result.out_of_memory.event if result.out_of_memory else None) == failed
    if result.out_of_memory:
        assert result.out_of_memory.allocated_bytes == truth.allocated()
        assert result.out_of_memory.reserved_bytes == truth.reserved()
    if not expandable:
        assert result.segments == sum(len(pool) for pool in truth.segments.values())


def live_requests(sizes: list[int], order: list[int]) -> list[int]:
    """Bytes asked for and not freed, rounded up, after each event."""
    total, result = 0, []
    for which in order:
        size = -(-sizes[which if which >= 0 else ~which] // 512) * 512
        total += size if which >= 0 else -size
        result.append(total)
    return result


@settings(deadline=None, max_examples=150)
@given(histories())
def test_what_is_reserved_holds_what_is_allocated_and_blocks_hold_their_requests(history: tuple[list[int], list[int]]) -> None:
    sizes, order = history
    classic, expandable = (replay(sizes, order, expandable=mode) for mode in (False, True))
    requested = max(live_requests(sizes, order), default=0)
    for result in (classic, expandable):
        assert result.peak_allocated_bytes <= result.reserved_at_peak_bytes <= result.peak_reserved_bytes
        assert result.peak_allocated_bytes or not result.reserved_at_peak_bytes
        assert result.cache_releases == 0
        assert all(size <= block for size, block in zip(sizes, result.block_bytes, strict=True))
    # Blocks of expandable segments are always cut to the request; others keep up to 1 MiB that is not.
    assert expandable.peak_allocated_bytes == requested <= classic.peak_allocated_bytes <= requested + MIB * len(sizes)
    assert expandable.peak_reserved_bytes <= 22 * MIB * (len(sizes) + 1) + sum(sizes)


@settings(deadline=None, max_examples=100)
@given(histories(), st.booleans())
def test_once_all_is_freed_every_segment_is_whole_and_can_be_given_back(
    history: tuple[list[int], list[int]], expandable: bool
) -> None:
    """A request for all that was ever reserved is served, after one release at most."""
    sizes, order = history
    freed = {~which for which in order if which < 0}
    order = [*order, *[~which for which in order if which >= 0 and which not in freed]]
    limit = replay(sizes, order, expandable=expandable).peak_reserved_bytes
    whole = limit // (20 * MIB) * 20 * MIB if expandable else limit
    assume(whole >= 10 * MIB)
    result = replay([*sizes, whole], [*order, len(sizes)], limit_bytes=limit, expandable=expandable)
    assert result.out_of_memory is None
    assert result.cache_releases <= 1
    assert result.block_bytes[-1] == whole


@settings(deadline=None, max_examples=100)
@given(histories(), st.integers(0, 200), st.booleans())
def test_a_limit_is_kept_and_what_was_enough_is_enough(
    history: tuple[list[int], list[int]], mib: int, expandable: bool
) -> None:
    sizes, order = history
    limited = replay(sizes, order, limit_bytes=mib * MIB, expandable=expandable)
    assert limited.peak_reserved_bytes <= mib * MIB
    free = replay(sizes, order, expandable=expandable)
    enough: Replay = replay(sizes, order, limit_bytes=free.peak_reserved_bytes, expandable=expandable)
    assert enough == free


@settings(deadline=None, max_examples=100)
@given(histories(), st.booleans(), st.integers(2, 4))
def test_streams_reserve_as_if_each_were_alone(history: tuple[list[int], list[int]], expandable: bool, count: int) -> None:
    """Without a limit nothing is given back, so that what a stream has reserved only grows."""
    sizes, order = history
    streams = [index % count for index in range(len(sizes))]
    together = replay(sizes, order, streams=streams, expandable=expandable)
    alone = [
        replay(sizes, [which for which in order if streams[max(which, ~which)] == stream], expandable=expandable)
        for stream in range(count)
    ]
    assert together.peak_reserved_bytes == sum(result.peak_reserved_bytes for result in alone)
    assert together.segments == sum(result.segments for result in alone)
    assert together.block_bytes == tuple(map(sum, zip(*(result.block_bytes for result in alone), strict=True)))
