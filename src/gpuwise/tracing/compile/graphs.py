"""The two graphs of a compiled part, run kernel by kernel on fake tensors: what they allocate and launch is recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch._functorch import partitioners
from torch.utils._pytree import tree_map

from gpuwise.tracing.compile.fusion import Schedule, schedule
from gpuwise.tracing.compile.lowering import CompiledKernel, Value, is_view
from gpuwise.tracing.describe import Numbers
from gpuwise.tracing.recorder import BACKWARD, FORWARD, RECOMPUTE, Recorder


class Graphs:
    """The compilers that AOTAutograd hands its graphs to. They serve all parts of a model that are alike."""

    def __init__(self, recorder: Recorder, held: int):
        """held: how many of the first inputs are the model's own, and stay."""
        self.recorder, self.held = recorder, held
        self.part = ""  # path of the part whose forward runs now: set by the caller
        self.made = False  # the forward's graph is there
        self.part_of: dict[int, str] = {}  # by the sequence number of the autograd node that runs the part's backward
        self._of_forward: frozenset[str] = frozenset()

    def partition(self, joint: fx.GraphModule, inputs: Any, **options: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        """What Inductor's partitioner keeps for backward. Random state is no tensor of the graph: CUDA has it in its
        generator."""
        held = {"static_lifetime_input_indices": list(range(self.held))}
        with replaced(partitioners, "has_recomputable_rng_ops", lambda graph: False):
            return partitioners.min_cut_rematerialization_partition(joint, inputs, compiler="inductor", **(options | held))

    def forward(self, gm: fx.GraphModule, example_inputs: Any) -> Run:
        self._of_forward = frozenset(node.name for node in gm.graph.nodes if node.op == "call_function")
        self.made = True
        return Run(gm, self, FORWARD, again=frozenset())

    def backward(self, gm: fx.GraphModule, example_inputs: Any) -> Run:
        return Run(gm, self, BACKWARD, again=self._of_forward)

    def running(self, phase: int) -> str:
        """Path of the part whose graph of this phase runs now."""
        if phase == BACKWARD:
            return self.part_of.pop(torch._C._current_autograd_node()._sequence_nr())
        self.part_of[torch.autograd._get_sequence_nr() - 1] = self.part  # the node was made just before
        return self.part


class Run:
    """Runs a graph kernel by kernel on fake tensors. again: names of the nodes whose results were computed before."""

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

    def __call__(self, arguments: list[Any]) -> list[Any]:
        part = self.graphs.running(self.phase)
        held = {self.plan.value_of[node]: value for node, value in zip(self.inputs, arguments, strict=True)}
        arguments.clear()
        held |= {self.plan.value_of[node]: value for node, value in self.constants.items()}
        used = {*self.plan.last_use, *(self.plan.value_of[n] for n in self.output.all_input_nodes)}
        for value in [value for value in held if value not in used]:
            del held[value]
        for position, kernel in enumerate(self.plan.kernels):
            self.recorder.place = self._place(kernel, part)
            if kernel.library is not None:
                self._run_library(kernel, kernel.library, held)
            else:
                self._run_loop(kernel, self.plan.stores[position], self.plan.donors[position], held)
            for value in self.dying[position]:
                held.pop(value, None)
        self.recorder.place = None
        return [self._tensor(item, held) for item in self.output.args[0]]

    def _place(self, kernel: CompiledKernel, part: str) -> tuple[int, int]:
        node = kernel.library or kernel.values[-1].node
        inside = node.meta.get("custom", {}).get("module", "")
        module = self.recorder.module_index(".".join(filter(None, (part, inside))))
        return (RECOMPUTE if node.name in self.again else self.phase), module

    def _run_library(self, kernel: CompiledKernel, node: fx.Node, held: dict[Value, Any]) -> None:
        args, kwargs = tree_map(lambda leaf: self._tensor(leaf, held), (node.args, node.kwargs))
        results = node.target(*args, **kwargs)  # type: ignore[operator]
        for value in kernel.values:
            held[value] = results if value.node is node else results[value.node.args[1]]

    def _run_loop(
        self, kernel: CompiledKernel, stored: tuple[Value, ...], donors: tuple[Value, ...], held: dict[Value, Any]
    ) -> None:
        """One generated kernel. An input that gives its memory to a result dies before that is born."""
        read = sum(kernel.reads.values())
        shapes = [value.node.meta["val"] for value in stored]
        for value in donors:
            del held[value]
        written = sum(shape.numel() * shape.element_size() for shape in shapes)
        numbers: Numbers = (0, read, written, 0, 1, 0, 0, 0, 0, 0)
        dtype = str(kernel.values[-1].node.meta["val"].dtype).removeprefix("torch.")
        kind = "scatter" if kernel.values[0].scatters else "reduction" if kernel.reduced > 1 else "elementwise"
        made = self.recorder.record_kernel(f"fused.{kind}", kind, dtype, numbers, lambda: [empty(s) for s in shapes])
        held.update(zip(stored, made, strict=True))

    def _tensor(self, item: Any, held: dict[Value, Any]) -> Any:
        """A node's tensor: what is held, or the view of it that the graph takes."""
        if not isinstance(item, fx.Node):
            return item
        if not (item.op == "call_function" and is_view(item)):
            return held.get(self.plan.value_of[item]) if item in self.plan.value_of else item.meta.get("val")
        args, kwargs = tree_map(lambda leaf: self._tensor(leaf, held), (item.args, item.kwargs))
        return item.target(*args, **kwargs)  # type: ignore[operator]


def empty(like: torch.Tensor) -> torch.Tensor:
    """A tensor of the same layout, on the same device."""
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """The attribute has this value inside the context."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
