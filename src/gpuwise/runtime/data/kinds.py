"""Kinds of job data (columns, samples by index, or a stream), and the parts of a DataLoader that are used."""

from __future__ import annotations

from collections.abc import Iterable
from types import NoneType
from typing import Any, TypeGuard

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, default_collate

from gpuwise.errors import JobError
from gpuwise.job import Job
from gpuwise.job.batches import named_tensors
from gpuwise.notes import Note
from gpuwise.notes import data as data_notes
from gpuwise.runtime.data.draws import draws_of
from gpuwise.runtime.data.samples import OWN_COLLATE, Collate, leaves

Shapes = dict[str, tuple[tuple[int, ...], torch.dtype]]


def unwrapped(data: object) -> tuple[object, Collate, DataLoader[object] | None]:
    """The data set, its collate function, and the DataLoader around it (None without one)."""
    loader = data if isinstance(data, DataLoader) else None
    data = data if loader is None else loader.dataset
    collate = default_collate if loader is None or loader.batch_sampler is None else loader.collate_fn
    if collate is default_collate and type(data).__module__.startswith("datasets."):
        data = _in_torch_format(data)
    return data, collate, loader


def is_stream(data: object) -> TypeGuard[Iterable[object]]:
    """True for an iterable, False for a map-style data set. Raises JobError for any other object."""
    if not isinstance(data, IterableDataset) and hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return False
    if hasattr(data, "__iter__"):
        return True
    raise JobError(
        f"the job's data is a {type(data).__name__}: neither a dataset nor an iterable of samples.",
        ["give a map-style Dataset, or a dict of tensors of equal length"],
    )


def loader_notes(loader: DataLoader[object]) -> list[Note]:
    """Notes on settings of a DataLoader that are not used."""
    notes = [data_notes.dataset_of_loader()]
    kind = type(loader.sampler)
    weighted = isinstance(loader.sampler, RandomSampler) and loader.sampler.replacement
    if kind.__module__.split(".")[0] not in ("torch", "torchdata") or weighted or "Weighted" in kind.__name__:
        notes.append(data_notes.sampler_left_out(sampler=kind.__name__))
    if type(loader.batch_sampler) not in (BatchSampler, NoneType):
        notes.append(data_notes.batch_sampler_left_out(sampler=type(loader.batch_sampler).__name__))
    return notes


def differences(job: Job, batch: object) -> list[Note]:
    """A note if the samples differ in shape from the example batch, on which forecasts are based.

    Raises JobError when the samples hold no tensors.
    """
    example, data = _example(job), _shapes(batch)
    if not data:
        raise JobError(
            f"the job's data gives no tensors: a batch of it is a {type(batch).__name__}.",
            ['samples such as {"x": tensor}', OWN_COLLATE],
        )
    if job.samples_in is not None:  # sizes vary between batches, so only the parts and their dtypes are compared
        example, data = _without_sizes(example), _without_sizes(data)
    if example == data:
        return []
    name = next((n for n in {**example, **data} if example.get(n) != data.get(n)), "")
    expected, actual = (_described(side.get(name)) for side in (example, data))
    return [data_notes.data_unlike_the_example(name=name, data=actual, example=expected)]


def refuse_batches(job: Job, sample: object) -> None:
    """Raises JobError when a stream yields batches instead of samples: every part has one dimension too many."""
    if job.samples_in is not None:
        return
    example = {name: shape for name, (shape, _) in _example(job).items()}
    shapes = {name: tuple(leaf.shape) for name, leaf in leaves(sample, "batch") if hasattr(leaf, "shape")}
    if (
        shapes
        and example.keys() == shapes.keys()
        and all(len(shape) == 1 + len(example[name]) and shape[1:] == example[name] for name, shape in shapes.items())
    ):
        name, shape = next(iter(shapes.items()))
        raise JobError(
            f"the job's data gives batches, not samples: {name} is {list(shape)} a sample, "
            f"{list(shape[1:])} in the example batch. gpuwise puts samples together itself.",
            ["leave out .batched() or batch_size in data()", "unbatch it: yield from each batch"],
        )


def _example(job: Job) -> Shapes:
    with draws_of(0):  # keeps the random state of training unchanged
        return _shapes(job.batch(1))


def _shapes(batch: object) -> Shapes:
    """The shape and dtype of each tensor of a batch, for one sample."""
    return {name: (tuple(tensor.shape[1:]), tensor.dtype) for name, tensor in named_tensors(batch)}


def _without_sizes(shapes: Shapes) -> Shapes:
    return {name: ((-1,) * len(shape), dtype) for name, (shape, dtype) in shapes.items()}


def _described(tensor: tuple[tuple[int, ...], torch.dtype] | None) -> str:
    if tensor is None:
        return "absent"
    sizes = ", ".join("?" if size < 0 else str(size) for size in tensor[0])
    return f"[{sizes}] {str(tensor[1]).removeprefix('torch.')} a sample"


def _in_torch_format(data: Any) -> object:
    """A Hugging Face data set that returns tensors. default_collate would split its Python lists."""
    if not hasattr(data, "with_format"):
        return data
    formatted = getattr(data, "_formatting", None) if isinstance(data, IterableDataset) else data.format["type"]
    return data if formatted is not None else data.with_format("torch")
