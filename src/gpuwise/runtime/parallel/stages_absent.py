"""AbsentTensor: a tensor that another pipeline stage computes. It has shape, dtype and device, and no values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_iter, tree_map_only

from gpuwise.errors import UnsupportedError
from gpuwise.runtime.parallel.grouped_mm import empty_grouped_mm

Tree: TypeAlias = Any  # tensors and other objects in PyTorch's trees: lists, tuples, dicts, data classes
Arguments: TypeAlias = tuple[Tree, ...]
Keywords: TypeAlias = Mapping[str, Tree]

aten = torch.ops.aten
# Operators that read only the shape, dtype and device of their first argument: their results are real.
_SHAPE_READERS = {
    overload
    for name in ("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full")
    for overload in (getattr(aten, name).default,)
}
WAYS = ["one stage: a mesh without pp"]


class AbsentTensor(torch.Tensor):
    """Stands for a tensor of another stage while a stage runs the user's whole forward.

    An operator with an absent argument gives absent results at no cost. Nothing can read the values of an absent tensor,
    so a stage computes either the right numbers or an error.

    Attributes:
        value: the real tensor, once this stage has received it; every later use takes it.
    """

    value: Tensor | None

    @staticmethod
    def __new__(cls, like: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> AbsentTensor:
        """like: a tensor, of any device, with the shape and strides."""
        self: AbsentTensor = torch.Tensor._make_wrapper_subclass(
            cls, like.size(), strides=like.stride(), dtype=dtype or like.dtype, device=device
        )
        self.value = None
        return self

    def __repr__(self) -> str:  # type: ignore[override]
        return f"AbsentTensor({tuple(self.shape)}, {self.dtype})"

    def __deepcopy__(self, memo: dict[int, object]) -> AbsentTensor:
        return self

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Tree],
        types: Sequence[type],
        args: Arguments = (),
        kwargs: Keywords | None = None,
    ) -> Tree:  # what the function of PyTorch returns
        kwargs = kwargs or {}
        if any(isinstance(leaf, AbsentTensor) and leaf.value is not None for leaf in tree_iter((args, kwargs))):
            args, kwargs = received((args, kwargs))
            return func(*args, **kwargs)
        with torch._C.DisableTorchFunctionSubclass(), unrecorded():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: Arguments = (),
        kwargs: Keywords | None = None,
    ) -> Tree:  # one tensor, several, or a number
        kwargs = dict(kwargs or {})
        absent = next(leaf for leaf in tree_iter((args, kwargs)) if isinstance(leaf, AbsentTensor))
        if func in _SHAPE_READERS:
            shape = torch.empty((), dtype=absent.dtype, device=absent.device).expand(absent.shape)
            return func(shape, *args[1:], **kwargs)
        changed = written(func, args, kwargs)
        if any(not isinstance(tensor, AbsentTensor) for tensor in changed):
            raise UnsupportedError(f"the model writes activations into another tensor ({func}) between its blocks.", WAYS)
        if _reads_values(func, args):
            raise UnsupportedError(
                f"the model reads values of its activations ({func}), which only the stage that computes them has.", WAYS
            )
        device = kwargs.get("device") or absent.device
        if "device" in kwargs:
            kwargs["device"] = torch.device("meta")
        with _disable_current_modes():
            on_meta: Tree = tree_map_only(Tensor, _on_meta, (args, kwargs))
            result = _shaped(func, *on_meta)
            if len(changed) == 1 and isinstance(result, Tensor):
                return changed[0]
            return tree_map_only(Tensor, lambda tensor: cls(tensor, torch.device(device)), result)


def unrecorded() -> AbstractContextManager[object]:
    """A context in which no mode but fake tensors sees operators: absent tensors are no work, and nothing to record.

    A mode whose attribute `unrecorded` is another mode leaves that one in its place.
    """
    modes = _get_current_dispatch_mode_stack()
    others = [getattr(mode, "unrecorded", mode) for mode in modes]
    kept = [mode for mode in others if isinstance(mode, FakeTensorMode) or getattr(mode, "sees_absent_tensors", False)]
    if kept == modes:
        return nullcontext()
    stack = ExitStack()
    stack.enter_context(_disable_current_modes())
    for mode in kept:
        stack.enter_context(mode)
    return stack


def received(tree: Tree) -> Tree:  # any tree of tensors
    """The tree, with tensors that this stage has received in place of the absent ones."""
    return tree_map_only(AbsentTensor, lambda leaf: leaf if leaf.value is None else leaf.value, tree)


def written(func: torch._ops.OpOverload, args: Arguments, kwargs: Keywords) -> list[Tensor]:
    """The tensors among an operator's arguments that it writes to."""
    tensors: list[Tensor] = []
    if not func._schema.is_mutable:
        return tensors
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[number] if number < len(args) else kwargs.get(argument.name)
            tensors += [leaf for leaf in tree_iter(value) if isinstance(leaf, Tensor)]
    return tensors


def _shaped(func: torch._ops.OpOverload, args: Arguments, kwargs: Keywords) -> Tree:
    """The result of an operator on tensors without memory."""
    return empty_grouped_mm(*args, **kwargs) if func is aten._grouped_mm.default else func(*args, **kwargs)


def _reads_values(func: torch._ops.OpOverload, args: Arguments) -> bool:
    """Whether the shape of an operator's result, or the result, depends on values."""
    if func is aten.index.Tensor:  # of numbers it gives as many rows as there are numbers; of truth values as are true
        return any(isinstance(leaf, Tensor) and leaf.dtype in (torch.bool, torch.uint8) for leaf in tree_iter(args[1]))
    return bool({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags))


def _on_meta(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")
