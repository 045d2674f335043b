"""What is kept out of every fit, by rules fixed in code that look at no result.

Shapes of kernel tables: one in five, by checksum of the shape, so that a shape is kept out on all devices. Models of whole
steps: one in three, by checksum of the name. Whole devices: fits for `unseen device` rows are made once more without any row
of the device (or of its architecture, where the table has few devices).
"""

from __future__ import annotations

from zlib import crc32

import numpy as np


def kept_out_shapes(*columns: np.ndarray) -> np.ndarray:
    """Which rows are kept out, by the numbers that make their shape."""
    text = ["x".join(f"{value:g}" for value in row) for row in zip(*columns, strict=True)]
    return np.array([crc32(shape.encode()) % 5 == 0 for shape in text], dtype=bool)


def kept_out_model(name: str) -> bool:
    return crc32(name.encode()) % 3 == 0


def sets_several(row: str) -> bool:
    """Whether a row of several devices may set figures, by what names it; the others are the test."""
    return crc32(f"several {row}".encode()) % 2 == 0
