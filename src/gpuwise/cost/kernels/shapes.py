"""Shapes and Hardware: the inputs of term functions.

They are arrays with one entry an operation, so the same code prices a step and a table of measurements of several chips.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpuwise.trace.tables import Operations


@dataclass(frozen=True)
class Shapes:
    """Numbers of operations of one class (columns of gpuwise.trace.tables.COLUMNS), as floats. All of shape (operations,).

    element_bytes: of the type computed in. weight_bytes: of an element of the second operand, where it is kept in narrower
    numbers than products compute in; 0 where it is not. images: samples of a micro-batch, 1 where unknown: a convolution's m
    over it is the area of one image.
    """

    flops: np.ndarray
    bytes_read: np.ndarray
    bytes_written: np.ndarray
    kernels: np.ndarray
    batch: np.ndarray
    m: np.ndarray
    n: np.ndarray
    k: np.ndarray
    causal: np.ndarray
    element_bytes: np.ndarray
    images: np.ndarray | float = 1.0
    weight_bytes: np.ndarray | float = 0.0

    @property
    def second_operand_bytes(self) -> np.ndarray:
        """Bytes of the second operand of products: the weights, where there are any."""
        each = np.where(np.asarray(self.weight_bytes) > 0, self.weight_bytes, self.element_bytes)
        return np.asarray(self.batch * self.n * self.k * each)

    def with_weights(self, weight_bytes: float) -> Shapes:
        """The same products with a second operand of narrower numbers."""
        saved = self.batch * self.n * self.k * np.maximum(self.element_bytes - weight_bytes, 0.0)
        return replace(
            self, bytes_read=np.maximum(self.bytes_read - saved, 0.0), weight_bytes=np.full(self.m.shape, weight_bytes)
        )

    def computed_in(self, dtype: str) -> Shapes:
        """The same products with a first operand of another type."""
        element_bytes = np.full(self.m.shape, ELEMENT_BYTES[dtype])
        saved = self.batch * self.m * self.k * (self.element_bytes - element_bytes)
        return replace(self, bytes_read=np.maximum(self.bytes_read - saved, 0.0), element_bytes=element_bytes)

    @property
    def moved_bytes(self) -> np.ndarray:
        return self.bytes_read + self.bytes_written

    @classmethod
    def of(cls, operations: Operations, *, images: float = 1.0) -> Shapes:
        """A Trace's distinct operations."""
        names = ("flops", "bytes_read", "bytes_written", "kernels", "batch", "m", "n", "k", "causal")
        columns = {name: operations.column(name).astype(float) for name in names}
        element_bytes = np.array([ELEMENT_BYTES.get(dtype, 4.0) for dtype in operations.dtype])
        count = len(operations)
        return cls(**columns, element_bytes=element_bytes, images=np.full(count, float(images)), weight_bytes=np.zeros(count))

    def take(self, rows: np.ndarray) -> Shapes:
        """Those of the chosen rows."""
        columns = (column if np.ndim(column) == 0 else np.asarray(column)[rows] for column in vars(self).values())
        return Shapes(*columns)


ELEMENT_BYTES = {
    "float64": 8.0,
    "int64": 8.0,
    "float32": 4.0,
    "int32": 4.0,
    "complex64": 8.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "int16": 2.0,
    "float8_e4m3fn": 1.0,
    "float8_e5m2": 1.0,
    "int8": 1.0,
    "uint8": 1.0,
    "bool": 1.0,
    "float4_e2m1fn_x2": 0.5,
}

USUAL_CLOCK_HZ = 1.8e9  # of GPUs whose boost clock the catalog does not have


@dataclass(frozen=True)
class Hardware:
    """Figures of the chip behind each operation: numbers, or arrays of shape (operations,).

    peak_flops_per_s: of the units that compute it, as far as the board's power sustains it; 1 where none do.
    units: multiprocessors or cores. cache_bytes: the last-level cache. array_side: of a systolic array, numbers.
    clock_hz: at boost.
    """

    peak_flops_per_s: np.ndarray | float
    bandwidth_bytes_per_s: np.ndarray | float
    units: np.ndarray | float
    cache_bytes: np.ndarray | float
    array_side: np.ndarray | float = 1.0
    clock_hz: np.ndarray | float = USUAL_CLOCK_HZ


@dataclass(frozen=True)
class KernelTerms:
    """Times at datasheet figures by name, seconds; and features of shapes for curves, positive. Shape (operations,) each.

    floor: how long a kernel's floor is here against the chip it is stated for, where it runs with the clock.
    """

    seconds: dict[str, np.ndarray]
    features: dict[str, np.ndarray]
    floor: np.ndarray | float = 1.0
