"""Checks the first update of a run: parameters with a gradient must change and all values must stay finite."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import Parameter
from torch.optim import Optimizer

from gpuwise.notes import Note
from gpuwise.notes import training as training_notes

SAMPLED = 8192  # compared elements per parameter, spread evenly over it
FEW = 0.5  # share of changed 16-bit elements below which a note is made
_NAMED = 5  # parameters named in a note


class _Sample(NamedTuple):
    """Elements of a parameter before its update.

    Attributes:
        parameter: the parameter.
        stride: distance between two sampled elements.
        values: sampled elements.
        has_gradient: which elements have a non-zero gradient.
        lost: which elements cannot change: a step of usual size is below half a unit in their last place.
        learning_rate: the learning rate of the parameter.
    """

    parameter: Parameter
    stride: int
    values: Tensor
    has_gradient: Tensor
    lost: Tensor
    learning_rate: float


class _Moved(NamedTuple):
    """Counts of a parameter after its update.

    Attributes:
        name: name of the parameter.
        dtype: dtype of the parameter.
        learning_rate: learning rate of the parameter.
        kind: class name of its optimizer.
        counts: a tensor of four counts of elements: with a gradient, changed, with a step lost to rounding, and
            non-finite in the parameter or its optimizer state.
    """

    name: str
    dtype: torch.dtype
    learning_rate: float
    kind: str
    counts: Tensor


class _HostRow(NamedTuple):
    """A _Moved with its counts on the host."""

    name: str
    dtype: torch.dtype
    learning_rate: float
    kind: str
    with_gradient: int
    moved: int
    lost: int
    broken: int


class FirstUpdate:
    """Compares a sample of each parameter before and after the first update, then removes its hooks from the optimizers.

    A step that a loss scaler skips, or with a learning rate of 0, does not count as an update. The counts stay on the
    device until `notes`.

    Arguments:
        optimizer: one optimizer, or an object with several as `parts`.
        names: names of the updated parameters, by id.
    """

    def __init__(self, optimizer: object, names: Mapping[int, str]):
        self._names = names
        self._samples: dict[int, list[_Sample]] = {}  # by optimizer id
        self._depth: dict[int, int] = {}  # nesting depth: a step that calls the parent class's step runs the hooks twice
        self._moved: list[_Moved] = []
        self.updated = False  # an update was made
        self._hooks = [
            hook
            for one in _leaves(optimizer)
            for hook in (one.register_step_pre_hook(self._before), one.register_step_post_hook(self._after))
        ]

    def notes(self) -> list[Note] | None:
        """Notes on parameters that did not change; None before the first update. Call it after each step until then."""
        if not self.updated:
            return None
        for hook in self._hooks:
            hook.remove()
        self._samples, moved_rows, self._moved = {}, self._moved, []
        return _notes(moved_rows)

    @torch.no_grad()
    def _before(self, optimizer: Optimizer, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        depth = self._depth[id(optimizer)] = self._depth.get(id(optimizer), 0) + 1
        if depth > 1:
            return
        overflow = getattr(optimizer, "found_inf", None)  # set by a scaler on fused optimizers
        if overflow is not None and bool(overflow):
            return
        scale = getattr(optimizer, "grad_scale", None)
        sgd = isinstance(optimizer, torch.optim.SGD)
        samples = [
            _sample(
                parameter, float(group["lr"]), None if sgd else group.get("eps", ()), 1.0 if scale is None else float(scale)
            )
            for group in optimizer.param_groups
            if float(group["lr"]) != 0
            for parameter in group["params"]
            if parameter.grad is not None and not parameter.grad.is_sparse
        ]
        self._samples[id(optimizer)] = samples
        self.updated |= bool(samples) or len(args) > 1 or "closure" in kwargs  # a closure computes gradients later

    @torch.no_grad()
    def _after(self, optimizer: Optimizer, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        self._depth[id(optimizer)] -= 1
        if self._depth[id(optimizer)]:
            return
        for sample in self._samples.pop(id(optimizer), []):
            parameter = sample.parameter
            now = _spread(parameter.detach(), sample.stride)
            moved = now != sample.values
            state = [
                _spread(own, sample.stride)
                for value in optimizer.state.get(parameter, {}).values()
                if isinstance(value, Tensor) and type(own := _own(value)) is Tensor  # not state of 8 bits
                if own.is_floating_point() and own.device == parameter.device
            ]
            broken = [values.isfinite().logical_not().sum() for values in (now, *state)]
            counts = [
                sample.has_gradient.sum(),
                (moved & sample.has_gradient).sum(),
                (sample.lost & sample.has_gradient).sum(),
                torch.stack(broken).sum(),
            ]
            self._moved.append(
                _Moved(
                    self._names.get(id(parameter), "a parameter"),
                    parameter.dtype,
                    sample.learning_rate,
                    type(optimizer).__name__,
                    torch.stack(counts),
                )
            )


def _leaves(optimizer: object) -> Iterator[Optimizer]:
    parts = getattr(optimizer, "parts", None)
    if parts is None:
        assert isinstance(optimizer, Optimizer)
        yield optimizer
        return
    for part in parts.values() if isinstance(parts, Mapping) else parts:
        yield from _leaves(part)


def _sample(parameter: Parameter, learning_rate: float, epsilon: object, scale: float) -> _Sample:
    """Samples a parameter before its update.

    Arguments:
        epsilon: the epsilon of a first step g / (|g| + epsilon), as in Adam; None for SGD, whose step is g.
        scale: loss scale contained in the gradient.
    """
    assert parameter.grad is not None
    stride = max(1, _own(parameter).numel() // SAMPLED) | 1
    values = _spread(parameter.detach(), stride).clone()
    gradient = _spread(parameter.grad, stride)
    if gradient.numel() != values.numel():  # the layouts differ
        gradient = _own(parameter.grad).reshape(-1)[::stride]
    size = gradient.abs().float() / scale  # of complex numbers, too
    if epsilon is not None:
        size = size / (size + epsilon) if isinstance(epsilon, float) else torch.ones_like(size)
    lost = learning_rate * size <= values.abs().float() * (torch.finfo(values.dtype).eps / 2)
    return _Sample(parameter, stride, values, gradient != 0, lost, learning_rate)


def _own(tensor: Tensor) -> Tensor:
    """What this rank has of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _spread(tensor: Tensor, stride: int) -> Tensor:
    """Elements of a tensor at a fixed stride, without a copy if its memory is dense. Of a sharded one, this rank's own."""
    tensor = _own(tensor)
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    dense = tensor.permute(order)
    return (dense.view(-1) if dense.is_contiguous() else tensor.reshape(-1))[::stride]


