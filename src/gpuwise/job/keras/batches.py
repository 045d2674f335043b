"""Batches of a Keras job: columns by name, of the user's arrays or like what the model takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from gpuwise.errors import InputError, JobError
from gpuwise.notes import Note
from gpuwise.notes import keras as notes

if TYPE_CHECKING:
    import keras
    import numpy as np

Values: TypeAlias = "np.ndarray | Tensor | Mapping[str, Values] | Sequence[Values]"
Arrays: TypeAlias = "tuple[Values, Values] | tuple[Values, Values, Values]"
Columns = dict[str, Tensor]

_NAMES = ("x", "y", "sample_weight")  # as `fit` calls them
_WORDS = 2  # assumed where no embedding says how many there are


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
class Column:
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


def _rows(of: Mapping[str, Column], n: int) -> Columns:
    return {name: column.rows(n) for name, column in of.items()}


def batch_like_data(data: Columns) -> Callable[[int], Columns]:
    """Makes batches of random numbers in the range of the data."""
    return partial(_rows, {name: Column(tuple(t.shape[1:]), t.dtype, _below(t)) for name, t in data.items()})


def _below(tensor: Tensor) -> int:
    return (
        2 if tensor.is_floating_point() or not tensor.numel() or tensor.dtype == torch.bool else max(1, int(tensor.max()) + 1)
    )


def batch_like_model(
    model: keras.Model, *, seq_len: int | None, image_size: int | None
) -> tuple[Callable[[int], Columns], tuple[Note, ...]]:
    """Makes batches of random numbers for the inputs of a model and, by its loss, for its outputs. With what is assumed.

    Raises JobError for a model without keras.Input, InputError for an open size that no argument sets.
    """
    import keras

    if not getattr(model, "inputs", None):
        raise JobError(
            f"the Keras model {model.name} has no keras.Input, so the shapes of its inputs are not known.",
            ["put data = (x, y) beside it in the file"],
        )
    shapes = {tensor.name: _closed(tensor, seq_len, image_size) for tensor in model.inputs}
    words = [layer.input_dim for layer in model._flatten_layers() if isinstance(layer, keras.layers.Embedding)]
    inputs = [Column(shapes[t.name], getattr(torch, t.dtype), min(words, default=_WORDS)) for t in model.inputs]
    outputs = [tuple(tensor.shape[1:]) for tensor in model.outputs]
    if any(None in shape for shape in outputs):
        symbols = [keras.KerasTensor((None, *shapes[t.name]), t.dtype) for t in model.inputs]
        packed = keras.tree.pack_sequence_as(model._inputs_struct, symbols) if len(symbols) > 1 else symbols[0]
        outputs = [tuple(tensor.shape[1:]) for tensor in keras.tree.flatten(model.compute_output_spec(packed))]
    losses = _losses(model)
    targets = [_target(shape, sparse=_is_sparse(loss)) for shape, loss in zip(outputs, losses, strict=True)]
    named = dict(zip([*_paths("x", model.input), *_paths("y", model.output)], [*inputs, *targets], strict=True))
    return partial(_rows, named), (notes.assumed_targets(shapes=", ".join(str(list(t.shape)) for t in targets)),)


def _closed(tensor: keras.KerasTensor, seq_len: int | None, image_size: int | None) -> tuple[int, ...]:
    """The shape of a sample, its open sizes being the edge of an image or the length of a sequence."""
    shape = tensor.shape[1:]
    edge = len(shape) == 3
    size, flag = (image_size, "--image-size") if edge else (seq_len, "--seq-len")
    if None in shape and size is None:
        raise InputError(f"the Keras input {tensor.name} of shape {list(shape)} leaves a size open.", [f"set it with {flag}"])
    return tuple(size if each is None else each for each in shape)


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


def _target(shape: tuple[int, ...], *, sparse: bool) -> Column:
    import keras

    return Column(shape[:-1], torch.int64, shape[-1]) if sparse else Column(shape, getattr(torch, keras.config.floatx()))


def _paths(name: str, structure: object) -> list[str]:
    """The names of a model's inputs or outputs as columns, in Keras's order."""
    import keras

    return ["/".join([name, *map(str, path)]) for path, _ in keras.tree.flatten_with_path(structure)]
