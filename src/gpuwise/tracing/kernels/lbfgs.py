"""LBFGS in its steady state: what a step does when its history is full and nothing has converged yet.

PyTorch's LBFGS asks for values at every turn (is the gradient small enough, did the loss fall), which a recording does not
have. The step here makes the same operations (torch/optim/lbfgs.py of PyTorch 2.13) and takes every turn that goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS

from gpuwise.notes.job import assumed_lbfgs_evaluations
from gpuwise.tracing.answers import Answers


@contextmanager
def steady_lbfgs(answers: Answers) -> Iterator[None]:
    """Inside, each LBFGS takes steady steps, and what they assume is among the answers."""
    original: Any = LBFGS.step

    def step(self: LBFGS, closure: Callable[[], Tensor]) -> Tensor:
        return _step(self, closure, answers)

    LBFGS.step = step  # type: ignore[method-assign]
    try:
        yield
    finally:
        LBFGS.step = original  # type: ignore[method-assign]


@torch.no_grad()
def _step(optimizer: Any, closure: Callable[[], Tensor], answers: Answers) -> Tensor:
    group = optimizer.param_groups[0]
    searches = group["line_search_fn"] is not None
    iterations, evaluations = _counts(group, searches=searches)
    answers.note(assumed_lbfgs_evaluations(evaluations=evaluations, iterations=iterations, history=group["history_size"]))
    evaluate = torch.enable_grad()(closure)
    first = evaluate()
    gradient = optimizer._gather_flat_grad()
    _ask(gradient, group["tolerance_grad"])
    state = optimizer.state[optimizer._params[0]]
    if not state:
        _fill(state, gradient, group["history_size"])
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


def _counts(group: dict[str, Any], *, searches: bool) -> tuple[int, int]:
    """Iterations, and evaluations of the loss. A line search is assumed to accept its first step, its usual case near a
    minimum (Nocedal and Wright, Numerical Optimization, 2006, section 7.2)."""
    iterations = min(group["max_iter"], max(1, group["max_eval"] - 1 if searches else group["max_eval"]))
    return iterations, iterations + 1 if searches else iterations


def _direction(state: dict[str, Any], gradient: Tensor, step: float) -> Tensor:
    """The two loops over the history, after its oldest pair gave way to the newest."""
    change = gradient.sub(state["prev_flat_grad"])
    moved = state["d"].mul(step)
    product = change.dot(moved)
    product.gt(0)
    for name, newest in (("old_dirs", change), ("old_stps", moved), ("ro", 1.0 / product)):
        state[name].pop(0)
        state[name].append(newest)
    state["H_diag"] = product / change.dot(change)
    history = range(len(state["ro"]))
    q = gradient.neg()
    for i in reversed(history):
        state["al"][i] = state["old_stps"][i].dot(q) * state["ro"][i]
        q.add_(state["old_dirs"][i], alpha=-state["al"][i])
    result = torch.mul(q, state["H_diag"])
    for i in history:
        factor = state["old_dirs"][i].dot(result) * state["ro"][i]
        result.add_(state["old_stps"][i], alpha=state["al"][i] - factor)
    return result


def _ask(values: Tensor, tolerance: float) -> None:
    """What the optimizer computes to see whether it is done."""
    values.abs().max().le(tolerance)


def _fill(state: dict[str, Any], gradient: Tensor, size: int) -> None:
    """A full history, made in the order in which steps make it: recordings at two batches then agree."""
    state.update(func_evals=0, n_iter=1, prev_flat_grad=torch.zeros_like(gradient), old_dirs=[], old_stps=[], ro=[])
    for _ in range(size):
        for name, made in (("old_dirs", gradient), ("old_stps", gradient), ("ro", gradient[0])):
            state[name].append(torch.zeros_like(made))
    state.update(
        H_diag=torch.zeros_like(gradient[0]),
        al=[torch.zeros_like(gradient[0]) for _ in range(size)],
        d=torch.zeros_like(gradient),
    )
