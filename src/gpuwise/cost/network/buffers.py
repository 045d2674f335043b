"""The time in which a rank copies what its collectives send into buffers, and what they bring out of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gpuwise.cost.calibration import Calibration
from gpuwise.cost.kernels import class_times
from gpuwise.cost.kernels.shapes import Shapes
from gpuwise.cost.parameters import Parameters
from gpuwise.hardware.types import Chip
from gpuwise.trace.parallel.communication import Communication


def copies_s(
    communication: Communication, chip: Chip, *, precision: str, parameters: Parameters, calibration: Calibration
) -> Mapping[str, float]:
    """Seconds of the copies in one step, by axis of the mesh: as kernels that copy, one for the parts of each call.

    Where a step was recorded on its mesh, these are rows of it, and its collectives copy nothing.
    """
    copying = [c for c in communication.collectives if c.copied_bytes]
    if not copying:
        return {}
    calls = np.array([max(1, c.calls) for c in copying], dtype=np.float64)
    each_bytes = np.array([c.copied_bytes for c in copying], dtype=np.float64) / calls
    each_s = copy_s(each_bytes, chip, precision=precision, parameters=parameters, calibration=calibration)
    seconds: dict[str, float] = {}
    for collective, all_s in zip(copying, (calls * each_s).tolist(), strict=True):
        seconds[collective.group.axis] = seconds.get(collective.group.axis, 0.0) + all_s
    return seconds


def copy_s(
    size_bytes: np.ndarray, chip: Chip, *, precision: str, parameters: Parameters, calibration: Calibration
) -> np.ndarray:
    """Seconds of kernels that each copy so many bytes, read and written together. Shape (sizes,), as `size_bytes`."""
    none = np.zeros(len(size_bytes))
    shapes = Shapes(
        flops=none,
        bytes_read=size_bytes,
        bytes_written=none,
        kernels=none + 1,
        batch=none,
        m=none,
        n=none,
        k=none,
        causal=none,
        element_bytes=none + 2,
    )
    times = class_times("copy", "", shapes, chip, precision=precision, parameters=parameters, calibration=calibration)
    return times.device_s
