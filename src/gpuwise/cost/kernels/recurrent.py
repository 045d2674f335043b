"""Recurrent layers on GPUs as the products they are made of (Appleyard et al. 2016, "Optimizing Performance of Recurrent Neural
Networks on GPUs", arXiv:1604.01946): what meets the inputs is one product over all times, what meets the state is one product
a time, each of which waits for the one before.

Nothing is fitted to recurrent layers: the figures are those of products.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuwise.cost.kernels.shapes import Shapes

KERNELS_A_TIME = 2.0  # the product, and a kernel over its gates


def has_dims(shapes: Shapes) -> bool:
    """Whether the operations were recorded with the dimensions of a time step."""
    return bool((shapes.m > 0).all())


def of_one_time(shapes: Shapes) -> Shapes:
    """The product of one time step of a layer: batch is how many there are, one after the other."""
    one = np.ones_like(shapes.m)
    size = shapes.element_bytes
    return replace(
        shapes,
        batch=one,
        kernels=one * KERNELS_A_TIME,
        flops=2 * shapes.m * shapes.n * shapes.k,
        bytes_read=size * (shapes.m * shapes.k + shapes.k * shapes.n),
        bytes_written=size * shapes.m * shapes.n,
    )


def over_all_times(shapes: Shapes) -> Shapes:
    """What is left of the operations: products of all rows of all times, joined to one with the same arithmetic."""
    rows = shapes.batch * shapes.m
    flops = np.maximum(shapes.flops - 2 * rows * shapes.n * shapes.k, 0.0)
    one = np.ones_like(rows)
    return replace(shapes, batch=one, m=rows, k=flops / (2 * rows * shapes.n), kernels=one, flops=flops)
