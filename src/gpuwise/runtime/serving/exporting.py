"""export: a model's forward pass as an ONNX graph whose number of samples is dynamic."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import torch
from torch import nn

from gpuwise.errors import UnsupportedError, message_of
from gpuwise.job.batches import map_tensors, named_tensors
from gpuwise.job.dependencies import require
from gpuwise.job.job import Batch
from gpuwise.runtime.parallel.job_loss import LossFunction


class TensorCall(nn.Module):
    """A model's call, from the tensors among its arguments to those of its output."""

    def __init__(self, model: nn.Module, arguments: Batch) -> None:
        super().__init__()
        self.model, self._arguments = model, arguments

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inputs = iter(tensors)
        args, kwargs = map_tensors(self._arguments, lambda _: next(inputs))
        return tuple(tensor for _, tensor in named_tensors(self.model(*args, **kwargs)))


class OwnForward(nn.Module):
    """A job's own forward pass as a module, from a batch to its answers."""

    def __init__(self, model: nn.Module, forward: Callable[[nn.Module, Batch], object]) -> None:
        super().__init__()
        self.model, self._forward = model, forward

    def forward(self, batch: Batch) -> object:
        return self._forward(self.model, batch)


def export(model: nn.Module, one: Batch, several: Batch, path: Path, *, job: str) -> None:
    """Writes the ONNX graph of a model's call. Its inputs are the tensors among the arguments, in their order.

    Arguments:
        one, several: arguments of a call with one sample, and with some. Tensors whose first dimensions differ have one of
            samples, which is dynamic.

    Raises UnsupportedError where PyTorch cannot export it, MissingDependencyError without the exporter's packages.
    """
    for package in ("onnx", "onnxscript"):
        require(package, purpose="export a model as an ONNX graph")
    tensors = tuple(tensor for _, tensor in named_tensors(several))
    alone = (tensor for _, tensor in named_tensors(one))
    samples = torch.export.Dim.DYNAMIC
    sizes = tuple({0: samples} if a.shape != b.shape else {} for a, b in zip(alone, tensors, strict=True))
    try:
        with _silent(), torch.no_grad():
            torch.onnx.export(
                TensorCall(model, several).eval(),
                tensors,
                path,
                dynamo=True,
                input_names=input_names(len(tensors)),
                dynamic_shapes={"tensors": sizes},
                verbose=False,
            )
    except Exception as error:  # the user's model may meet anything in the exporter
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = next(iter(message_of(cause).strip().splitlines()), "")[:300]
        raise UnsupportedError(
            f"PyTorch cannot export {job} as an ONNX graph: {type(cause).__name__}{': ' if reason else ''}{reason}",
            ["--engine pytorch", "torch.onnx.export(model, example, dynamo=True) by itself, which shows where"],
        ) from error


def model_arguments(model: nn.Module, loss: LossFunction, batch: Batch) -> tuple[tuple[object, ...], dict[str, object]]:
    """The arguments with which a job's loss calls its model. Raises UnsupportedError where it does not call it."""

    class _ReachedError(Exception):
        """Ends the loss where it calls the model."""

    calls: list[tuple[tuple[object, ...], dict[str, object]]] = []

    def stop(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        calls.append((args, kwargs))
        raise _ReachedError

    hook = model.register_forward_pre_hook(stop, with_kwargs=True)
    try:
        loss(model, batch)
    except _ReachedError:
        pass
    finally:
        hook.remove()
    if not calls:
        raise UnsupportedError(
            "the job's loss does not call its model as a whole, so that there is no pass to export.", ["--engine pytorch"]
        )
    return calls[0]


def input_names(count: int) -> list[str]:
    """Names of the inputs of a graph."""
    return [f"input_{number}" for number in range(count)]


@contextmanager
def _silent() -> Iterator[None]:
    """The exporter reports its progress on both streams, and warns of its own internals."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
