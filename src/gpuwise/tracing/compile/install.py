"""A compiled model under recording: the kernels and memory of torch.compile, without compiling anything.

Each part that is compiled (`runtime.compiling`) is traced as one graph, forward and backward, by AOTAutograd with Inductor's
decompositions; Inductor's min-cut partitioner chooses what is kept for backward; `fusion` simulates which kernels Inductor
makes of the two graphs. Those kernels are recorded. Parts that are alike are traced once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count
from typing import TypeAlias

import torch
import torch._inductor.lowering  # that of pooling asks for it by name
from torch import Tensor, nn
from torch._dispatch.python import enable_python_dispatcher
from torch._functorch.aot_autograd import aot_function
from torch._inductor.decomposition import select_decomp_table
from torch.fx import traceback
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import CheckpointPolicy

from gpuwise.notes.job import assumed_one_graph, not_one_graph
from gpuwise.runtime.build.compiling import compiled_parts
from gpuwise.tracing.compile.graphs import Graphs, empty
from gpuwise.tracing.patching import patched
from gpuwise.tracing.recorder import Recorder

# Parameters and buffers of a part by name, and the arguments of its forward.
Inputs: TypeAlias = tuple[dict[str, Tensor], tuple[object, ...], dict[str, object]]


def install(model: nn.Module, recorder: Recorder) -> None:
    """Makes the parts that `apply_compile` compiles run as their compiled graphs.

    A part that cannot be traced as one graph runs as it is, with a note.
    """
    parts, paths = compiled_parts(model), {module: path for path, module in model.named_modules()}
    traced: dict[Hashable, _Traced | None] = {}
    for part, kind in zip(parts, _kinds(parts), strict=True):
        setattr(part, "forward", _Compiled(part, paths[part], kind, recorder, traced))  # noqa: B010 (typed as a method)


class _Compiled:
    """The forward of one part, traced once for each kind of part and of input.

    Arguments:
        module: the part.
        path: of the part in the model.
        kind: what it has in common with parts that are alike.
        recorder: of the step.
        traced: the functions so far, which parts share; None for those that are no single graph.
    """

    def __init__(
        self, module: nn.Module, path: str, kind: Hashable, recorder: Recorder, traced: dict[Hashable, _Traced | None]
    ):
        self.module, self.path, self.kind, self.forward = module, path, kind, module.forward
        self.recorder, self.traced = recorder, traced

    def __call__(self, *args: object, **kwargs: object) -> object:
        state = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        inputs = (state, args, kwargs)
        mode = (torch.is_grad_enabled(), self.module.training)
        key = (self.kind, mode, tuple(_signature(leaf) for leaf in tree_leaves(inputs)))
        if key not in self.traced:
            self.traced[key] = self._trace(inputs)
        traced = self.traced[key]
        return self.forward(*args, **kwargs) if traced is None else traced(self.path, inputs)

    def _trace(self, inputs: Inputs) -> _Traced | None:
        """The part on inputs like these; None where PyTorch refuses to take it as one graph."""
        state, args, kwargs = inputs
        traced, before = _Traced(self._functional, self.recorder, len(state)), dict(self.recorder.answers.notes)
        try:
            with _tracing(self.module, self.recorder):
                traced(self.path, (state, *tree_map(_like, (args, kwargs))))  # the first call; its graph keeps its inputs
        except RuntimeError as error:  # what PyTorch raises where values or unknown operators decide
            if traced.graphs.traced:
                raise
            self.recorder.answers.notes = before
            self.recorder.answers.note(not_one_graph(problem=_first_line(error)))
            return None
        self.recorder.answers.note(assumed_one_graph())
        return traced

    def _functional(self, state: dict[str, Tensor], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        with _reparametrize_module(self.module, state, tie_weights=True):
            return self.forward(*args, **kwargs)


class _Traced:
    """A function that the first call traces; later calls, of any part that is alike, run its graphs."""

    def __init__(self, function: Callable[..., object], recorder: Recorder, static: int):
        """static: how many of its first inputs are the model's own."""
        self.graphs = Graphs(recorder, static)
        self._call = aot_function(
            function,
            fw_compiler=self.graphs.forward,
            bw_compiler=self.graphs.backward,
            partition_fn=self.graphs.partition,
            decompositions=select_decomp_table(),
        )

    def __call__(self, path: str, inputs: Inputs) -> object:
        self.graphs.part = path
        return self._call(*inputs)


def _kinds(parts: list[nn.Module]) -> list[Hashable]:
    """For each part what a compiler sees of it beside its tensors: classes and plain attributes, without those that only number
    the parts. Parts that are alike have equal kinds."""
    attributes = [
        {
            (path, name): value
            for path, module in part.named_modules()
            for name, value in [("class", type(module)), *vars(module).items()]
            if name == "class" or type(value) in (bool, int, float, str)
        }
        for part in parts
    ]
    numbers = {key for key in attributes[0] if all(of_part.get(key) == n for n, of_part in enumerate(attributes))}
    return [tuple(item for item in of_part.items() if item[0] not in numbers) for of_part in attributes]


def _like(leaf: object) -> object:
    return empty(leaf).requires_grad_(leaf.requires_grad) if isinstance(leaf, Tensor) else leaf


def _signature(leaf: object) -> Hashable:
    return (leaf.shape, leaf.dtype, leaf.requires_grad) if isinstance(leaf, Tensor) else repr(leaf)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")[:120]


@contextmanager
def _tracing(model: nn.Module, recorder: Recorder) -> Iterator[None]:
    """Inside, nothing is recorded; nodes get the path of their module, and a tag where they are checkpointed."""
    paths = {module: path for path, module in model.named_modules()}
    regions: list[AbstractContextManager[object]] = []

    def enter(module: nn.Module, args: object) -> None:
        path = paths.get(module)
        regions.append(nullcontext() if path is None else traceback.annotate({"module": path}))
        regions[-1].__enter__()

    def leave(module: nn.Module, args: object, output: object) -> None:
        regions.pop().__exit__(None, None, None)

    # Hooks, because the tracer calls modules in a way of its own.
    hooks = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)]
    paused, recorder.paused = recorder.paused, True
    try:
        with (
            warnings.catch_warnings(),
            enable_python_dispatcher(),
            traceback.preserve_node_meta(),
            patched(checkpoint, "_checkpoint_without_reentrant_generator", _tagged),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        recorder.paused = paused
        for hook in hooks:
            hook.remove()


_regions = count()


def _tagged(
    function: object,
    preserve_rng_state: bool,
    context_fn: Callable[[], tuple[AbstractContextManager[object], AbstractContextManager[object]]],
    *rest: object,
    **kwargs: object,
) -> Generator[None]:
    """A checkpointed region as the partitioner wants it: its nodes say whether to keep their results
    (torch/_higher_order_ops/wrap.py TagActivationCheckpoint)."""
    forward, _ = context_fn()
    before, region = dict(traceback.current_meta), next(_regions)
    if isinstance(forward, TorchDispatchMode):  # of a selective region: it tags each node by its policy
        setattr(forward, "ac_graph_id", region)  # noqa: B010
    traceback.current_meta |= {"recompute": CheckpointPolicy.PREFER_RECOMPUTE, "ac_graph_id": region}
    try:
        with forward:
            yield
    finally:
        for tag in ("recompute", "ac_graph_id"):
            traceback.current_meta.pop(tag, None)
            if tag in before:
                traceback.current_meta[tag] = before[tag]