def _notes(moved_rows: Iterable[_Moved]) -> list[Note]:
    rows = [_HostRow(*moved[:4], *map(int, moved.counts.tolist())) for moved in moved_rows]
    still = [row for row in rows if row.with_gradient and not row.moved]
    nothing = len(still) == sum(row.with_gradient > 0 for row in rows)
    notes: list[Note] = []
    if broken := [row for row in rows if row.broken]:
        notes.append(training_notes.not_finite_after_update(parameters=_listed(broken)))
    # A nearly vanished gradient changes no 32-bit parameter either, so these are reported only if none has changed.
    small = [row for row in still if row.lost == row.with_gradient and (row.dtype.itemsize == 2 or nothing)]
    if small:
        notes.append(
            training_notes.steps_below_resolution(
                parameters=_listed(small),
                dtype=str(small[0].dtype).removeprefix("torch."),
                learning_rate=small[0].learning_rate,
                in_16_bits=small[0].dtype.itemsize == 2,
            )
        )
    if stuck := [row for row in still if row.lost < row.with_gradient]:
        notes.append(training_notes.nothing_moved(parameters=_listed(stuck), optimizer=stuck[0].kind))
    half = [row for row in rows if row.dtype.itemsize == 2 and row.moved]
    moved, of = sum(row.moved for row in half), sum(row.with_gradient for row in half)
    if moved < FEW * of:
        notes.append(training_notes.few_numbers_moved(share=moved / of))
    return notes


def _listed(rows: list[_HostRow]) -> str:
    more = f" and {len(rows) - _NAMED:,} more" if len(rows) > _NAMED else ""
    return ", ".join(row.name for row in rows[:_NAMED]) + more
