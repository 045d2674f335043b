"""Batches of a Keras job: columns by name, of the user's arrays or like what the model takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from gpuwise.errors import JobError
from gpuwise.notes import Note
from gpuwise.notes import job as job_notes
from gpuwise.notes import keras as notes

if TYPE_CHECKING:
    import keras
    import numpy as np

Values: TypeAlias = "np.ndarray | Tensor | Mapping[str, Values] | Sequence[Values]"
Arrays: TypeAlias = "tuple[Values, Values] | tuple[Values, Values, Values]"
Columns = dict[str, Tensor]

_NAMES = ("x", "y", "sample_weight")  # as `fit` calls them
_WORDS = 2  # assumed where no embedding says how many there are
_LENGTH, _PIXELS = 128, 224  # assumed where the model leaves them open and no flag sets them


def columns(arrays: Arrays) -> Columns:
    """Arrays (x, y[, sample_weight]) as tensors by name: "x", or "x/image" and "x/0" of a dict and a list.

    Floats take the type that Keras computes in, as `fit` gives them to the model. Raises JobError for anything else.
    """
    if not isinstance(arrays, tuple) or not 2 <= len(arrays) <= 3:
        raise JobError(
            f"the data of a Keras model is (x, y) or (x, y, sample_weight), got {type(arrays).__name__}.",
            ["data = (x, y), or a function that returns them"],
        )
    return {
        key: _tensor(array, key) for name, values in zip(_NAMES, arrays, strict=False) for key, array in _flat(values, name)
    }


def _flat(values: Values, name: str) -> Iterator[tuple[str, Values]]:
    items = values.items() if isinstance(values, Mapping) else enumerate(values) if isinstance(values, list | tuple) else None
    if items is None:
        yield name, values
        return
    for key, value in items:
        yield from _flat(value, f"{name}/{key}")


def _tensor(array: Values, name: str) -> Tensor:
    import keras

    try:
        tensor = torch.as_tensor(array)
    except (TypeError, ValueError, RuntimeError) as error:
        raise JobError(
            f"{name} of the Keras data is a {type(array).__name__}, which is no array of numbers.",
            ["encode text and categories before: gpuwise trains on arrays"],
        ) from error
    return tensor.to(getattr(torch, keras.config.floatx())) if tensor.is_floating_point() else tensor


def values_of(batch: Mapping[str, Tensor], name: str) -> object:
    """What `columns` made columns of, from a batch: a tensor, a dict or a list of them; None for an absent name."""
    if name in batch:
        return batch[name]
    parts = {key.removeprefix(f"{name}/"): None for key in batch if key.startswith(f"{name}/")}
    heads = dict.fromkeys(part.partition("/")[0] for part in parts)
    if not heads:
        return None
    nested = {head: values_of(batch, f"{name}/{head}") for head in heads}
    return list(nested.values()) if all(head.isdigit() for head in heads) else nested


@dataclass(frozen=True)
class ArrayColumn:
    """What one sample has in a column.

    Attributes:
        shape: of a sample.
        dtype: of its numbers.
        below: upper limit of whole numbers.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    below: int = 2

    def rows(self, n: int) -> Tensor:
        """Random rows: floats from 0 to 1, which any loss takes."""
        if self.dtype.is_floating_point:
            return torch.rand(n, *self.shape, dtype=self.dtype)
        return torch.randint(0, self.below, (n, *self.shape), dtype=self.dtype)


def _rows(of: Mapping[str, ArrayColumn], n: int) -> Columns:
    return {name: column.rows(n) for name, column in of.items()}


def batch_like_data(data: Columns) -> Callable[[int], Columns]:
    """Makes batches of random numbers in the range of the data."""
    return partial(_rows, {name: ArrayColumn(tuple(t.shape[1:]), t.dtype, _below(t)) for name, t in data.items()})


def _below(tensor: Tensor) -> int:
    return (
        2 if tensor.is_floating_point() or not tensor.numel() or tensor.dtype == torch.bool else max(1, int(tensor.max()) + 1)
    )


