"""LBFGS in its steady state: a step whose history is full and which has not converged.

PyTorch's LBFGS decides by values (is the gradient small enough, did the loss fall), which a recording does not have. The
step here runs the same operations (torch/optim/lbfgs.py of PyTorch 2.13) and decides to go on each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypedDict, cast

import torch
from torch import Tensor
from torch.optim import LBFGS

from gpuwise.notes.job import assumed_lbfgs_evaluations
from gpuwise.tracing.answers import Answers
from gpuwise.tracing.patching import patched


@contextmanager
def steady_lbfgs(answers: Answers) -> Iterator[None]:
    """Inside, each LBFGS takes steady steps, and their assumptions are among the notes."""

    def step(self: LBFGS, closure: Callable[[], Tensor]) -> Tensor:
        return _step(self, closure, answers)

    with patched(LBFGS, "step", step):
        yield


class _State(TypedDict):
    """The state of LBFGS. Tensors have one number a parameter, lists one entry a pair of the history.

    Attributes:
        prev_flat_grad: the last gradient.
        d: the last direction.
        old_dirs: changes of the gradient.
        old_stps: changes of the parameters.
        ro: a scalar for each pair. So is al.
        H_diag: a scalar.
    """

    prev_flat_grad: Tensor
    d: Tensor
    old_dirs: list[Tensor]
    old_stps: list[Tensor]
    ro: list[Tensor]
    al: list[Tensor]
    H_diag: Tensor


@torch.no_grad()
def _step(optimizer: LBFGS, closure: Callable[[], Tensor], answers: Answers) -> Tensor:
    group = optimizer.param_groups[0]
    searches = group["line_search_fn"] is not None
    iterations, evaluations = _counts(group["max_iter"], group["max_eval"], searches=searches)
    answers.note(assumed_lbfgs_evaluations(evaluations=evaluations, iterations=iterations, history=group["history_size"]))
    evaluate = torch.enable_grad()(closure)
    first = evaluate()
    gradient = optimizer._gather_flat_grad()
    _ask(gradient, group["tolerance_grad"])
    kept = optimizer.state[optimizer._params[0]]
    if not kept:
        kept.update(func_evals=0, n_iter=1, **_full_history(gradient, group["history_size"]))
    state = cast(_State, kept)
    for iteration in range(1, iterations + 1):
        direction = _direction(state, gradient, group["lr"])
        state["prev_flat_grad"].copy_(gradient)
        gradient.dot(direction).le(-group["tolerance_change"])
        if searches:
            before = optimizer._clone_param()
            optimizer._add_grad(group["lr"], direction)
            evaluate()
            gradient = optimizer._gather_flat_grad()
            optimizer._set_param(before)
            gradient.dot(direction)
        optimizer._add_grad(group["lr"], direction)
        if not searches and iteration != iterations:
            evaluate()
            gradient = optimizer._gather_flat_grad()
        state["d"] = direction
        _ask(gradient, group["tolerance_grad"])
        _ask(direction.mul(group["lr"]), group["tolerance_change"])
    return first


def _counts(max_iter: int, max_eval: int, *, searches: bool) -> tuple[int, int]:
    """Iterations, and evaluations of the loss. A line search is assumed to accept its first step, its usual case near a
    minimum (Nocedal and Wright, Numerical Optimization, 2006, section 7.2)."""
    iterations = min(max_iter, max(1, max_eval - 1 if searches else max_eval))
    return iterations, iterations + 1 if searches else iterations


def _direction(state: _State, gradient: Tensor, step: float) -> Tensor:
    """The two loops over the history, after its oldest pair gave way to the newest."""
    change = gradient.sub(state["prev_flat_grad"])
    moved = state["d"].mul(step)
    product = change.dot(moved)
    product.gt(0)
    for history_of, newest in ((state["old_dirs"], change), (state["old_stps"], moved), (state["ro"], 1.0 / product)):
        history_of.pop(0)
        history_of.append(newest)
    state["H_diag"] = product / change.dot(change)
    history = range(len(state["ro"]))
    q = gradient.neg()
    for i in reversed(history):
        state["al"][i] = state["old_stps"][i].dot(q) * state["ro"][i]
        q.add_(state["old_dirs"][i], alpha=-state["al"][i])  # type: ignore[arg-type]  # a tensor of one number
    result = torch.mul(q, state["H_diag"])
    for i in history:
        factor = state["old_dirs"][i].dot(result) * state["ro"][i]
        result.add_(state["old_stps"][i], alpha=state["al"][i] - factor)  # type: ignore[arg-type]  # a tensor of one number
    return result


def _ask(values: Tensor, tolerance: float) -> None:
    """The operations by which the optimizer sees whether it has converged."""
    values.abs().max().le(tolerance)


def _full_history(gradient: Tensor, size: int) -> _State:
    """A full history, made in the order in which steps make it: recordings at two batches then agree."""
    last_gradient = torch.zeros_like(gradient)
    pairs = [[torch.zeros_like(like) for like in (gradient, gradient, gradient[0])] for _ in range(size)]
    return _State(
        prev_flat_grad=last_gradient,
        old_dirs=[change for change, _, _ in pairs],
        old_stps=[moved for _, moved, _ in pairs],
        ro=[scalar for _, _, scalar in pairs],
        H_diag=torch.zeros_like(gradient[0]),
        al=[torch.zeros_like(gradient[0]) for _ in range(size)],
        d=torch.zeros_like(gradient),
    )
