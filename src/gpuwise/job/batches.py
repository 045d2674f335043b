"""Batches: the tensors in one, whatever holds them, and the number of samples in one."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING

from gpuwise.errors import GpuwiseError, JobError, message_of
from gpuwise.job.job import Batch, Job

if TYPE_CHECKING:
    from torch import Tensor

_PLAIN = (str, bytes, int, float, complex, type(None))


def checked_batch(job: Job, n: int) -> Batch:
    """The job's example batch of n samples, with every tensor's first dimension checked, or the count of its `samples_in`.

    Raises JobError naming the tensor and its shape, or what the batch function raised.
    """
    try:
        batch = job.batch(n)
    except GpuwiseError:
        raise
    except Exception as error:
        raise JobError(
            f"the job's batch function raised at batch({n}): {type(error).__name__}: {message_of(error)}.",
            ["call it by itself in Python to see where"],
        ) from error
    tensors = list(named_tensors(batch))
    if not tensors:
        raise JobError(
            f"batch({n}) holds no tensors, it is {type(batch).__name__}.", ['return a dict such as {"x": torch.randn(n, 20)}']
        )
    if job.samples_in is not None:
        if (count := _samples_in(job, batch)) != n:
            raise JobError(
                f"batch({n}) holds {count} samples by the job's samples_in; it must hold {n}.",
                ["make n samples in batch(n)", "correct samples_in"],
            )
        return batch
    for key, tensor in tensors:
        if tensor.dim() == 0 or tensor.shape[0] != n:
            raise JobError(
                f"batch({n}) gave {key} of shape {tuple(tensor.shape)}; its first dimension must be {n}.",
                [
                    "return tensors of n samples, samples first",
                    "where first dimensions are nodes or tokens: samples_in=lambda batch: ... in the Job",
                ],
            )
    return batch


def _samples_in(job: Job, batch: Batch) -> int:
    assert job.samples_in is not None
    try:
        return operator.index(job.samples_in(batch))
    except GpuwiseError:
        raise
    except Exception as error:
        raise JobError(
            f"the job's samples_in does not give a whole number: {type(error).__name__}: {message_of(error)}.",
            ["a Python number, such as len(batch['graphs']): a forecast's tensors have shapes, but no values"],
        ) from error


def named_tensors(batch: Batch, name: str = "batch") -> Iterator[tuple[str, Tensor]]:
    """Every tensor with its path, such as ("batch['x']", tensor), in what `map_tensors` goes through."""
    import torch

    if isinstance(batch, torch.Tensor):
        yield name, batch
    elif isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from named_tensors(value, f"{name}[{key!r}]")
    elif isinstance(batch, list | tuple):
        for index, value in enumerate(batch):
            yield from named_tensors(value, f"{name}[{index}]")
    elif _applies(batch):
        tensors: list[Tensor] = []

        def look(tensor: Tensor) -> Tensor:
            tensors.append(tensor)
            return tensor

        copy.copy(batch).apply(look)
        for index, tensor in enumerate(tensors):
            yield f"{name}'s tensor {index}", tensor
    else:
        for key, value in _attributes(batch).items():
            yield from named_tensors(value, f"{name}.{key}")


def map_tensors(batch: Batch, function: Callable[[Tensor], Tensor]) -> Batch:
    """The batch with `function` applied to each tensor. Types are kept, and the batch itself stays as it is.

    It goes through mappings, lists, tuples and the attributes of other objects: a data class, say. An object with an
    `apply` method (PyTorch Geometric's data) applies the function itself.
    """
    import torch
    from torch.nn.utils.rnn import PackedSequence

    if isinstance(batch, torch.Tensor):
        return function(batch)
    if isinstance(batch, MutableMapping):  # such as transformers' BatchEncoding, and its outputs, which have no `update`
        changed = copy.copy(batch)
        for key, value in batch.items():
            changed[key] = map_tensors(value, function)
        return changed
    if isinstance(batch, Mapping):
        return {key: map_tensors(value, function) for key, value in batch.items()}
    if isinstance(batch, PackedSequence):  # its lengths stay on the host
        data, lengths, *indices = batch
        return PackedSequence(function(data), lengths, *(map_tensors(index, function) for index in indices))
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_tensors(value, function) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map_tensors(value, function) for value in batch)
    if _applies(batch):
        return copy.copy(batch).apply(function)
    if attributes := _attributes(batch):
        changed = copy.copy(batch)
        for key, value in attributes.items():
            object.__setattr__(changed, key, map_tensors(value, function))  # a data class may be frozen
        return changed
    return batch


def _applies(value: object) -> bool:
    return not isinstance(value, (*_PLAIN, type)) and callable(getattr(value, "apply", None))


def _attributes(value: object) -> dict[str, object]:
    """The attributes of an object that are tensors or may hold some."""
    import torch

    if isinstance(value, (*_PLAIN, type)) or not hasattr(value, "__dict__"):
        return {}
    holders = torch.Tensor | Mapping | list | tuple
    return {key: attribute for key, attribute in vars(value).items() if isinstance(attribute, holders)}
