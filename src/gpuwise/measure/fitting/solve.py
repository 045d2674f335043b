"""solve: the figures of entries that explain measured times best. Kernels and whole steps are fitted by the same program.

Each measurement is a sum over operations (one for a kernel table, all of them for a step). scipy's bounded least squares
minimises a soft L1 loss of log(measured / forecast), which is robust to outliers, plus the squared distance of every figure
from its prior, the entry of the level above: little data moves little. Needs scipy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from scipy.linalg import block_diag
from scipy.optimize import least_squares

from gpuwise.cost.calibration import CalibrationEntry
from gpuwise.measure.fitting.design import Design
from gpuwise.measure.fitting.entry_model import MICRO, EntryModel, ParameterBlock

SOFT = 0.1  # log(measured / forecast) beyond which an error counts linearly, no longer squared
BEYOND_PEAK = 10.0  # weight of the squared violation of least_compute
MARGIN = 0.02  # of a figure's range: how far from its bounds a fit starts


@dataclass(frozen=True)
class MeasuredSeconds:
    """What entries are fitted to. Arrays have one item a measurement.

    Attributes:
        seconds: measured.
        weight: in the loss; 1 where None.
        fixed_s: part of the time that is not fitted; 0 where None.
        least_s: what a measurement takes at least (the host); 0 where None.
        overhead: whether the way of measuring added a constant, which is fitted and thrown away.
    """

    seconds: np.ndarray
    weight: np.ndarray | None = None
    fixed_s: np.ndarray | None = None
    least_s: np.ndarray | None = None
    overhead: bool = False


def solve(
    blocks: Mapping[str, ParameterBlock],
    designs: Mapping[str, Design],
    priors: Mapping[str, CalibrationEntry],
    measured: MeasuredSeconds,
    *,
    pull: float = 1e-3,
    smooth: float = 1e-2,
    iterations: int = 300,
    least_compute: float = 0.0,
) -> tuple[dict[str, CalibrationEntry], np.ndarray]:
    """Entries by key, and log(measured / forecast) of every measurement.

    Arguments:
        pull: weight of the squared distance of each parameter from its prior, against the mean loss of a measurement.
        smooth: weight of the squared changes of a curve's slope.
        iterations: evaluations of the model at most.
        least_compute: the share of its time at the peak that arithmetic takes at least. A guard for whole steps, which do not
            show which of their kernels took how long.
    """
    models = [EntryModel(designs[key], priors[key], block) for key, block in blocks.items()]
    ends = np.cumsum([0, *(len(model.prior) for model in models)]).tolist()
    parts = [slice(first, last) for first, last in pairwise(ends)]
    overhead = np.array([[20.0, 0.0, 100.0]] * measured.overhead).reshape(-1, 3).T  # in microseconds
    low, high = (
        np.concatenate([*(getattr(m, name) for m in models), overhead[row]]) for row, name in ((1, "low"), (2, "high"))
    )
    high = np.maximum(high, low + 1e-9)  # equal bounds fix a figure
    width = high - low
    start = np.clip(np.concatenate([*(m.prior for m in models), overhead[0]]), low + MARGIN * width, high - MARGIN * width)
    # Linear residuals: distances from the start as shares of the range (times 4, a sigmoid's slope in its middle), and bends.
    near, bends = np.sqrt(pull) * np.diag(4 / width), np.sqrt(smooth) * block_diag(*(m.bends for m in models), overhead[:0])
    linear = np.vstack([near, bends]) if len(bends) else near
    target = np.concatenate([near @ start, np.zeros(len(linear) - len(near))])
    count = len(measured.seconds)
    fixed_s = np.zeros(count) if measured.fixed_s is None else measured.fixed_s
    least_s = np.full(count, 1e-12) if measured.least_s is None else np.maximum(measured.least_s, 1e-12)
    weight = np.ones(count) if measured.weight is None else measured.weight

    @lru_cache(maxsize=1)  # scipy asks for residuals and derivatives at the same point
    def evaluate(point: bytes) -> tuple[np.ndarray, np.ndarray]:
        vector = np.frombuffer(point)
        total, slopes = fixed_s.copy(), np.zeros((count, len(vector)))
        guards, guard_slopes = np.zeros(len(models)), np.zeros((len(models), len(vector)))
        for index, (model, part) in enumerate(zip(models, parts, strict=True)):
            seconds, derivatives = model.seconds(vector[part], count)
            total += seconds
            slopes[:, part] = derivatives
            if least_compute:
                guards[index], guard_slopes[index, part] = model.beyond_the_peak(vector[part], least_compute)
        if measured.overhead:
            total, slopes[:, -1] = total + vector[-1] * MICRO, MICRO
        slopes[total < least_s] = 0.0
        total = np.maximum(total, least_s)
        residuals = [np.log(measured.seconds / total) / SOFT, linear @ vector - target, np.sqrt(BEYOND_PEAK) * guards]
        return np.concatenate(residuals), np.vstack(
            [slopes / -total[:, None] / SOFT, linear, np.sqrt(BEYOND_PEAK) * guard_slopes]
        )

    def loss(squared: np.ndarray) -> np.ndarray:
        """scipy's soft_l1, weighted, of measurements; the square of the others. Value, first and second derivative."""
        rho = np.stack([squared, np.ones_like(squared), np.zeros_like(squared)])
        root = np.sqrt(1 + squared[:count])
        rho[:, :count] = weight / weight.sum() * np.stack([2 * (root - 1), 1 / root, -0.5 / root**3])
        return rho

    result = least_squares(
        lambda vector: evaluate(vector.tobytes())[0],
        start,
        lambda vector: evaluate(vector.tobytes())[1],
        bounds=(low, high),
        x_scale="jac",
        loss=loss,
        max_nfev=iterations,
    )
    entries = {key: model.entry(result.x[part]) for key, model, part in zip(blocks, models, parts, strict=True)}
    return entries, SOFT * evaluate(result.x.tobytes())[0][:count]
