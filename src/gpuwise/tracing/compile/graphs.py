"""The two graphs of a compiled part, run kernel by kernel on fake tensors, which records their launches and memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx
from torch._functorch import partitioners
from torch.utils._pytree import tree_map

from gpuwise.trace import KINDS, OperationRow, OperationValues
from gpuwise.tracing.compile.fusion import Schedule, schedule
from gpuwise.tracing.compile.values import CompiledKernel, Value, is_view
from gpuwise.tracing.describe import dtype_name
from gpuwise.tracing.patching import patched
from gpuwise.tracing.positions import Origin
from gpuwise.tracing.recorder import BACKWARD, FORWARD, RECOMPUTE, Recorder

Live: TypeAlias = dict[Value, Tensor]  # the values that are alive, with their tensors


class Graphs:
    """The compilers that AOTAutograd hands its graphs to. They serve all parts of a model that are alike.

    Arguments:
        recorder: of the step.
        static: how many of the first inputs are the model's own, and stay.

    Attributes:
        part: path of the part whose forward runs now; set by the caller.
        traced: whether there is a graph of the forward.
    """

    def __init__(self, recorder: Recorder, static: int):
        self.recorder, self.static = recorder, static
        self.part = ""
        self.traced = False
        self.part_of: dict[int, str] = {}  # by the sequence number of the autograd node that runs the part's backward
        self._of_forward: frozenset[str] = frozenset()

    def partition(self, joint: fx.GraphModule, inputs: object, **options: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        """The graphs of forward and backward as Inductor's partitioner divides them.

        Random state is no tensor of the graph: CUDA has it in its generator.
        """
        static = {"static_lifetime_input_indices": list(range(self.static))}
        with patched(partitioners, "has_recomputable_rng_ops", lambda graph: False):
            return partitioners.min_cut_rematerialization_partition(joint, inputs, compiler="inductor", **(options | static))

    def forward(self, gm: fx.GraphModule, example_inputs: Sequence[object]) -> Run:
        self._of_forward = frozenset(node.name for node in gm.graph.nodes if node.op == "call_function")
        self.traced = True
        return Run(gm, self, FORWARD, again=frozenset())

    def backward(self, gm: fx.GraphModule, example_inputs: Sequence[object]) -> Run:
        return Run(gm, self, BACKWARD, again=self._of_forward)

    def running(self, phase: int) -> str:
        """Path of the part whose graph of this phase runs now."""
        if phase == BACKWARD:
            return self.part_of.pop(torch._C._current_autograd_node()._sequence_nr())
        self.part_of[torch.autograd._get_sequence_nr() - 1] = self.part  # the node was made just before
        return self.part


class Run:
    """Runs a graph kernel by kernel on fake tensors.

    Arguments:
        graph: of aten and prims operators.
        graphs: whose graph it is.
        phase: FORWARD or BACKWARD.
        again: names of the nodes whose results were computed before.
    """

    _boxed_call = True  # AOTAutograd hands its references over: the list of arguments is emptied

    def __init__(self, graph: fx.GraphModule, graphs: Graphs, phase: int, *, again: frozenset[str]):
        self.graphs, self.recorder, self.phase, self.again = graphs, graphs.recorder, phase, again
        self.plan: Schedule = schedule(graph.graph, on_cpu=self.recorder.device_type == "cpu")
        self.inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self.constants = {node: getattr(graph, str(node.target)) for node in graph.graph.nodes if node.op == "get_attr"}
        self.output = next(node for node in graph.graph.nodes if node.op == "output")
        self.dying: list[list[Value]] = [[] for _ in self.plan.kernels]
        for value, position in self.plan.last_use.items():
            self.dying[position].append(value)

    def __call__(self, arguments: list[Tensor]) -> list[object]:
        part = self.graphs.running(self.phase)
        live = {self.plan.value_of[node]: tensor for node, tensor in zip(self.inputs, arguments, strict=True)}
        arguments.clear()
        live |= {self.plan.value_of[node]: tensor for node, tensor in self.constants.items()}
        used = {*self.plan.last_use, *(self.plan.value_of[n] for n in self.output.all_input_nodes)}
        for value in [value for value in live if value not in used]:
            del live[value]
        for position, kernel in enumerate(self.plan.kernels):
            self.recorder.origin = self._origin(kernel, part)
            if kernel.library is not None:
                self._run_library(kernel, kernel.library, live)
            else:
                self._run_loop(kernel, self.plan.stores[position], self.plan.donors[position], live)
            for value in self.dying[position]:
                live.pop(value, None)
        self.recorder.origin = None
        return [self._resolve(item, live) for item in self.output.args[0]]

    def _origin(self, kernel: CompiledKernel, part: str) -> Origin:
        node = kernel.library or kernel.values[-1].node
        inside = node.meta.get("custom", {}).get("module", "")
        module = self.recorder.modules.index(".".join(filter(None, (part, inside))))
        return Origin(RECOMPUTE if node.name in self.again else self.phase, module)

    def _run_library(self, kernel: CompiledKernel, node: fx.Node, live: Live) -> None:
        args, kwargs = tree_map(lambda leaf: self._resolve(leaf, live), (node.args, node.kwargs))
        results = node.target(*args, **kwargs)  # type: ignore[operator]
        for value in kernel.values:
            live[value] = results if value.node is node else results[value.node.args[1]]

    def _run_loop(self, kernel: CompiledKernel, stored: tuple[Value, ...], donors: tuple[Value, ...], live: Live) -> None:
        """One generated kernel. An input that gives its memory to a result dies before that is born."""
        read = sum(kernel.reads.values())
        shapes = [value.node.meta["val"] for value in stored]
        for value in donors:
            del live[value]
        written = sum(shape.numel() * shape.element_size() for shape in shapes)
        values = OperationValues(bytes_read=read, bytes_written=written, kernels=1)
        dtype = dtype_name(kernel.values[-1].node.meta["val"].dtype)
        kind = "scatter" if kernel.values[0].scatters else "reduction" if kernel.reduced > 1 else "elementwise"
        row = OperationRow(f"fused.{kind}", KINDS.index(kind), dtype, values)
        tensors = self.recorder.record_kernel(row, lambda: [empty(s) for s in shapes])
        live.update(zip(stored, tensors, strict=True))

    def _resolve(self, item: object, live: Live) -> object:
        """A node's tensor: the live one, or the view of it that the graph takes. What is no node stays as it is."""
        if not isinstance(item, fx.Node):
            return item
        if not (item.op == "call_function" and is_view(item)):
            return live.get(self.plan.value_of[item]) if item in self.plan.value_of else item.meta.get("val")
        args, kwargs = tree_map(lambda leaf: self._resolve(leaf, live), (item.args, item.kwargs))
        return item.target(*args, **kwargs)  # type: ignore[operator]


def empty(like: Tensor) -> Tensor:
    """A tensor of the same layout, on the same device."""
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
