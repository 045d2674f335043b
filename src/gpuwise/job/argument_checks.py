"""Checks of a Job's arguments. The errors name frequent mistakes and what to write instead."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from types import ModuleType
from typing import TYPE_CHECKING

from gpuwise.errors import JobError

if TYPE_CHECKING:
    from torch import Tensor, nn

# Keywords of other libraries, and what they are here.
_OTHERS = {
    "lr": "learning_rate",
    "dataset": "data",
    "train_dataset": "data",
    "dataloader": "data",
    "criterion": "loss",
    "loss_fn": "loss",
    "optim": "optimizer",
    "scheduler": "schedule",
    "lr_scheduler": "schedule",
    "warmup": "warmup_steps",
    "max_grad_norm": "clip_norm",
    "grad_clip": "clip_norm",
    "num_samples": "samples",
    "ema": "ema_decay",
    "max_length": "seq_len",
    "module": "model",
    "net": "model",
}
_OF_A_STEP = ("batch_size", "micro_batch", "micro_batch_size", "per_device_train_batch_size")
_OF_A_RUN = ("epochs", "steps", "precision", "device", "accumulate", "num_epochs", "max_steps")


def moves_itself() -> JobError:
    """The error for a job that moves its model or its tensors to a device."""
    return JobError(
        "the job moves its model or tensors to a device itself.",
        ["leave .to(device) and .cpu() out of model, batch and loss: gpuwise moves them"],
    )


def unknown_keyword(name: str, fields: Iterable[str]) -> JobError:
    """The error for a keyword that is not among the fields of a Job."""
    what = f"a Job has no {name!r}"
    if name in _OF_A_STEP:
        return JobError(
            f"{what}: its batch is a function of the number of samples, which is chosen when the job is used.",
            [
                "micro_batch=32 in gpuwise.forecast, plan and train; --micro-batch 32 on the command line",
                "leave it out: gpuwise chooses one",
            ],
        )
    if name in _OF_A_RUN:
        return JobError(
            f"{what}: it belongs to the run, not to what is trained.",
            ["give it to gpuwise.train or gpuwise.forecast, or as a flag: gpuwise train --help lists them"],
        )
    near = [_OTHERS[name]] if name in _OTHERS else get_close_matches(name, list(fields), n=2, cutoff=0.6)
    return JobError(f"{what}.", [f"nearest: {', '.join(near)}"] if near else [f"it has: {', '.join(fields)}"])


def check_functions(fields: Mapping[str, object]) -> None:
    """Raises JobError where a field holds the thing itself instead of a function that makes it, or a function that takes
    other arguments.

    Arguments:
        fields: of the job, by name.
    """
    torch = sys.modules.get("torch")  # without it no argument is a module or a tensor
    if torch is not None:
        _check_instances(torch, fields)
    _check_arguments(fields, "model", (), "nothing", "lambda: {name}(...)")
    _check_arguments(fields, "batch", (1,), "the number of samples", "lambda n: ...")
    _check_arguments(fields, "loss", (None, None), "the model and a batch", "lambda model, batch: ...")
    _check_arguments(fields, "data", (), "nothing", "lambda: {name}(...)")


def _check_instances(torch: ModuleType, fields: Mapping[str, object]) -> None:
    model, batch, loss, data, optimizer = (fields.get(name) for name in ("model", "batch", "loss", "data", "optimizer"))
    if isinstance(model, torch.nn.Module):
        raise JobError(
            f"a job's model must be a function that makes it, got a {type(model).__name__} itself: it is made anew "
            "for each device, and for a forecast without memory.",
            [f"write model=lambda: {_constructor_call(model)}"],
        )
    if isinstance(batch, torch.Tensor | dict | list | tuple):
        example = _example_batch(torch, batch)
        raise JobError(
            f"a job's batch must be a function of the number of samples, got a {type(batch).__name__} itself.",
            [f"write batch=lambda n: {example}"],
        )
    plain = getattr(loss, "__module__", "") == "torch.nn.functional"
    if plain or isinstance(loss, torch.nn.modules.loss._Loss):
        name = f"F.{getattr(loss, '__name__', 'loss')}" if plain else f"nn.{type(loss).__name__}()"
        raise JobError(
            f"a job's loss is called with the model and a batch, but {name} takes an output and a target.",
            [f'write loss=lambda model, batch: {name}(model(batch["x"]), batch["y"])'],
        )
    if data is not None and not callable(data):
        raise JobError(
            f"a job's data must be a function that makes the data set, got a {type(data).__name__} itself.",
            ["write data=lambda: ... around what makes it"],
        )
    if isinstance(optimizer, torch.optim.Optimizer):
        rate = optimizer.defaults.get("lr")
        arguments = f"parameters, lr={rate}" if isinstance(rate, float | int) else "parameters"
        kind = type(optimizer)
        name = f"torch.optim.{kind.__name__}" if kind.__module__.startswith("torch.optim") else kind.__name__
        raise JobError(
            f"a job's optimizer must be a name or a function of the parameters, got a {kind.__name__} itself.",
            [f"write optimizer=lambda parameters: {name}({arguments})"],
        )


def _constructor_call(model: nn.Module) -> str:
    """The call that makes a module: PyTorch's own layers print one."""
    own = type(model).__module__.startswith("torch.nn")
    arguments = model.extra_repr() if own and not list(model.children()) else "..."
    return f"{'nn.' if own else ''}{type(model).__name__}({arguments})"


def _example_batch(torch: ModuleType, batch: Tensor | Mapping[str, Tensor] | Sequence[Tensor]) -> str:
    if not isinstance(batch, torch.Tensor):
        return '{"x": torch.randn(n, ...), "y": ...}' if isinstance(batch, dict) else "(torch.randn(n, ...), ...)"
    rest = "".join(f", {size}" for size in batch.shape[1:])
    return f"torch.randn(n{rest})" if batch.is_floating_point() else f"torch.randint(0, 10, (n,{rest[1:]}))"


def _check_arguments(fields: Mapping[str, object], field: str, arguments: tuple[object, ...], what: str, way: str) -> None:
    """Raises JobError where a function cannot be called so; one whose signature Python does not know passes."""
    function = fields.get(field)
    if not callable(function):
        return
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise JobError(
            f"a job's {field} is called with {what}, which {name} does not take ({error}).",
            [f"write {field}={way.format(name=name)}"],
        ) from None
