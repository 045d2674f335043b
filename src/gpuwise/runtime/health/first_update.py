"""Whether the first update of a run moved what it should: everything that had a gradient, in numbers that are finite."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from gpuwise.notes import Note
from gpuwise.notes import training as training_notes

SAMPLED = 8192  # numbers of each parameter that are compared, spread evenly over it
FEW = 0.5  # share of 16-bit numbers that moved, below which the user is told
_NAMED = 5  # parameters that a note names


class _Sample(NamedTuple):
    """A parameter before its update. lost: whether a step of the optimizer's usual size is below half a unit in the last
    place there."""

    parameter: Parameter
    stride: int
    values: Tensor
    has_gradient: Tensor
    lost: Tensor
    learning_rate: float


class _Moved(NamedTuple):
    """A parameter after it. kind: of its optimizer. counts: of the sampled numbers those with a gradient, those of them that
    moved, those whose step was lost, and the numbers that are not finite, in the parameter and in its optimizer's state."""

    name: str
    dtype: torch.dtype
    learning_rate: float
    kind: str
    counts: Tensor


class _HostRow(NamedTuple):
    """The same, on the host."""

    name: str
    dtype: torch.dtype
    learning_rate: float
    kind: str
    with_gradient: int
    moved: int
    lost: int
    broken: int


class FirstUpdate:
    """Compares a sample of each parameter before and after the first update that is made, then leaves the optimizers alone.

    A step that a loss scaler skips, or whose learning rate is 0, is none. The numbers stay on their device until `notes`.

    Arguments:
        optimizer: one, or several behind one (`parts`). names: of the parameters it updates, by id.
    """

    def __init__(self, optimizer: object, names: Mapping[int, str]):
        self._names = names
        self._samples: dict[int, list[_Sample]] = {}  # by the id of the optimizer
        self._depth: dict[int, int] = {}  # of its step: one that calls its parent's runs the hooks twice
        self._moved: list[_Moved] = []
        self.updated = False  # an update was made
        self._hooks = [
            hook
            for one in _leaves(optimizer)
            for hook in (one.register_step_pre_hook(self._before), one.register_step_post_hook(self._after))
        ]

    def notes(self) -> list[Note] | None:
        """What did not move; None while no update was made. To be called after each step until then."""
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
        overflow = getattr(optimizer, "found_inf", None)  # what a scaler hands to fused optimizers
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
        self.updated |= bool(samples) or len(args) > 1 or "closure" in kwargs  # with a closure gradients come later

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
                _spread(value, sample.stride)
                for value in optimizer.state.get(parameter, {}).values()
                if type(value) is Tensor and value.is_floating_point() and value.device == parameter.device
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
    """epsilon: what a first step g / (|g| + epsilon) has, as Adam's; None for SGD, whose step is g. scale: in the gradient."""
    assert parameter.grad is not None
    stride = max(1, parameter.numel() // SAMPLED) | 1
    values = _spread(parameter.detach(), stride).clone()
    gradient = _spread(parameter.grad, stride)
    if gradient.numel() != values.numel():  # laid out otherwise than the parameter
        gradient = parameter.grad.reshape(-1)[::stride]
    size = gradient.float().abs() / scale
    if epsilon is not None:
        size = size / (size + epsilon) if isinstance(epsilon, float) else torch.ones_like(size)
    lost = learning_rate * size <= values.float().abs() * (torch.finfo(values.dtype).eps / 2)
    return _Sample(parameter, stride, values, gradient != 0, lost, learning_rate)


def _spread(tensor: Tensor, stride: int) -> Tensor:
    """Numbers of a tensor, spread evenly over its memory where that is dense: without a copy."""
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
    # In 32 bits a gradient that has all but vanished moves nothing either: that is news where it is so of everything.
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
