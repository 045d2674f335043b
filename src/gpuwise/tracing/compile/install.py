"""A compiled model under recording: what torch.compile would store and launch, without compiling anything.

Each part that is compiled (`runtime.compiling`) is traced as one graph, forward and backward, by AOTAutograd with Inductor's
decompositions; Inductor's min-cut partitioner chooses what is kept for backward; `fusion` simulates which kernels Inductor
makes of the two graphs. Those are what is recorded. Parts that are alike are traced once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count
from typing import Any

import torch
import torch._inductor.lowering  # that of pooling asks for it by name
from torch import nn
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
from gpuwise.tracing.compile.graphs import Graphs, empty, replaced
from gpuwise.tracing.recorder import Recorder


def install(model: nn.Module, recorder: Recorder) -> None:
    """Makes the parts that `apply_compile` compiles run as their compiled graphs.

    A part that cannot be traced as one graph runs as it is, which the recorder's assumptions say.
    """
    parts, paths = compiled_parts(model), {module: path for path, module in model.named_modules()}
    traced: dict[Any, _Traced | None] = {}
    for part, kind in zip(parts, _kinds(parts), strict=True):
        setattr(part, "forward", _Compiled(part, paths[part], kind, recorder, traced))  # noqa: B010 (typed as a method)


class _Compiled:
    """The forward of one part, traced once for each kind of part and of input. path: the part's in the model."""

    def __init__(self, module: nn.Module, path: str, kind: Any, recorder: Recorder, traced: dict[Any, _Traced | None]):
        self.module, self.path, self.kind, self.forward = module, path, kind, module.forward
        self.recorder, self.traced = recorder, traced

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        state = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        given = (state, args, kwargs)
        mode = (torch.is_grad_enabled(), self.module.training)
        key = (self.kind, mode, tuple(_signature(leaf) for leaf in tree_leaves(given)))
        if key not in self.traced:
            self.traced[key] = self._trace(given)
        traced = self.traced[key]
        return self.forward(*args, **kwargs) if traced is None else traced(self.path, given)

    def _trace(self, given: Any) -> _Traced | None:
        """The part on inputs like these; None where PyTorch refuses to take it as one graph."""
        state, args, kwargs = given
        traced, notes = _Traced(self._functional, self.recorder, len(state)), dict(self.recorder.answers.notes)
        try:
            with _tracing(self.module, self.recorder):
                traced(self.path, (state, *tree_map(_like, (args, kwargs))))  # the first call; its graph keeps its inputs
        except RuntimeError as error:  # what PyTorch raises where values or unknown operators decide
            if traced.graphs.made:
                raise
            self.recorder.answers.notes = notes
            self.recorder.answers.note(not_one_graph(problem=_first_line(error)))
            return None
        self.recorder.answers.note(assumed_one_graph())
        return traced

    def _functional(self, state: Any, args: Any, kwargs: Any) -> Any:
        with _reparametrize_module(self.module, state, tie_weights=True):
            return self.forward(*args, **kwargs)


class _Traced:
    """A function whose first call traces it; then, and for what is like it, its graphs run."""

    def __init__(self, function: Callable[..., Any], recorder: Recorder, held: int):
        self.graphs = Graphs(recorder, held)
        self._call = aot_function(
            function,
            fw_compiler=self.graphs.forward,
            bw_compiler=self.graphs.backward,
            partition_fn=self.graphs.partition,
            decompositions=select_decomp_table(),
        )

    def __call__(self, path: str, given: Any) -> Any:
        self.graphs.part = path
        return self._call(*given)


def _kinds(parts: list[nn.Module]) -> list[Any]:
    """What tells parts apart for a compiler, but for their tensors: classes and plain attributes, those aside that only
    number the parts."""
    found = [
        {
            (path, name): value
            for path, module in part.named_modules()
            for name, value in [("class", type(module)), *vars(module).items()]
            if name == "class" or type(value) in (bool, int, float, str)
        }
        for part in parts
    ]
    numbers = {key for key in found[0] if all(kind.get(key) == number for number, kind in enumerate(found))}
    return [tuple(item for item in kind.items() if item[0] not in numbers) for kind in found]


def _like(leaf: Any) -> Any:
    return empty(leaf).requires_grad_(leaf.requires_grad) if isinstance(leaf, torch.Tensor) else leaf


def _signature(leaf: Any) -> Any:
    return (leaf.shape, leaf.dtype, leaf.requires_grad) if isinstance(leaf, torch.Tensor) else repr(leaf)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")[:120]


@contextmanager
def _tracing(model: nn.Module, recorder: Recorder) -> Iterator[None]:
    """While the model is traced nothing is recorded; nodes are told their module and whether they are checkpointed."""
    paths = {module: path for path, module in model.named_modules()}
    regions: list[AbstractContextManager[Any]] = []

    def enter(module: nn.Module, args: Any) -> None:
        path = paths.get(module)
        regions.append(nullcontext() if path is None else traceback.annotate({"module": path}))
        regions[-1].__enter__()

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        regions.pop().__exit__(None, None, None)

    # Hooks, because the tracer calls modules in a way of its own.
    hooks = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)]
    paused, recorder.paused = recorder.paused, True
    try:
        with (
            warnings.catch_warnings(),
            enable_python_dispatcher(),
            traceback.preserve_node_meta(),
            replaced(checkpoint, "_checkpoint_without_reentrant_generator", _tagged),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        recorder.paused = paused
        for hook in hooks:
            hook.remove()


_regions = count()


def _tagged(function: Any, preserve_rng_state: bool, context_fn: Any, *rest: Any, **kwargs: Any) -> Generator[None]:
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
