"""EntryModel: an entry of a calibration file as a vector, with the seconds that it gives and their derivatives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from gpuwise.cost.calibration import CalibrationEntry, EfficiencyCurve, Term
from gpuwise.cost.calibration.entry import LATENCY
from gpuwise.cost.kernels.shapes import KernelTerms
from gpuwise.measure.fitting.design import CurveDesign, Design

MICRO = 1e-6  # floors are fitted in microseconds, so that all parameters are of about one size


@dataclass(frozen=True)
class ParameterBlock:
    """Operations of one class, of all measurements.

    Attributes:
        terms: seconds at datasheet figures and features, by name.
        kernels: how many floors of a kernel each operation has.
        measurement: index of each operation's measurement.
        count: how often it runs.
        least: seconds that no operation falls below, its floors aside; none where None.
    """

    terms: KernelTerms
    kernels: np.ndarray
    measurement: np.ndarray
    count: np.ndarray
    least: np.ndarray | None = None


class EntryModel:
    """The vector has the log of each term's scale, the slopes of its curves between knots, the sharpness and the floor.

    Attributes:
        prior, low, high: such vectors: the entry to start from, and bounds.
        bends: a row for each change of slope within a curve, to be multiplied with a vector.
    """

    def __init__(self, design: Design, prior: CalibrationEntry, block: ParameterBlock) -> None:
        self._design, self._block, names = design, block, list(design.terms)
        self._curves = [(name, curve) for name, term in design.terms.items() for curve in term.curves]
        rows = [[np.log(max(x, 1e-3)) for x in (prior.terms[name].scale, *design.terms[name].scale)] for name in names]
        self._slopes: dict[tuple[str, str], slice] = {}
        for name, curve in self._curves:
            slopes = _slopes(curve, prior.terms[name])
            self._slopes[name, curve.over] = slice(len(rows), len(rows) + len(slopes))
            rows += [[slope, *curve.slope] for slope in slopes]
        rows += [[prior.sharpness, *design.sharpness], [x / MICRO for x in (prior.floor_s, *design.floor_s)]]
        self.prior, self.low, self.high = np.array(rows).T
        unit = np.eye(len(rows))
        self._added = np.array([name.startswith(LATENCY) for name in names])
        self.bends = np.vstack([np.diff(unit[part], axis=0) for part in self._slopes.values()] or [unit[:0]])
        self._logs = np.log(np.maximum([block.terms.seconds[name] for name in names], 1e-15))
        self._basis = np.zeros((*self._logs.shape, len(rows)))  # derivatives of the log of each term's seconds
        for index in range(len(names)):
            self._basis[index, :, index] = 1.0
        for name, curve in self._curves:
            features = block.terms.features[curve.over]
            self._basis[names.index(name), :, self._slopes[name, curve.over]] = _basis(curve, features)

    def seconds(self, vector: np.ndarray, measurements: int) -> tuple[np.ndarray, np.ndarray]:
        """Of each measurement, and derivatives. Shapes (measurements,), (measurements, parameters)."""
        sharpness, floor_s = vector[-2], vector[-1] * MICRO
        logs = self._logs + self._basis @ vector
        hiding, basis = logs[~self._added], self._basis[~self._added]
        powers = np.exp(sharpness * (hiding - hiding.max(axis=0)))
        total = powers.sum(axis=0)
        joined_log, share = hiding.max(axis=0) + np.log(total) / sharpness, powers / total
        slopes = np.einsum("to,top->op", share, basis)
        slopes[:, -2] = ((share * hiding).sum(axis=0) - joined_log) / sharpness
        joined = np.exp(joined_log)
        slopes *= joined[:, None]
        if self._added.any():
            latencies = np.exp(logs[self._added])
            joined += latencies.sum(axis=0)
            slopes += np.einsum("to,top->op", latencies, self._basis[self._added])
        if self._block.least is not None:
            slopes[joined < self._block.least] = 0.0
            joined = np.maximum(joined, self._block.least)
        slopes[:, -1] = self._block.kernels * MICRO
        index = (self._block.measurement, np.arange(len(self._block.count)))
        added_up = csr_array((self._block.count, index), shape=(measurements, len(self._block.count)))
        return added_up @ (self._block.kernels * floor_s + joined), added_up @ slopes

    def beyond_the_peak(self, vector: np.ndarray, least: float) -> tuple[float, np.ndarray]:
        """How far (log) arithmetic falls below that share of its time at the peak where every curve is at its lowest, and
        derivatives."""
        lowest = np.zeros(len(vector))  # times a vector: the log of that time
        if "compute" in self._design.terms:
            lowest[list(self._design.terms).index("compute")] = 1.0
            for curve in self._design.terms["compute"].curves:
                slopes, knots = self._slopes["compute", curve.over], _basis(curve, np.array(curve.at))
                lowest[slopes] = knots[(knots @ vector[slopes]).argmin()]
        missing = np.log(least) - lowest @ vector
        return (missing, -lowest) if missing > 0 and lowest.any() else (0.0, np.zeros(len(vector)))

    def entry(self, vector: np.ndarray) -> CalibrationEntry:
        terms = {}
        for index, (name, term) in enumerate(self._design.terms.items()):
            curves = tuple(
                EfficiencyCurve(c.over, c.at, tuple(_factors(c, vector[self._slopes[name, c.over]]))) for c in term.curves
            )
            terms[name] = Term(_short(np.exp(vector[index])), curves)
        return CalibrationEntry(terms, _short(vector[-2]), float(f"{vector[-1] * MICRO:.3g}"))


def _slopes(design: CurveDesign, prior: Term) -> np.ndarray:
    """Of the prior's curve over the same feature, between the design's knots; flat without one."""
    steps = np.diff(np.log(design.at))
    curve = next((curve for curve in prior.curves if curve.over == design.over), None)
    return np.zeros(len(steps)) if curve is None else np.diff(curve(np.array(design.at))) / steps


def _basis(design: CurveDesign, feature: np.ndarray) -> np.ndarray:
    """How far each operation has gone along each stretch between knots, from the middle knot. Shape (operations, knots - 1).

    Curves are 1 at their middle knot, so that the scale keeps its meaning.
    """
    knots = np.log(design.at)
    middle = np.log(design.at[len(design.at) // 2])
    gone = np.clip(np.log(feature)[:, None], knots[:-1], knots[1:]) - knots[:-1]
    return gone - (np.clip(middle, knots[:-1], knots[1:]) - knots[:-1])


def _factors(design: CurveDesign, slopes: np.ndarray) -> list[float]:
    return [_short(factor) for factor in np.exp(_basis(design, np.array(design.at)) @ slopes)]


def _short(value: float) -> float:
    return float(f"{value:.4g}")
