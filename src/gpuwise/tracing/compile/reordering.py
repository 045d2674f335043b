"""The order in which Inductor runs a graph's kernels: the one that its estimate says takes least memory.

Of the orders it tries (torch/_inductor/memory.py reorder_for_peak_memory), the one as in the graph and
topological_sort_lpmf ("least peak memory first"); breadth first and depth first are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from gpuwise.tracing.compile.values import CompiledKernel, Value, node_bytes

_NEVER_FREED = ("primals_", "arg", "fwd_rng_state", "bwd_rng_state", "tangents")  # is_nonfreeable_buffers


def reordered(kernels: Sequence[CompiledKernel], outputs: Collection[Value]) -> list[CompiledKernel]:
    """The kernels in their own order or the better one.

    Arguments:
        kernels: in an order in which they may run.
        outputs: values that are never freed here.
    """
    lives = _Lives(kernels, outputs)
    least_first = lives.least_first()
    return least_first if lives.peak_bytes(least_first) < lives.peak_bytes(kernels) else list(kernels)


class _Lives:
    """The values that each kernel allocates, and the kernels that read them."""

    def __init__(self, kernels: Sequence[CompiledKernel], outputs: Collection[Value]):
        self.kernels, self.outputs = kernels, set(outputs)
        maker = {value: kernel for kernel in kernels for value in kernel.values}
        self.reads = {k: [v for v in k.reads if maker.get(v) is not k and _may_be_freed(v)] for k in kernels}
        self.output_bytes = {k: sum(node_bytes(v.node) for v in k.values) for k in kernels}
        self.needs = {k: {maker[v] for v in self.reads[k] if v in maker} for k in kernels}
        self.readers = Counter(v for reads in self.reads.values() for v in reads)
        self.readers.update(self.outputs)
        self.input_bytes = sum(node_bytes(v.node) for v in self.readers if v not in maker)

    def peak_bytes(self, order: Sequence[CompiledKernel]) -> int:
        """Largest sum of live values, without those that are never freed (estimate_peak_memory)."""
        left, live_bytes, peak_bytes = self.readers.copy(), self.input_bytes, 0
        for kernel in order:
            live_bytes += self.output_bytes[kernel]
            peak_bytes = max(peak_bytes, live_bytes)
            live_bytes -= self._freed_bytes(kernel, left)
            left.subtract(self.reads[kernel])
        return peak_bytes

    def least_first(self) -> list[CompiledKernel]:
        """Of the kernels that may run, always the one after which least is alive, among those that do not raise the peak
        so far; where all raise it, the smallest."""
        left, live_bytes = self.readers.copy(), self.input_bytes
        peak_bytes = max(live_bytes, sum(node_bytes(v.node) for v in self.outputs))
        position = {kernel: number for number, kernel in enumerate(self.kernels)}
        missing = {kernel: len(needs) for kernel, needs in self.needs.items()}
        needed_by: dict[CompiledKernel, list[CompiledKernel]] = {kernel: [] for kernel in self.kernels}
        for kernel, needs in self.needs.items():
            for other in needs:
                needed_by[other].append(kernel)
        ready, order = [kernel for kernel in self.kernels if not missing[kernel]], []
        while ready:
            room_bytes = peak_bytes - live_bytes

            def cost(kernel: CompiledKernel, room_bytes: int = room_bytes) -> tuple[int, int, int]:
                output_bytes = self.output_bytes[kernel]
                raises = output_bytes if output_bytes > room_bytes else 0
                return raises, output_bytes - self._freed_bytes(kernel, left), position[kernel]

            chosen = min(ready, key=cost)
            ready.remove(chosen)
            order.append(chosen)
            live_bytes += self.output_bytes[chosen]
            peak_bytes = max(peak_bytes, live_bytes)
            live_bytes -= self._freed_bytes(chosen, left)
            left.subtract(self.reads[chosen])
            for kernel in needed_by[chosen]:
                missing[kernel] -= 1
                if not missing[kernel]:
                    ready.append(kernel)
        return order

    def _freed_bytes(self, kernel: CompiledKernel, left: Counter[Value]) -> int:
        """Bytes of the values that it is the last to read, and of those it makes that no kernel reads."""
        last = sum(node_bytes(v.node) for v in self.reads[kernel] if left[v] == 1 and v not in self.outputs)
        return last + sum(node_bytes(v.node) for v in kernel.values if not self.readers[v])


def _may_be_freed(value: Value) -> bool:
    return not (value.node.op == "placeholder" and str(value.node.target).startswith(_NEVER_FREED))
