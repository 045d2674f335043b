"""The values that Inductor stores of a graph: a simulation of its rules.

A value that is computed element by element is not stored: its readers compute it again inside their own loops, until one of
Inductor's reasons to store it applies (torch/_inductor/graph.py GraphLowering.run_node, torch/_inductor/ir.py StorageBox).
Reductions are stored. Matrix products, convolutions, attention and everything unknown run as kernels of a library, which
read and write stored values.
"""

from __future__ import annotations

import operator
from math import prod

import torch
from torch import fx

from gpuwise.tracing.compile.values import (
    GATHERS,
    HEAVY,
    REDUCTIONS,
    SCATTERS,
    CompiledKernel,
    Value,
    is_pointwise,
    is_view,
    node_bytes,
    operator_name,
)

# From torch/_inductor/config.py: realize_reads_threshold; then, for a GPU and for a CPU,
# _realize_acc_reads_threshold_default and realize_cpu_acc_reads_threshold, _realize_opcount_threshold_default and
# realize_cpu_opcount_threshold.
READS_ON_REUSE = 4
READS_AT_MOST = {False: 8, True: 12}
OPERATORS_AT_MOST = {False: 30, True: 50}

# A graph's operator is about two of a loop's: it and the constant, conversion or load beside it.
OPERATORS_A_NODE = 2


def lower(graph: fx.Graph, *, on_cpu: bool) -> tuple[list[CompiledKernel], dict[fx.Node, Value], list[Value]]:
    """The kernels of a graph before any are fused, in order; the value of each tensor, or of what it is a view of; and the
    values that the graph returns. Nodes hold fake tensors in meta["val"]."""
    lowering = _Lowering(on_cpu)
    outputs: dict[Value, None] = {}
    for node in graph.nodes:
        if node.op == "output":
            outputs = dict.fromkeys(lowering.store(value) for value in lowering.values_in(node))
        else:
            lowering.add(node)
    return lowering.kernels, lowering.value_of, list(outputs)


class _Lowering:
    """Walks the graph in order and decides what is stored, and when (GraphLowering.run_node)."""

    def __init__(self, on_cpu: bool):
        self.on_cpu = on_cpu
        self.value_of: dict[fx.Node, Value] = {}
        self.kernels: list[CompiledKernel] = []

    def add(self, node: fx.Node) -> None:
        if node.op != "call_function":
            self.value_of[node] = Value(node, stored=True)
        elif is_view(node):
            self.value_of[node] = self.value_of[_first_node(node)]
            self._consider(node)
        elif node.target is operator.getitem:
            self._add_item(node)
        elif not isinstance(node.meta.get("val"), torch.Tensor):
            if not (is_pointwise(node) or operator_name(node) in REDUCTIONS):
                self._run_library(node)
        elif operator_name(node) in SCATTERS:
            self._scatter(node)
        elif operator_name(node) in REDUCTIONS or is_pointwise(node):
            self._compute(node, node)
        else:
            self._run_library(node)

    def store(self, value: Value) -> Value:
        if not value.stored:
            value.stored = True
            self.kernels.append(
                CompiledKernel([value], reads=value.reads, size=value.size, reduced=value.reduced, trailing=value.trailing)
            )
        return value

    def values_in(self, node: fx.Node) -> list[Value]:
        return [self.value_of[n] for n in node.all_input_nodes if n in self.value_of]

    def _add_item(self, node: fx.Node) -> None:
        """One of several results: of a loop, which makes each on its own, or of a library's kernel."""
        whole = _first_node(node)
        if is_pointwise(whole) or operator_name(whole) in REDUCTIONS:
            self._compute(node, whole)
        elif isinstance(node.meta.get("val"), torch.Tensor):
            self.value_of[node] = Value(node, stored=True)
            kernel = next(k for k in reversed(self.kernels) if k.library is whole)
            kernel.values.append(self.value_of[node])

    def _run_library(self, node: fx.Node) -> None:
        reads = {self.store(value): 0 for value in self.values_in(node)}
        kernel = CompiledKernel([], library=node, reads=reads)
        if isinstance(node.meta.get("val"), torch.Tensor):
            self.value_of[node] = Value(node, stored=True)
            kernel.values.append(self.value_of[node])
        self.kernels.append(kernel)

    def _compute(self, node: fx.Node, call: fx.Node) -> None:
        """A value of a loop, which loads stored values and computes others. call: the node of the operator."""
        value = Value(node, stored=False, size=prod(node.meta["val"].shape))
        if operator_name(call) in REDUCTIONS:
            source = _first_node(call).meta["val"]
            value.reduced = max(1, source.numel() // max(value.size, 1))
            value.trailing = _reduces_trailing(call, source)
        self._load(value, call)
        value.heavy = value.heavy or operator_name(call) in HEAVY
        self.value_of[node] = value
        if value.reduced > 1:
            self.store(value)
        self._consider(node)

    def _scatter(self, node: fx.Node) -> None:
        """Adds into a copy of its first argument: a stored one that dies here, or one that is made for this."""
        value = Value(node, stored=False, scatters=True, size=prod(node.meta["val"].shape))
        self._load(value, node)
        self.value_of[node] = self.store(value)

    def _load(self, value: Value, call: fx.Node) -> None:
        value.operators += OPERATORS_A_NODE
        gathered = _first_node(call) if operator_name(call) in GATHERS and call.all_input_nodes else None
        for source in call.all_input_nodes:
            read = self.value_of.get(source)
            if read is None:
                continue
            if read.stored:
                loaded = min(node_bytes(source), node_bytes(read.node))  # an expanded view is read once
                if source is gathered:  # reads the rows it takes, not the table
                    loaded = min(loaded, node_bytes(call))
                value.reads[read] = max(value.reads.get(read, 0), loaded)
            else:
                value.reads |= read.reads
                value.operators += read.operators
                value.heavy |= read.heavy

    def _consider(self, node: fx.Node) -> None:
        """Stores a value with several readers that is not cheap to compute again, or whose loop has grown too long."""
        value = self.value_of[node]
        if value.stored:
            return
        reads, too_long = len(value.reads), value.operators > OPERATORS_AT_MOST[self.on_cpu]
        if len(node.users) > 1:
            for_library = any(_runs_in_library(user) for user in node.users) and reads > 1
            for_output = any(user.op == "output" for user in node.users) and reads > 0
            dear = too_long or reads > READS_ON_REUSE or (self.on_cpu and value.heavy)
            if for_library or for_output or dear:
                self.store(value)
        if is_view(node) and any(user.op == "output" for user in node.users):
            self.store(value)
        if (reads > READS_AT_MOST[self.on_cpu] or too_long) and reads > 1:
            self.store(value)


def _runs_in_library(node: fx.Node) -> bool:
    return operator_name(node) in ("mm", "bmm", "convolution", "convolution_backward", "_int_mm", "as_strided")


def _first_node(node: fx.Node) -> fx.Node:
    return node.all_input_nodes[0]


def _reduces_trailing(call: fx.Node, source: torch.Tensor) -> bool:
    dims = call.args[1] if len(call.args) > 1 else None
    if isinstance(dims, int):
        dims = [dims]
    if not isinstance(dims, (list, tuple)) or not dims:
        return True
    kept = {d % max(source.dim(), 1) for d in dims if isinstance(d, int)}
    rest = [d for d in range(source.dim()) if d not in kept and source.shape[d] != 1]
    return not rest or max(rest) < min(d for d in kept)
