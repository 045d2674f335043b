"""solve: the figures of entries that explain measured times best. Kernels and whole steps are fitted by the same program.

Each measurement is a sum over operations (one for a kernel table, all of them for a step). The loss is that of
log(measured / forecast), robust to outliers, plus a pull of every figure towards its prior: the entry of the level above,
so that little data moves little. Needs PyTorch, for gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from gpuwise.cost.calibration import CalibrationEntry, EfficiencyCurve, Term
from gpuwise.cost.kernels.shapes import KernelTerms
from gpuwise.measure.fitting.design import CurveDesign, Design


@dataclass(frozen=True)
class ParameterBlock:
    """Operations of one class, of all measurements. measurement: the index of each operation's; count: how often it runs.
    kernels: times the terms' floor."""

    terms: KernelTerms
    kernels: np.ndarray
    measurement: np.ndarray
    count: np.ndarray


@dataclass(frozen=True)
class MeasuredSeconds:
    """seconds: of each measurement. fixed_s: what is not fitted here; least_s: what it takes at least (the host). weight: of
    each in the loss. overhead: whether the way of measuring added a constant, which is fitted and thrown away."""

    seconds: np.ndarray
    weight: np.ndarray | None = None
    fixed_s: np.ndarray | None = None
    least_s: np.ndarray | None = None
    overhead: bool = False


