"""Results of a loss or a step: one number, or a dict with it as "loss" and further numbers for the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gpuwise.errors import JobError

TOTAL = "loss"
LossParts = dict[str, Tensor]


def separated(result: object, *, what: str = "loss") -> tuple[Tensor, LossParts]:
    """The loss, and its named parts, detached.

    Arguments:
        result: the returned object.
        what: the function that returned it, "loss" or "step".

    Raises JobError unless the result is a tensor with one number, or a dict of such tensors that contains "loss".
    """
    if isinstance(result, Tensor):
        _check_number(result, f"the {what}")
        return result, {}
    if not isinstance(result, Mapping):
        raise JobError(
            f"the {what} must be a tensor with one number, or a dict of them, got {type(result).__name__}.",
            ['return the mean of the losses, or {"loss": total, "name": part}'],
        )
    if TOTAL not in result:
        raise JobError(
            f'the {what} returned {", ".join(map(repr, result)) or "nothing"}, and none of it is "{TOTAL}".',
            [f'name the number to minimise, or to watch: {{"{TOTAL}": total, ...}}'],
        )
    total = result[TOTAL]
    if not isinstance(total, Tensor):
        raise JobError(f'"{TOTAL}" of what the {what} returned is a {type(total).__name__}, not a tensor.')
    for name, value in result.items():
        _check_number(value, f'"{name}" of what the {what} returned')
    return total, {str(name): torch.as_tensor(value).detach() for name, value in result.items() if name != TOTAL}


def check_trains(loss: Tensor) -> None:
    """Raises JobError for a loss that gives no parameter a gradient."""
    if not loss.requires_grad:
        raise JobError(
            "the loss does not depend on any parameter that requires a gradient.",
            ["do not detach it or compute it under no_grad"],
        )


def mean_loss(of_micro_batches: Sequence[Tensor]) -> Tensor:
    """The mean over micro-batches."""
    return of_micro_batches[0] if len(of_micro_batches) == 1 else torch.stack([*of_micro_batches]).mean()


def mean_parts(of_micro_batches: Sequence[LossParts]) -> LossParts:
    """The means over micro-batches of those parts that all micro-batches have."""
    first, *others = of_micro_batches
    if not others:
        return first
    names = [name for name in first if all(name in other for other in others)]
    return {name: torch.stack([parts[name] for parts in of_micro_batches]).mean(0) for name in names}


def _check_number(value: object, what: str) -> None:
    if isinstance(value, int | float):
        return
    if not isinstance(value, Tensor) or value.numel() != 1:
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise JobError(f"{what} must be a tensor with one number, got {shape}.", ["take its mean()"])
