"""Bandwidth of the caches and of the memory: the kernels of STREAM over working sets of 16 KiB and up, all threads at once.

McCalpin, "Memory Bandwidth and Machine Balance in Current High Performance Computers" (1995). Bytes are counted as STREAM
counts them: each array that is read, each that is written, once. A CPU reads a cache line before it writes a part of it
(write-allocate) unless the store bypasses the caches, and PyTorch's do not: the memory moves 3/2 of what is counted of a copy,
4/3 of a triad. What training gets is what is counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from gpuwise.hardware.detect import Cpu, detect_memory
from gpuwise.measure.timing import timed
from gpuwise.notes import Note
from gpuwise.notes import measuring as measuring_notes
from gpuwise.results.measurement import MeasuredRow, MemoryLevel
from gpuwise.runtime.devices import backend_of

KINDS = ("copy", "triad", "read", "write")
SMALLEST_BYTES = {"cpu": 2**14, "accelerator": 2**22}
LARGEST_BYTES = {"cpu": 2**30, "accelerator": 2**32}
QUICK_S = 10.0  # with less time than this the sweep ends at a quarter of that
# STREAM asks for arrays of 4 times the last cache; a quarter of what is free leaves room for everybody else.
BEYOND_CACHE, SHARE_OF_FREE = 4, 4
# A read of less is repeated inside one operation, which takes about a microsecond to issue: as long as 100 KB from a cache.
LEAST_READ_BYTES = 2**24
_APART = 17 * 64  # bytes between arrays, so that they do not fall into the same sets of a cache
_TILE = 2**20  # random elements that the arrays repeat
_ALPHA = 3.0


@dataclass(frozen=True)
class _Kernel:
    """One operation on a working set. bytes, flops: of a run; correct: checks what the last run left."""

    run: Callable[[], object]
    correct: Callable[[], bool]
    bytes: int
    flops: int = 0


def rows(budget_s: float, device: torch.device, say: Callable[[Note], None], *, beyond_bytes: int = 0) -> Iterator[MeasuredRow]:
    """Rows of group "memory": sizes["working_set_bytes"] is what all threads touch together.

    Arguments:
        beyond_bytes: the last cache; the sweep goes to BEYOND_CACHE times that where memory allows.
    """
    sizes = working_sets(budget_s, device, beyond_bytes, free_bytes(device))
    if not sizes:
        say(measuring_notes.memory_left_out())
        return
    began = time.perf_counter()
    pool = _pool(sizes[-1], device)
    for i, kind in enumerate(KINDS):  # write is last: it leaves a constant behind
        for j, size in enumerate(sizes):
            kernel = _kernel(kind, pool, size)
            share = 1 / (len(sizes) - j) / (len(KINDS) - i)  # what small ones leave goes to the large ones
            left_s = max(0.0, budget_s - (time.perf_counter() - began))
            timing = timed([kernel.run], budget_s=share * left_s, device=device)
            sizes_of = {"working_set_bytes": size}
            yield MeasuredRow("memory", kind, timing, "fp32", sizes_of, kernel.flops, kernel.bytes, kernel.correct())


def levels(rows: Sequence[MeasuredRow], caches: Mapping[str, int]) -> list[MemoryLevel]:
    """What each cache and the memory give, nearest first: the best row whose working set is well inside.

    Arguments:
        caches: bytes by name, nearest first, of all processors in use together (caches_together): two cores with an L1 of
            32 KiB each have 64 KiB, as their threads share a working set between them.

    Of a cache the best of copy, triad and read, as one array and as three: an operation takes longer to issue than the nearest
    caches take to copy. Of the memory the median of copy and triad. A level that no working set lies in is left out.
    """
    plateaus, inner = [], 0
    for name, size in caches.items():
        # Beyond twice the cache before, hardly anything is left in it; three quarters leave room for stacks and code.
        inside = _between(rows, ("copy", "triad", "read"), 2 * inner, 0.75 * size)
        if inside:
            best = max(inside, key=lambda row: row.bytes_per_s)
            plateaus.append(MemoryLevel(name, best.bytes_per_s, size, spread=best.timing.spread))
        inner = size
    # What a large cache keeps from one pass to the next still shows at four times its size.
    plateau = _between(rows, ("copy", "triad"), 2 * BEYOND_CACHE * inner) or _between(
        rows, ("copy", "triad"), BEYOND_CACHE * inner
    )
    if plateau:
        rate = median(row.bytes_per_s for row in plateau)
        plateaus.append(MemoryLevel("memory", rate, spread=median(row.timing.spread for row in plateau)))
    return plateaus


def _between(
    rows: Sequence[MeasuredRow], kinds: Sequence[str], least_bytes: float, most_bytes: float = float("inf")
) -> list[MeasuredRow]:
    """Rows of these kinds whose working set is of such a size."""
    return [row for row in rows if row.name in kinds and least_bytes <= row.sizes["working_set_bytes"] <= most_bytes]


def caches_together(cpu: Cpu, threads: int) -> dict[str, int]:
    """Bytes of each level that `threads` threads, one a core, have together: what `levels` takes."""
    sizes: dict[str, int] = {}
    for cache in sorted(cpu.caches, key=lambda cache: cache.level):
        name = f"L{cache.level}"
        sizes[name] = sizes.get(name, 0) + cache.size_bytes * max(1, min(threads, len(cache.shared_by)))
    return sizes or dict(sorted(cpu.cache_bytes.items()))


def working_sets(budget_s: float, device: torch.device, beyond_bytes: int, free_bytes: int | None) -> list[int]:
    """Powers of two, ascending; empty where not even the smallest fits."""
    kind = "cpu" if device.type == "cpu" else "accelerator"
    largest = LARGEST_BYTES[kind] // (1 if budget_s >= QUICK_S else 4)
    largest = max(largest, BEYOND_CACHE * beyond_bytes)
    if free_bytes is not None:
        largest = min(largest, free_bytes // SHARE_OF_FREE)
    smallest = SMALLEST_BYTES[kind]
    return [smallest << i for i in range(max(0, (largest // smallest).bit_length()))]


def free_bytes(device: torch.device) -> int | None:
    """Memory that can be taken now; None where the system does not tell."""
    backend = backend_of(device)
    if backend.is_host:
        return detect_memory().available_bytes
    memory = backend.free_and_total_bytes()
    return None if memory is None else memory[0]


def _pool(size: int, device: torch.device) -> torch.Tensor:
    """Room for a working set of `size` bytes, filled with random numbers."""
    pool = torch.empty(size // 4 + 3 * _APART // 4, device=device)
    tile = torch.rand(min(_TILE, len(pool)), generator=torch.Generator(device).manual_seed(0), device=device)
    for start in range(0, len(pool), len(tile)):
        pool[start : start + len(tile)].copy_(tile[: len(pool) - start])
    return pool


def _arrays(pool: torch.Tensor, size: int, count: int) -> list[torch.Tensor]:
    """`count` arrays that make up a working set."""
    length = size // 4 // count // 16 * 16
    return [pool[start : start + length] for start in range(0, count * (length + _APART // 4), length + _APART // 4)]


def _kernel(kind: str, pool: torch.Tensor, size: int) -> _Kernel:
    if kind == "copy":
        source, target = _arrays(pool, size, 2)
        target.fill_(-1.0)
        return _Kernel(lambda: target.copy_(source), lambda: torch.equal(target, source), 2 * source.nbytes)
    if kind == "triad":
        a, b, c = _arrays(pool, size, 3)
        c.fill_(-1.0)
        return _Kernel(lambda: torch.add(a, b, alpha=_ALPHA, out=c), lambda: _agree(c, a, b), 3 * a.nbytes, 2 * len(a))
    if kind == "read":
        return _reading(pool, size)
    (target,) = _arrays(pool, size, 1)
    return _Kernel(lambda: target.fill_(_ALPHA), lambda: all(x == _ALPHA for x in torch.aminmax(target)), target.nbytes)


def _reading(pool: torch.Tensor, size: int) -> _Kernel:
    """Sums. On a CPU each thread sums a block of its own, over and over where it is small."""
    threads = torch.get_num_threads() if pool.device.type == "cpu" else 1
    length = max(16, size // 4 // threads // 16 * 16)
    blocks = pool[: threads * length].view(threads, 1, length)
    passes = max(1, LEAST_READ_BYTES // blocks.nbytes) if pool.device.type == "cpu" else 1
    repeated, sums = blocks.expand(threads, passes, length), pool.new_zeros(threads, passes)

    def correct() -> bool:
        pieces = blocks.flatten(1).split(_TILE, dim=1)  # all at once in double would take twice the memory again
        zero = _double(sums.new_zeros(()))
        exact = sum((_double(piece).sum(dim=1, keepdim=True) for piece in pieces), zero)
        return torch.allclose(_double(sums), exact.expand_as(sums), rtol=1e-4)

    return _Kernel(lambda: torch.sum(repeated, dim=2, out=sums), correct, passes * blocks.nbytes, passes * blocks.numel())


def _agree(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether c is the triad of a and b, at a thousand places in double precision."""
    positions = torch.linspace(0, len(c) - 1, min(len(c), 1024), dtype=torch.float64).long().to(c.device)
    exact = _double(a[positions]) + _ALPHA * _double(b[positions])
    return torch.allclose(_double(c[positions]), exact, rtol=1e-6)


def _double(tensor: torch.Tensor) -> torch.Tensor:
    """In double precision; on the host, if the device has none."""
    return (tensor.cpu() if backend_of(tensor.device).why_no_float64() else tensor).double()