class _Bounded:
    """A vector of parameters kept between bounds by a sigmoid; prior: where the pull goes."""

    def __init__(self, prior: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
        self.low, self.high = (torch.tensor(x, dtype=torch.float64) for x in (low, high))
        width = (self.high - self.low).clamp(min=1e-12)
        share = ((torch.tensor(prior, dtype=torch.float64) - self.low) / width).clamp(0.02, 0.98)
        self.prior = torch.logit(share)
        self.raw = self.prior.clone().requires_grad_(True)

    @property
    def value(self) -> torch.Tensor:
        return self.low + (self.high - self.low) * torch.sigmoid(self.raw)

    @property
    def moved(self) -> torch.Tensor:
        return ((self.raw - self.prior) ** 2).sum()


class _Model:
    """One entry with parameters: log scales, slopes of curves between knots, sharpness, floor."""

    def __init__(self, design: Design, prior: CalibrationEntry, block: ParameterBlock) -> None:
        self.design, names = design, list(design.terms)
        logs = np.log([max(design.terms[n].scale[0], 1e-3) for n in names]), np.log([design.terms[n].scale[1] for n in names])
        self.scale = _Bounded(np.log([max(prior.terms[n].scale, 1e-3) for n in names]), *logs)
        self.sharpness = _Bounded(np.array([prior.sharpness]), *(np.array([b]) for b in design.sharpness))
        self.floor = _Bounded(np.array([prior.floor_s]) * 1e6, *(np.array([b]) * 1e6 for b in design.floor_s))
        self.slopes = {
            (name, curve.over): _slopes(curve, next((c for c in prior.terms[name].curves if c.over == curve.over), None))
            for name, term in design.terms.items()
            for curve in term.curves
        }
        self.log_seconds = {n: torch.tensor(np.log(np.maximum(block.terms.seconds[n], 1e-15))) for n in names}
        self.basis = {
            (name, curve.over): _basis(curve, block.terms.features[curve.over])
            for name, term in design.terms.items()
            for curve in term.curves
        }
        self.kernels = torch.tensor(block.kernels, dtype=torch.float64)
        self.count = torch.tensor(block.count, dtype=torch.float64)
        self.measurement = torch.tensor(block.measurement, dtype=torch.int64)

    @property
    def parameters(self) -> list[_Bounded]:
        return [self.scale, self.sharpness, self.floor, *self.slopes.values()]

    def seconds(self) -> torch.Tensor:
        """Of each operation."""
        parts = []
        for index, name in enumerate(self.design.terms):
            log = self.log_seconds[name] + self.scale.value[index]
            for (term, over), slope in self.slopes.items():
                if term == name:
                    log = log + self.basis[term, over] @ slope.value
            parts.append(log)
        p = self.sharpness.value
        joined = torch.logsumexp(torch.stack(parts) * p, dim=0) / p if len(parts) > 1 else parts[0]
        return self.kernels * self.floor.value * 1e-6 + torch.exp(joined)

    def beyond_the_peak(self, least: float) -> torch.Tensor:
        """How far (log) arithmetic falls below that share of its time at the peak where every curve is at its lowest."""
        if "compute" not in self.design.terms:
            return torch.zeros(())
        lowest = self.scale.value[list(self.design.terms).index("compute")]
        for curve in self.design.terms["compute"].curves:
            lowest = lowest + (_basis(curve, np.array(curve.at)) @ self.slopes["compute", curve.over].value).min()
        return torch.relu(np.log(least) - lowest)

    def entry(self) -> CalibrationEntry:
        with torch.no_grad():
            scales = torch.exp(self.scale.value).tolist()
            terms = {}
            for index, (name, term) in enumerate(self.design.terms.items()):
                curves = tuple(
                    EfficiencyCurve(c.over, c.at, tuple(_factors(c, self.slopes[name, c.over].value.numpy())))
                    for c in term.curves
                )
                terms[name] = Term(_short(scales[index]), curves)
            return CalibrationEntry(terms, _short(self.sharpness.value.item()), float(f"{self.floor.value.item() * 1e-6:.3g}"))


def _slopes(design: CurveDesign, prior: EfficiencyCurve | None) -> _Bounded:
    steps = np.diff(np.log(design.at))
    start = np.zeros(len(steps))
    if prior is not None:
        start = np.diff(prior(np.array(design.at))) / steps
    return _Bounded(start, np.full(len(steps), design.slope[0]), np.full(len(steps), design.slope[1]))


def _middle(design: CurveDesign) -> float:
    """Curves are 1 at their middle knot, so that the scale keeps its meaning."""
    return float(np.log(design.at[len(design.at) // 2]))


def _basis(design: CurveDesign, feature: np.ndarray) -> torch.Tensor:
    """How far each operation has gone along each stretch between knots, from the middle knot. Shape (operations, knots - 1)."""
    knots = np.log(design.at)
    x = np.log(feature)[:, None]
    gone = np.clip(x, knots[:-1], knots[1:]) - knots[:-1]
    at_middle = np.clip(_middle(design), knots[:-1], knots[1:]) - knots[:-1]
    return torch.tensor(gone - at_middle)


def _factors(design: CurveDesign, slopes: np.ndarray) -> list[float]:
    return [_short(f) for f in np.exp(_basis(design, np.array(design.at)).numpy() @ slopes)]


def _short(value: float) -> float:
    return float(f"{value:.4g}")


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
        pull: weight of the squared distance of each parameter to its prior; smooth: of a curve's changes of slope; both against
            the mean loss of a measurement. least_compute: arithmetic takes at least that share of its time at the peak; a guard
            for steps, which do not show which of their kernels took how long.
    """
    models = {key: _Model(designs[key], priors[key], block) for key, block in blocks.items()}
    target = torch.tensor(np.log(measured.seconds))
    weight = torch.tensor(np.ones(len(target)) if measured.weight is None else measured.weight, dtype=torch.float64)
    weight = weight / weight.sum()
    fixed = torch.tensor(np.zeros(len(target)) if measured.fixed_s is None else measured.fixed_s, dtype=torch.float64)
    least = torch.tensor(np.full(len(target), 1e-12) if measured.least_s is None else np.maximum(measured.least_s, 1e-12))
    extra = _Bounded(np.array([20.0]), np.array([0.0]), np.array([100.0]))
    parameters = [p for model in models.values() for p in model.parameters] + [extra] * measured.overhead
    optimizer = torch.optim.LBFGS([p.raw for p in parameters], lr=0.5, max_iter=iterations, line_search_fn="strong_wolfe")

    def errors() -> torch.Tensor:
        total = fixed.clone()
        for model in models.values():
            total = total.index_add(0, model.measurement, model.count * model.seconds())
        if measured.overhead:
            total = total + extra.value * 1e-6
        return target - torch.log(torch.maximum(total, least))

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        scaled = errors() / 0.1
        fit = (weight * 2 * (torch.sqrt(1 + scaled**2) - 1)).sum()
        regular = pull * sum(p.moved for p in parameters)
        for model in models.values():
            regular = regular + (10 * model.beyond_the_peak(least_compute) ** 2 if least_compute else 0.0)
            for slope in model.slopes.values():
                regular = regular + smooth * (torch.diff(slope.value) ** 2).sum()
        value = fit + regular
        value.backward()
        return value

    optimizer.step(loss)
    with torch.no_grad():
        return {key: model.entry() for key, model in models.items()}, errors().numpy()
