"""The shapes of gradients at sizes other than the recorded ones: position embeddings grow with the image."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from gpuwise.trace.tables import CATEGORIES, Storages

Shape = tuple[int, ...]
_GRADIENT = CATEGORIES.index("gradient")


def growing_gradients(storages: Storages) -> list[tuple[int, int]]:
    """Which gradients of a family change with its sizes: the number of each among the gradients, and its row.

    storages: size_bytes of shape (storages, terms), of which the first is the size at the smallest sizes.
    """
    rows = np.flatnonzero(storages.category == _GRADIENT)
    grows = (storages.size_bytes[rows, 1:] != 0).any(axis=1) & (storages.size_bytes[rows, 0] > 0)
    numbers = np.flatnonzero(grows)
    return list(zip(numbers.tolist(), rows[numbers].tolist(), strict=True))


def shapes_at(
    shapes: Sequence[Shape], growing: Sequence[tuple[int, int]], smallest_bytes: np.ndarray, size_bytes: np.ndarray
) -> tuple[Shape, ...]:
    """The shapes where the storages have these sizes.

    Arguments:
        shapes: of all gradients at the smallest sizes.
        growing: of `growing_gradients`.
        smallest_bytes, size_bytes: of each storage at the smallest sizes, and where the shapes are needed.
    """
    result = list(shapes)
    for number, row in growing:
        elements = round(size_bytes[row] * prod(shapes[number]) / smallest_bytes[row])
        result[number] = _of_elements(shapes[number], elements)
    return tuple(result)


def _of_elements(shape: Shape, elements: int) -> Shape:
    """The shape with so many elements: one of its dimensions differs, the first that can."""
    for dim, length in enumerate(shape):
        others = prod(shape) // length
        if elements % others == 0:
            return (*shape[:dim], elements // others, *shape[dim + 1 :])
    return shape