@dataclass(frozen=True)
class ModelBatch:
    """Batches for a model without data.

    Attributes:
        make: makes one of n samples.
        seq_len, image_size: what the open sizes of its inputs are; None where there are none.
        notes: what is assumed.
    """

    make: Callable[[int], Columns]
    seq_len: int | None
    image_size: int | None
    notes: tuple[Note, ...]


def batch_like_model(model: keras.Model, *, seq_len: int | None, image_size: int | None) -> ModelBatch:
    """Batches of random numbers for the inputs of a model and, by its loss, for its outputs.

    Raises JobError for a model without keras.Input.
    """
    import keras

    if not getattr(model, "inputs", None):
        raise JobError(
            f"the Keras model {model.name} has no keras.Input, so the shapes of its inputs are not known.",
            ["put data = (x, y) beside it in the file"],
        )
    graph = getattr(model, "_functional", None) or model  # a Sequential has one inside
    guesses: list[Note] = []
    is_open = {len(t.shape) == 4 for t in model.inputs if None in t.shape[1:]}  # images have three dimensions a sample
    if True in is_open and image_size is None:
        image_size = _PIXELS
        guesses.append(job_notes.assumed_image_size(pixels=image_size))
    if False in is_open and seq_len is None:
        seq_len = _LENGTH
        guesses.append(job_notes.assumed_sequence_length(length=seq_len))
    sizes = {t.name: [n or (image_size if len(t.shape) == 4 else seq_len) for n in t.shape[1:]] for t in model.inputs}
    shapes = {name: tuple(int(size) for size in of_input if size is not None) for name, of_input in sizes.items()}
    words = [layer.input_dim for layer in model._flatten_layers() if isinstance(layer, keras.layers.Embedding)]
    inputs = [ArrayColumn(shapes[t.name], getattr(torch, t.dtype), min(words, default=_WORDS)) for t in model.inputs]
    outputs = [tuple(tensor.shape[1:]) for tensor in model.outputs]
    if any(None in shape for shape in outputs):
        symbols = [keras.KerasTensor((None, *shapes[t.name]), t.dtype) for t in model.inputs]
        results = model.compute_output_spec(keras.tree.pack_sequence_as(graph._inputs_struct, symbols))
        outputs = [tuple(tensor.shape[1:]) for tensor in keras.tree.flatten(results)]
    targets = [_target(shape, sparse=_is_sparse(loss)) for shape, loss in zip(outputs, _losses(model), strict=True)]
    names = [*_paths("x", graph._inputs_struct), *_paths("y", graph._outputs_struct)]
    named = dict(zip(names, [*inputs, *targets], strict=True))
    guesses.append(notes.assumed_targets(shapes=", ".join(str(list(t.shape)) for t in targets)))
    return ModelBatch(
        partial(_rows, named),
        seq_len if False in is_open else None,
        image_size if True in is_open else None,
        tuple(guesses),
    )


def _losses(model: keras.Model) -> list[object]:
    import keras

    count = len(model.outputs)
    loss = model.loss
    if isinstance(loss, dict):
        return [loss.get(name) for name in model.output_names]
    return keras.tree.flatten(loss) if isinstance(loss, list | tuple) else [loss] * count


def _is_sparse(loss: object) -> bool:
    name = loss if isinstance(loss, str) else getattr(loss, "name", None) or getattr(loss, "__name__", "")
    return "sparse" in str(name).lower()


def _target(shape: tuple[int, ...], *, sparse: bool) -> ArrayColumn:
    import keras

    return (
        ArrayColumn(shape[:-1], torch.int64, shape[-1]) if sparse else ArrayColumn(shape, getattr(torch, keras.config.floatx()))
    )


def _paths(name: str, structure: object) -> list[str]:
    """The names of a model's inputs or outputs as columns, in Keras's order."""
    import keras

    return ["/".join([name, *map(str, path)]) for path, _ in keras.tree.flatten_with_path(structure)]
