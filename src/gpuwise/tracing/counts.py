"""Counts: how many elements of a mask are true, where a step's program needs that number for a shape.

What a program wrote into a mask is counted: k ones at k positions of a mask of zeros, and what such masks have in common. What
a detection model of torchvision keeps is assumed (gpuwise.tracing.kernels.detection). No other count is made up.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload

from gpuwise.notes.job import assumed_detections
from gpuwise.tracing.answers import Answers
from gpuwise.tracing.kernels.detection import assumed_classes, assumed_count

aten = torch.ops.aten
_ZEROS = (aten.zeros, aten.zeros_like, aten.new_zeros)
_PUTS = (aten.index_put_, aten._index_put_impl_)
_MASKS = (torch.bool, torch.uint8)
_JOINS = (aten.cat, aten.bitwise_or, aten.logical_or)


class Counts:
    """Of one recording.

    Arguments:
        answers: takes the note on what is assumed.
    """

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._written: dict[int, int] = {}  # by the address of a storage: the ones written into it

    def shaped(self, op: OpOverload, args: Sequence[object]) -> object:
        """The result of an operator whose size depends on data, where that size is known or assumed; else None."""
        packet, first = op._overloadpacket, args[0] if args else None
        if not isinstance(first, Tensor):
            return None
        if packet is aten.nonzero:
            count = self._count(first)
            return None if count is None else first.new_empty((count, first.dim()), dtype=torch.int64)
        if packet is aten.index:
            return self._indexed(op, first, args[1])  # type: ignore[arg-type]
        if packet is aten._unique2:
            return self._classes(first)
        if op.namespace == "torchvision" and packet.__name__ == "nms":
            self._answers.note(assumed_detections())
            return first.new_empty(first.shape[0], dtype=torch.int64)
        return None

    def _indexed(self, op: OpOverload, tensor: Tensor, indices: Sequence[Tensor | None]) -> object:
        """The elements of a tensor that masks choose."""
        if all(index is None or index.dtype not in _MASKS for index in indices):
            return None
        chosen: list[Tensor | None] = []
        for index in indices:
            if index is None or index.dtype not in _MASKS:
                chosen.append(index)
                continue
            count = self._count(index)
            if count is None:
                return None
            chosen += [index.new_empty(count, dtype=torch.int64)] * index.dim()  # a mask is one index a dimension
        return op(tensor, chosen)

    def _classes(self, boxes: Tensor) -> object:
        classes = assumed_classes()
        if classes is None:
            return None
        nothing = boxes.new_empty(0, dtype=torch.int64)
        return boxes.new_empty(classes), nothing, nothing

    def _count(self, mask: Tensor) -> int | None:
        written = self._written_into(mask)
        if written is not None:
            return min(written, mask.numel())
        count = assumed_count(mask)
        if count is not None:
            self._answers.note(assumed_detections())
        return count

    def remember(self, op: OpOverload, args: Sequence[object], out: object) -> None:
        """Takes note of masks of zeros, of ones written into them, and of masks joined."""
        packet = op._overloadpacket
        if packet in _ZEROS and isinstance(out, Tensor) and out.dtype in _MASKS:
            self._note(out, 0)
        elif not self._written:
            return
        elif packet in _PUTS:
            self._put(args[0], args[1])  # type: ignore[arg-type]
        elif packet in _JOINS and isinstance(out, Tensor):
            masks = args[0] if packet is aten.cat else args[:2]
            counts = [self._written_into(mask) for mask in masks]  # type: ignore[attr-defined]
            if None not in counts:
                self._note(out, sum(count for count in counts if count is not None))

    def _put(self, mask: Tensor, indices: Sequence[Tensor | None]) -> None:
        written, first = self._written_into(mask), indices[0]
        if written is None:
            return
        if len(indices) == 1 and first is not None and first.dtype == torch.int64:
            self._note(mask, written + first.numel())
        else:
            self._forget(mask)

    def _written_into(self, mask: Tensor) -> int | None:
        return self._written.get(mask.untyped_storage()._cdata)

    def _note(self, mask: Tensor, count: int) -> None:
        storage = mask.untyped_storage()
        if storage._cdata not in self._written:
            weakref.finalize(storage, self._written.pop, storage._cdata, None)
        self._written[storage._cdata] = count

    def _forget(self, mask: Tensor) -> None:
        self._written.pop(mask.untyped_storage()._cdata, None)
