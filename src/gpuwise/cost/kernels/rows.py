"""Kernels that work row by row, norms and softmax: a block of threads reads a row, reduces it, and reads it again, so that
short rows cost time that their bytes do not explain, and long ones are read more than once."""

from __future__ import annotations

import numpy as np

from gpuwise.cost.kernels import streaming
from gpuwise.cost.kernels.shapes import Hardware, KernelTerms, Shapes

ROW_S = 1e-6  # what a unit is taken to spend on a row, before the calibrated scale
USUAL_LENGTH, USUAL_VOCABULARY = 1024.0, 32768.0  # of rows whose length is not recorded: of attention scores, of logits


def norm_terms(shapes: Shapes, hardware: Hardware) -> KernelTerms:
    """Of normalisations. memory: all bytes at full bandwidth. rows: rows dealt to the chip's units.

    Features: those of gpuwise.cost.kernels.streaming; length, numbers in a row.
    """
    return _terms(shapes, hardware, *_norm_rows(shapes))


def softmax_terms(shapes: Shapes, hardware: Hardware) -> KernelTerms:
    """As norm_terms. Rows and length are the columns m and k; without them, USUAL_LENGTH and the rows it gives."""
    return _terms(shapes, hardware, *_rows(shapes, USUAL_LENGTH))


def loss_terms(shapes: Shapes, hardware: Hardware) -> KernelTerms:
    """As softmax_terms, with USUAL_VOCABULARY: log-softmax is all but the whole of a loss over classes."""
    return _terms(shapes, hardware, *_rows(shapes, USUAL_VOCABULARY))


def _terms(shapes: Shapes, hardware: Hardware, rows: np.ndarray, length: np.ndarray) -> KernelTerms:
    moved = streaming.terms(shapes, hardware)
    return KernelTerms({**moved.seconds, "rows": ROW_S * rows / hardware.units}, {**moved.features, "length": length})


def _norm_rows(shapes: Shapes) -> tuple[np.ndarray, np.ndarray]:
    """Rows and numbers in a row: the columns m and k where they are recorded, as backward, else from the bytes.

    Layer norm reads rows × length numbers and 2 × length weights, and writes as many numbers with the float32 mean and
    reciprocal deviation of each row; that is two equations. Their solution grows with the bytes or stays.
    """
    size = shapes.element_bytes
    extra = (shapes.bytes_written - shapes.bytes_read) / 8  # rows - size × length / 4
    half = (extra + 2) / (size / 2)
    length = np.maximum(np.sqrt(half**2 + 4 * shapes.bytes_read / size**2) - half, 1.0)
    rows = np.maximum(extra + size * length / 4, 1.0)
    has_rows = shapes.m > 0
    return np.where(has_rows, shapes.m, rows), np.where(has_rows, np.maximum(shapes.k, 1.0), length)


def _rows(shapes: Shapes, usual: float) -> tuple[np.ndarray, np.ndarray]:
    length = np.where(shapes.k > 0, shapes.k, usual)
    return np.where(shapes.m > 0, shapes.m, shapes.bytes_written / shapes.element_bytes / length), length
