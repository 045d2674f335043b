"""Live bytes of a real step, counted storage by storage on the thread that runs it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    is_traceable_wrapper_subclass,
    is_traceable_wrapper_subclass_type,
)
from torch.utils._pytree import tree_leaves

_CALL, _OF_RANKS_CALL = "operator", "operator of ranks"
_LIFTS = torch.ops.aten.lift_fresh.default  # the values of torch.tensor, which no operator made
_OF_RANKS = ("c10d", "_c10d_functional", "_dtensor")


class _ProfiledEvent(Protocol):
    """The methods in use of an event of PyTorch's profiler."""

    def name(self) -> str: ...

    def start_ns(self) -> int: ...

    def end_ns(self) -> int: ...

    def nbytes(self) -> int: ...


class LiveStorages(TorchDispatchMode):
    """Counts the bytes of all storages that operators of this thread take or make, while they live.

    A storage ends with the C++ object that owns the memory, on whichever thread that happens: gloo's own threads are
    included, whose frees PyTorch's profiler does not see. They let go of a tensor at some time after the program has waited
    for them, so each moment counts as in the measured step in which the least was alive.

    What gloo allocates for itself is not counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self._size_of: dict[int, int] = {}  # by the address of a storage
        self._resize = torch.UntypedStorage.resize_
        self._before: list[int] | None = None  # of the step that is being measured: live bytes before each operator
        self._steps: list[np.ndarray] = []

    @property
    def live_bytes(self) -> int:
        """Bytes of the storages that are alive."""
        return sum(list(self._size_of.values()))  # a list first: other threads end storages, too

    @property
    def peak_bytes(self) -> int:
        """The most bytes that are alive in a measured step, those inside operators included."""
        last = self._steps[-1]  # an earlier one may have had other operators
        least: np.ndarray = np.min([step for step in self._steps if len(step) == len(last)], axis=0)
        return int(least.max())

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Inside is a measured step."""
        self._before = before = []
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, profile_memory=True, acc_events=True) as profile:
            yield
        self._before = None
        before.append(self.live_bytes)
        self._steps.append(np.array(before) + _inside(profile.profiler.kineto_results.events()))

    def __enter__(self) -> LiveStorages:
        resize, size_of = self._resize, self._size_of

        def resize_and_count(storage: torch.UntypedStorage, size: int) -> object:
            result = resize(storage, size)
            if storage._cdata in size_of:
                size_of[storage._cdata] = storage.nbytes()
            return result

        torch.UntypedStorage.resize_ = resize_and_count  # type: ignore[method-assign,assignment]
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Sequence[object] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        if any(is_traceable_wrapper_subclass_type(t) for t in types):
            return NotImplemented
        kwargs = kwargs or {}
        if self._before is None:
            out = func(*args, **kwargs)
        else:
            self._before.append(self.live_bytes)
            with torch.profiler.record_function(_OF_RANKS_CALL if func.namespace in _OF_RANKS else _CALL):
                out = func(*args, **kwargs)
        # Views of storages that no operator made are of what gloo allocates.
        taken = set() if func is _LIFTS else {t.untyped_storage()._cdata for t in _tensors([*args, *kwargs.values()])}
        for tensor in _tensors(out):
            storage = tensor.untyped_storage()
            if storage._cdata in self._size_of:
                self._size_of[storage._cdata] = storage.nbytes()
            elif storage._cdata not in taken:
                self._size_of[storage._cdata] = storage.nbytes()
                weakref.finalize(storage, self._size_of.pop, storage._cdata, None)
        return out


def _tensors(values: object) -> list[Tensor]:
    """Those with memory of their own: wrappers, such as a DTensor, and tensors on the meta device have none."""
    tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor) and not leaf.is_meta]
    return [tensor for tensor in tensors if not is_traceable_wrapper_subclass(tensor)]


def _inside(events: Sequence[_ProfiledEvent]) -> np.ndarray:
    """The most bytes that each operator holds more than before it, and 0 at the end. Shape (operators + 1,).

    As the profiler sees them on this thread. Those of collectives are gloo's: 0.
    """
    calls = sorted((e for e in events if e.name() in (_CALL, _OF_RANKS_CALL)), key=lambda e: e.start_ns())
    changes = sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns())
    when = np.array([e.start_ns() for e in changes], dtype=np.int64)
    live = np.concatenate([[0], np.cumsum([e.nbytes() for e in changes])])
    inside = np.zeros(len(calls) + 1, dtype=np.int64)
    for number, call in enumerate(calls):
        if call.name() == _CALL:
            first, last = np.searchsorted(when, [call.start_ns(), call.end_ns()])
            inside[number] = live[first : last + 1].max() - live[first]
    return inside
