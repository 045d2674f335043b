"""One forward pass observed: which linear layers feed which, where attention lies between them, what is random."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from gpuwise.job.parallel import is_transposed
from gpuwise.runtime.parallel.torch_types import Argument, Arguments, Function, Keywords


@dataclass
class ModuleCall:
    """A call of a module with parameters of its own.

    Attributes:
        path: path of the module.
        position: number of the event.
        feeders: paths of the linear layers whose outputs reach the input with no other linear layer between.
        source: identity of the input tensor.
    """

    path: str
    position: int
    feeders: frozenset[str]
    source: int


@dataclass
class AttentionCall:
    """A call of scaled_dot_product_attention.

    Attributes:
        position: number of the event.
        feeders: of query, key and value: paths of the linear layers that they come from.
        heads: heads of the query.
        head_dim: width of a head.
    """

    position: int
    feeders: tuple[frozenset[str], ...]
    heads: int
    head_dim: int


@dataclass
class ForwardPass:
    """The events of one forward pass, in order.

    Attributes:
        linears: calls of linear layers.
        others: calls of other modules with parameters of their own (norms, embeddings).
        attention: calls of scaled_dot_product_attention.
        random: position and shape of each drawing of random numbers (dropout).
    """

    linears: list[ModuleCall] = field(default_factory=list)
    others: list[ModuleCall] = field(default_factory=list)
    attention: list[AttentionCall] = field(default_factory=list)
    random: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)

    def random_between(self, first: int, last: int) -> bool:
        return any(first < position < last for position, _ in self.random)


def is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or is_transposed(module)


@contextmanager
def observed(model: nn.Module) -> Iterator[ForwardPass]:
    """Records the events of forward passes of the model that run inside the context, with gradients."""
    observer = _Observer()
    handles = []
    for path, module in model.named_modules():
        if any(True for _ in module.parameters(recurse=False)):
            handles.append(module.register_forward_pre_hook(partial(observer.enter, path), with_kwargs=True))
            if is_linear(module):
                handles.append(module.register_forward_hook(partial(observer.leave, path)))
    try:
        with _Attention(observer), _RandomNumbers(observer):
            yield observer.events
    finally:
        for handle in handles:
            handle.remove()


class _Observer:
    def __init__(self) -> None:
        self.events = ForwardPass()
        self._position = 0
        self._outputs: dict[object, str] = {}  # node of a linear layer's output -> path
        self._kept: list[object] = []  # inputs stay alive, so that their identities stay their own

    def next_position(self) -> int:
        self._position += 1
        return self._position

    def enter(self, path: str, module: nn.Module, args: Arguments, kwargs: Keywords) -> None:
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        if not tensors:
            return
        self._kept.append(tensors[0])
        call = ModuleCall(path, self.next_position(), self.feeders(tensors[0]), id(tensors[0]))
        (self.events.linears if is_linear(module) else self.events.others).append(call)

    def leave(self, path: str, module: nn.Module, args: object, output: object) -> None:
        if isinstance(output, Tensor) and output.grad_fn is not None:
            self._outputs[output.grad_fn] = path

    def feeders(self, tensor: Tensor) -> frozenset[str]:
        paths: set[str] = set()
        seen: set[object] = set()
        nodes = [tensor.grad_fn]
        while nodes:
            node = nodes.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if node in self._outputs:
                paths.add(self._outputs[node])
            else:
                nodes += [before for before, _ in node.next_functions]
        return frozenset(paths)


# Of F.scaled_dot_product_attention, in its order.
_OF_ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


def attention_arguments(args: Arguments, kwargs: Keywords) -> dict[str, Argument]:
    """The arguments of a call of scaled_dot_product_attention by name; without those that the call leaves out."""
    return {**dict(zip(_OF_ATTENTION, args, strict=False)), **kwargs}


class _Attention(TorchFunctionMode):
    def __init__(self, observer: _Observer):
        super().__init__()
        self._observer = observer

    def __torch_function__(
        self, func: Function, types: object, args: Arguments = (), kwargs: Keywords | None = None
    ) -> Argument:
        if func is F.scaled_dot_product_attention:
            named = attention_arguments(args, kwargs or {})
            query = named["query"]
            feeders = tuple(self._observer.feeders(named[name]) for name in ("query", "key", "value"))
            position = self._observer.next_position()
            self._observer.events.attention.append(AttentionCall(position, feeders, query.shape[-3], query.shape[-1]))
            if named.get("dropout_p"):
                self._observer.events.random.append((self._observer.next_position(), tuple(query.shape)))
        return func(*args, **(kwargs or {}))


class _RandomNumbers(TorchDispatchMode):
    def __init__(self, observer: _Observer):
        super().__init__()
        self._observer = observer

    def __torch_dispatch__(
        self, func: Argument, types: object, args: Arguments = (), kwargs: Keywords | None = None
    ) -> Argument:
        result = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags and "scaled_dot_product" not in func.name():
            first = result[0] if isinstance(result, tuple | list) else result
            shape = tuple(first.shape) if isinstance(first, Tensor) else ()
            self._observer.events.random.append((self._observer.next_position(), shape))
        return result
