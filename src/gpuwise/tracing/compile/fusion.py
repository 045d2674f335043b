"""The kernels Inductor makes of a graph, and the values stored between them: a simulation of its rules.

Stored values whose loops run over the same sizes are fused into one kernel (torch/_inductor/scheduler.py can_fuse,
torch/_inductor/codegen/simd.py can_fuse); a value that only its own kernel reads is never allocated.

Left out: loops that are turned around to fit, reductions split in two, and templates that fuse a product's epilogue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch import fx

from gpuwise.tracing.compile.lowering import lower
from gpuwise.tracing.compile.reordering import reordered
from gpuwise.tracing.compile.values import CompiledKernel, Value, may_overwrite

KERNEL_AT_MOST = 64  # values a kernel makes: max_fusion_size in torch/_inductor/config.py
FUSION_WINDOW = 64  # kernels further apart are not fused (Scheduler.are_long_distant_nodes)
LIVES_FOR_LOADS = 32  # of Scheduler.can_fusion_increase_peak_memory


@dataclass(frozen=True)
class Schedule:
    """The kernels of a compiled graph.

    Attributes:
        kernels: in the order they run.
        stores: what each of them allocates.
        donors: the dying inputs of each whose memory its results take over.
        value_of: the value that each tensor of the graph is, or is a view of.
        last_use: the position in kernels after which a value is dead; absent where it is returned.
    """

    kernels: tuple[CompiledKernel, ...]
    stores: tuple[tuple[Value, ...], ...]
    donors: tuple[tuple[Value, ...], ...]
    value_of: dict[fx.Node, Value]
    last_use: dict[Value, int]


def schedule(graph: fx.Graph, *, on_cpu: bool) -> Schedule:
    """The kernels of a graph of aten and prims operators whose nodes hold fake tensors in meta["val"]."""
    unfused, value_of, outputs = lower(graph, on_cpu=on_cpu)
    kernels = reordered(_Fusion(outputs).fused(unfused), outputs)
    readers: dict[Value, set[int]] = {value: set() for kernel in kernels for value in kernel.values}
    for position, kernel in enumerate(kernels):
        for value in kernel.reads:
            readers.setdefault(value, set()).add(position)
    stores = [
        [v for v in kernel.values if kernel.library is not None or v in outputs or readers[v] - {position}]
        for position, kernel in enumerate(kernels)
    ]
    last_use = {value: max(positions, default=0) for value, positions in readers.items()}
    for position, kernel in enumerate(kernels):
        last_use |= {value: max(last_use[value], position) for value in kernel.values}
    for value in outputs:
        last_use.pop(value, None)
    donors = [
        _donors(kernel, stored, {v for v in kernel.reads if v not in kernel.values and last_use.get(v) == position})
        for position, (kernel, stored) in enumerate(zip(kernels, stores, strict=True))
    ]
    return Schedule(tuple(kernels), tuple(map(tuple, stores)), tuple(map(tuple, donors)), value_of, last_use)


def _donors(kernel: CompiledKernel, stored: Iterable[Value], dying: set[Value]) -> list[Value]:
    """Inputs of a generated kernel that its results overwrite: of equal size, and read by nothing in it but that result
    and what that is computed from (SchedulerNode.decide_inplace_update)."""
    if not kernel.fuses:
        return []
    donors: list[Value] = []
    for value in stored:
        before = {value}
        for earlier in reversed(kernel.values):
            if any(earlier in later.reads for later in before):
                before.add(earlier)
        donor = next(
            (
                source
                for source in value.reads
                if source in dying
                and source not in donors
                and may_overwrite(source, value)
                and all(reader in before for reader in kernel.values if source in reader.reads)
            ),
            None,
        )
        if donor is not None:
            donors.append(donor)
    return donors


class _Fusion:
    """Joins each kernel with those whose values it reads or that read the same values, most bytes in common first."""

    def __init__(self, outputs: Iterable[Value]):
        self.uses = Counter(list(outputs))
        self.kernel_of: dict[Value, CompiledKernel] = {}
        self.readers: dict[Value, list[CompiledKernel]] = {}
        self.first_position: dict[CompiledKernel, int] = {}
        self._merged: dict[CompiledKernel, CompiledKernel] = {}

    def fused(self, kernels: Sequence[CompiledKernel]) -> list[CompiledKernel]:
        self.uses.update(value for kernel in kernels for value in kernel.reads)
        for position, kernel in enumerate(kernels):
            kernel.position = self.first_position[kernel] = position
            self.kernel_of |= dict.fromkeys(kernel.values, kernel)
            if kernel.fuses:
                self._join_near(kernel)
            for value in kernel.reads:
                self.readers.setdefault(value, []).append(kernel)
        alive = [kernel for kernel in kernels if kernel not in self._merged]
        return _in_order(sorted(alive, key=self.first_position.__getitem__), self._sources)

    def _join_near(self, kernel: CompiledKernel) -> None:
        """Joins the kernel, the last one so far, with all that fit."""
        near = [k for v in kernel.reads for k in [self.kernel_of.get(v), *self.readers.get(v, [])[-FUSION_WINDOW:]] if k]
        others = dict.fromkeys(self._now(k) for k in near)
        current = kernel
        for other in sorted(others, key=lambda k: -_common(k, kernel)):
            if self._now(other) is current or not self._may_join(self._now(other), current):
                continue
            other, joined = self._now(other), current
            self._merged[joined], current = other, other
            _join(other, joined)
            self.first_position[other] = min(self.first_position[other], self.first_position[joined])

    def _may_join(self, a: CompiledKernel, b: CompiledKernel) -> bool:
        return (
            a.fuses
            and b.fuses
            and b.position - self.first_position[a] <= FUSION_WINDOW
            and _fits(a, b)
            and not self._lengthens_lives(a, b)
            and not self._depends(b, a)
            and not self._depends(a, b)
        )

    def _lengthens_lives(self, a: CompiledKernel, b: CompiledKernel) -> bool:
        """Whether fusion keeps much more alive than it saves (Scheduler.can_fusion_increase_peak_memory): both have
        inputs of one size that nobody else reads, so that one's could have been the other's memory."""
        alone = [{size for value, size in kernel.reads.items() if self.uses[value] == 1} for kernel in (a, b)]
        return sum(alone[0] & alone[1]) > LIVES_FOR_LOADS * _common(a, b)

    def _now(self, kernel: CompiledKernel) -> CompiledKernel:
        while kernel in self._merged:
            kernel = self._merged[kernel]
        return kernel

    def _sources(self, kernel: CompiledKernel) -> set[CompiledKernel]:
        return {self._now(self.kernel_of[v]) for v in kernel.reads if v in self.kernel_of} - {kernel}

    def _depends(self, kernel: CompiledKernel, on: CompiledKernel) -> bool:
        """Whether kernel needs `on` by way of a third."""
        seen: set[CompiledKernel] = set()
        waiting = list(self._sources(kernel) - {on})
        while waiting:
            source = waiting.pop()
            if source is on:
                return True
            if source not in seen and source.position >= self.first_position[on]:
                seen.add(source)
                waiting += self._sources(source)
        return False


def _join(kernel: CompiledKernel, other: CompiledKernel) -> None:
    kernel.values += other.values
    kernel.reads = {**kernel.reads, **other.reads}
    kernel.position = max(kernel.position, other.position)
    if other.reduced > 1:
        kernel.size, kernel.reduced, kernel.trailing = other.size, other.reduced, other.trailing


def _fits(a: CompiledKernel, b: CompiledKernel) -> bool:
    """Whether their loops run over the same sizes, or one reduces what the other runs over."""
    if len(a.values) + len(b.values) > KERNEL_AT_MOST:
        return False
    if a.reduced > 1 and b.reduced > 1:
        return (a.size, a.reduced, a.trailing) == (b.size, b.reduced, b.trailing)
    if a.reduced == b.reduced:
        return a.size == b.size
    reduction, pointwise = (a, b) if a.reduced > 1 else (b, a)
    whole = reduction.size * reduction.reduced if reduction.trailing else reduction.size
    return pointwise.size in (reduction.size, whole)


def _common(a: CompiledKernel, b: CompiledKernel) -> int:
    """Bytes that one kernel in place of two does not load (Scheduler.score_fusion_memory)."""
    values = {*a.values, *b.values}
    shared = sum(size for value, size in b.reads.items() if value in a.reads or value in values)
    return shared + sum(size for value, size in a.reads.items() if value in values)


def _in_order(
    kernels: list[CompiledKernel], sources: Callable[[CompiledKernel], Iterable[CompiledKernel]]
) -> list[CompiledKernel]:
    """Each kernel after those it needs, else as in the graph (Scheduler.topological_sort_schedule)."""
    done: dict[CompiledKernel, None] = {}
    for kernel in kernels:
        waiting = [kernel]
        while waiting:
            missing = [] if waiting[-1] in done else [k for k in sources(waiting[-1]) if k not in done]
            if missing:
                waiting += sorted(missing, key=lambda k: -k.position)
            else:
                done[waiting.pop()] = None
    return list(done)
