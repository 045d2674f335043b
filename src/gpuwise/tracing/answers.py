"""The values that a model reads from fake tensors. They are invented, and a note reports each."""

from __future__ import annotations

from collections.abc import Sequence
from operator import ge, gt, le, lt

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from gpuwise.notes import Note
from gpuwise.notes.job import leaves_the_device, value_not_known
from gpuwise.runtime.parallel.stages_absent import AbsentTensor
from gpuwise.tracing.refusals import called_by_job, location_of_caller

aten = torch.ops.aten
_COMPARED = {aten.equal.default: True, aten.is_nonzero.default: True}
# Writes whether a gradient is infinite into its second argument; in a steady state none is, and the optimizer steps.
_FINDS_INFINITE = aten._amp_foreach_non_finite_check_and_unscale_.default
# What a value is where the operator that made it says so.
_VALUES = {"all": True, "any": False, "isnan": False, "isinf": False}
_DRAWS = ("rand", "uniform_")
_SIGNS = {"lt": ("<", lt), "le": ("<=", le), "gt": (">", gt), "ge": (">=", ge)}


class Answers:
    """The policy: all(...) is True, any(...) is False, equal is True, a number drawn from a range is its middle, also where it
    is compared with another, any other number is 1.

    Attributes:
        notes: on each value that was read, in the order they were made, each once.
        filling: whether passes that only fill a cache are answered, too.
    """

    def __init__(self) -> None:
        self.notes: dict[Note, None] = {}
        self.filling = False
        self._made_by: dict[int, tuple[str, bool | float]] = {}  # by the address of a storage: the call, and the value

    def covers(self, op: OpOverload) -> bool:
        """Whether an operator reads a value."""
        return op is aten._local_scalar_dense.default or op in _COMPARED

    def fills(self, op: OpOverload) -> bool:
        """Whether an operator reads a value while a cache is filled, which is not recorded."""
        return self.filling and self.covers(op)

    def remember(self, op: OpOverload, out: object, args: Sequence[object] = ()) -> None:
        """Takes note of an operator whose result may be read later."""
        if op is _FINDS_INFINITE:
            assert isinstance(args[1], Tensor)
            self._made_by[args[1].untyped_storage()._cdata] = (_FINDS_INFINITE.__name__, 0.0)
            return
        name = op._overloadpacket.__name__
        if not isinstance(out, Tensor) or not (self._made_by or name in _VALUES or name in _DRAWS):
            return
        key = out.untyped_storage()._cdata
        if name in _VALUES:
            self._made_by[key] = (f"{name}()", _VALUES[name])
        elif name in _DRAWS and out.numel() == 1:
            low, high = (args[1], args[2]) if len(args) == 3 else (0.0, 1.0)
            self._made_by[key] = (f"{name}()", (low + high) / 2)  # type: ignore[operator]
        elif name in _SIGNS and (drawn := self._drawn(args[0])) is not None and isinstance(args[1], int | float):
            sign, compare = _SIGNS[name]
            self._made_by[key] = (f"{drawn[0]} {sign} {args[1]:g}", compare(drawn[1], args[1]))
        elif not op.is_view:
            self._made_by.pop(key, None)  # another result at the same address

    def _drawn(self, value: object) -> tuple[str, float] | None:
        """The call that drew a number, and the number; None for any other value."""
        maker = self._made_by.get(value.untyped_storage()._cdata) if isinstance(value, Tensor) else None
        return maker if maker is not None and maker[0].removesuffix("()") in _DRAWS else None

    def called(self, op: OpOverload, args: Sequence[object], kwargs: dict[str, object], *, noted: bool = True) -> object:
        """The result of an operator, or the answer where it reads a value. noted: as for `answer`."""
        if self.covers(op):
            return self.answer(op, args, noted=noted)  # type: ignore[arg-type]
        out: object = op(*args, **kwargs)
        self.remember(op, out, args)
        return out

    def answer(self, op: OpOverload, args: Sequence[Tensor], *, noted: bool = True) -> bool | int | float:
        """The value that an operator reads.

        Arguments:
            noted: whether to add a note; False for an optimizer that reads its own counters. Default True.
        """
        answer: bool | int | float
        if op in _COMPARED:
            answer = _COMPARED[op]
            if noted:
                self._note_answer(op._overloadpacket.__name__, answer)
            return answer
        tensor = args[0]
        constant = getattr(tensor, "constant", None)
        if constant is not None:
            value: bool | int | float = constant.item()
            return value
        usual = True if tensor.dtype == torch.bool else 1.0 if tensor.is_floating_point() else 1
        maker, answer = self._made_by.get(tensor.untyped_storage()._cdata, ("", usual))
        if maker == _FINDS_INFINITE.__name__:
            return answer
        if noted:
            self._note_answer(maker or "a tensor's value (.item(), .tolist(), if)", answer)
        return answer

    def leaves_device(self) -> None:
        """Notes a copy of a tensor from the device to the CPU, unless gpuwise makes the copy to offload memory."""
        if called_by_job():
            self.note(leaves_the_device(position=location_of_caller()))

    def note(self, note: Note) -> None:
        """Adds a note to the result, once."""
        self.notes[note] = None

    def _note_answer(self, question: str, answer: bool | float) -> None:
        self.note(value_not_known(question=question, answer=answer, position=location_of_caller()))


class Answering(TorchDispatchMode):
    """Answers where nothing is recorded: in the dry run by which a pipeline cuts a model into stages.

    Tensors of other stages are none of its business: their values are refused, not invented.
    """

    sees_absent_tensors = True

    def __init__(self, answers: Answers) -> None:
        super().__init__()
        self._answers = answers

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Sequence[object] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        if AbsentTensor in types:
            return func(*args, **(kwargs or {}))
        return self._answers.called(func, args, kwargs or {})
