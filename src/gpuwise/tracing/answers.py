"""What is answered when a model asks a fake tensor for its value. Each answer is a note beside the result."""

from __future__ import annotations

from typing import Any

import torch

from gpuwise.notes import Note
from gpuwise.notes.job import leaves_the_device, value_not_known
from gpuwise.tracing.refusals import called_by_job, place_of_caller

aten = torch.ops.aten
_COMPARED = {aten.equal.default: True, aten.is_nonzero.default: True}
# Writes whether a gradient is infinite into its second argument; in a steady state none is, and the optimizer steps.
_FINDS_INFINITE = aten._amp_foreach_non_finite_check_and_unscale_.default
_KNOWN = {"all": True, "any": False, "isnan": False, "isinf": False}


class Answers:
    """Policy: all(...) is True, any(...) is False, equal is True, any other number is 1."""

    def __init__(self) -> None:
        self.notes: dict[Note, None] = {}  # in the order they were made, each once
        self._made_by: dict[int, str] = {}

    def covers(self, func: Any) -> bool:
        return func is aten._local_scalar_dense.default or func in _COMPARED

    def remember(self, func: Any, out: Any, args: Any = ()) -> None:
        if func is _FINDS_INFINITE:
            self._made_by[args[1].untyped_storage()._cdata] = _FINDS_INFINITE.__name__
            return
        name = func._overloadpacket.__name__
        if not isinstance(out, torch.Tensor) or not (self._made_by or name in _KNOWN):
            return
        key = out.untyped_storage()._cdata
        if name in _KNOWN:
            self._made_by[key] = name
        elif not func.is_view:
            self._made_by.pop(key, None)  # another result where a known one lay before

    def answer(self, func: Any, args: Any, *, noted: bool = True) -> Any:
        """noted: whether the user should hear of it; an optimizer that reads its own counters is no guess."""
        if func in _COMPARED:
            answer: Any = _COMPARED[func]
            if noted:
                self._note_answer(func._overloadpacket.__name__, answer)
            return answer
        tensor = args[0]
        constant = getattr(tensor, "constant", None)
        if constant is not None:
            return constant.item()
        maker = self._made_by.get(tensor.untyped_storage()._cdata)
        if maker == _FINDS_INFINITE.__name__:
            return 0.0
        if maker is not None:
            answer = _KNOWN[maker]
        else:
            answer = True if tensor.dtype == torch.bool else 1.0 if tensor.is_floating_point() else 1
        if noted:
            self._note_answer(f"{maker}()" if maker else "a tensor's value (.item(), .tolist(), if)", answer)
        return answer

    def leaves_device(self) -> None:
        """The job itself copies a tensor from the device to the CPU (gpuwise does so where memory is offloaded)."""
        if called_by_job():
            self.note(leaves_the_device(position=place_of_caller()))

    def note(self, note: Note) -> None:
        """Keeps a note beside the result, once."""
        self.notes[note] = None

    def _note_answer(self, question: str, answer: bool | float) -> None:
        self.note(value_not_known(question=question, answer=answer, position=place_of_caller()))
