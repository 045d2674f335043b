"""calibrate: fits the calibration entries of this machine to samples of observed networks, and estimates their errors.

On a CPU each class of kernels is fitted separately, starting from the shipped entry. On a GPU, whose shipped entries come
from far larger tables, only one factor per class is fitted. Errors are those of networks left out of the fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuwise.cost.calibration import Calibration, CalibrationEntry, StepSpread, calibration
from gpuwise.cost.kernels.times import GENERIC
from gpuwise.cost.parameters import Parameters
from gpuwise.cost.parameters import parameters as shipped_parameters
from gpuwise.cost.rates import family
from gpuwise.hardware.types import Chip
from gpuwise.measure.fitting import MeasuredSeconds, ParameterBlock, solve
from gpuwise.measure.fitting.machine_designs import design_of
from gpuwise.measure.samples import ClassSamples, StepSamples, by_class
from gpuwise.strategy import MODES

PULL, SMOOTH, ITERATIONS = 1e-3, 0.02, 40
FOLDS = 3
# Weight of short steps: floors dominate them, and are lost in the noise of long steps, which they hardly change.
SHORT_STEPS = 0.4
# Smallest spread: the same machine varies by this much between days.
LEAST_SPREAD = 1.08
FEWEST_NETWORKS = 4
LARGEST_FACTOR = 5.0

Fit = Callable[[Mapping[str, ClassSamples], Calibration, int], dict[str, CalibrationEntry]]


@dataclass(frozen=True)
class MachineFit:
    """The fitted figures of a machine.

    Attributes:
        entries: calibration entries by class, as in a calibration file.
        scale: factors by class, as in a calibration file.
        spreads: spreads of whole steps.
        errors: forecast / measured - 1 by network, for networks that could be left out of a fit.
    """

    entries: Mapping[str, CalibrationEntry]
    scale: Mapping[str, float]
    spreads: tuple[StepSpread, ...]
    errors: Mapping[str, float]


def calibrate(samples: Sequence[StepSamples], chip: Chip, *, parameters: Parameters | None = None) -> MachineFit:
    """Fits the figures of this machine.

    Arguments:
        samples: samples of the observed networks.
        chip: the chip with its measured peaks and bandwidth; the fit starts from its shipped calibration.
    """
    parameters = parameters or shipped_parameters()
    shipped = calibration(replace(chip, calibration=""))
    table = by_class(samples, chip, parameters)
    fit = _entries if family(chip) == "cpu" else _scaled
    entries = fit(table, shipped, len(samples))
    errors = _errors(samples, table, shipped, fit)
    kept = {samples[index].name: error for index, error in errors.items()}
    scale = {key: _factor(table[key], entry, shipped, key) for key, entry in entries.items()} if fit is _scaled else {}
    of_mode = {mode: [error for index, error in errors.items() if samples[index].mode == mode] for mode in MODES}
    return MachineFit(entries if fit is _entries else {}, scale, _spreads(family(chip), of_mode), kept)


def _entries(table: Mapping[str, ClassSamples], shipped: Calibration, steps: int) -> dict[str, CalibrationEntry]:
    total_s = _total_s(table, steps)
    entries = {}
    for key, part in table.items():
        if key == "other":
            continue
        design, step_s = design_of(key), total_s[part.step]
        weight = np.sqrt(part.seconds * part.count / step_s) / step_s**SHORT_STEPS
        block = ParameterBlock(part.terms, part.kernels, np.arange(len(part.seconds)), np.ones(len(part.seconds)))
        prior = design.start(_shipped(shipped, key))
        solved, errors = solve(
            {key: block},
            {key: design},
            {key: prior},
            MeasuredSeconds(part.seconds, weight=weight),
            pull=PULL,
            smooth=SMOOTH,
            iterations=ITERATIONS,
        )
        evidence = {"source": f"{len(part.seconds)} operations observed in steps on this machine"}
        entries[key] = replace(solved[key], spread=_interval(errors), evidence=evidence)
    return entries


def _scaled(table: Mapping[str, ClassSamples], shipped: Calibration, steps: int) -> dict[str, CalibrationEntry]:
    """The shipped entries, with the terms of each multiplied by one factor."""
    entries = {}
    for key, part in table.items():
        entry = _shipped(shipped, key)
        if entry is not None and key != "other":
            logs = np.log(part.seconds / predicted_s(entry, part))
            factor = float(np.exp(_weighted_median(logs, part.seconds * part.count)))
            factor = min(max(factor, 1 / LARGEST_FACTOR), LARGEST_FACTOR)
            entries[key] = replace(entry, terms={n: replace(t, scale=t.scale * factor) for n, t in entry.terms.items()})
    return entries


def _factor(part: ClassSamples, entry: CalibrationEntry, shipped: Calibration, key: str) -> float:
    """The ratio of this machine's times to those of the shipped entry."""
    start = _shipped(shipped, key)
    assert start is not None
    name = next(iter(entry.terms))
    return round(entry.terms[name].scale / start.terms[name].scale, 4)


def predicted_s(entry: CalibrationEntry, part: ClassSamples) -> np.ndarray:
    """Seconds that an entry predicts for one run of each operation."""
    parts = entry.parts_s(part.terms.seconds, part.terms.features)
    busy: np.ndarray = part.kernels * entry.floor_s + (entry.join_s(parts) if parts else 0.0)
    return busy


def _errors(
    samples: Sequence[StepSamples], table: Mapping[str, ClassSamples], shipped: Calibration, fit: Fit
) -> dict[int, float]:
    """forecast / measured - 1 of each step, with entries fitted to other networks of all precisions and modes."""
    networks = list(dict.fromkeys(step.network for step in samples))
    if len(networks) < FEWEST_NETWORKS:
        return {}
    fold = np.array([networks.index(step.network) for step in samples]) % FOLDS
    errors = {}
    for number in range(FOLDS):
        others = {key: only for key, part in table.items() if (only := _of(part, fold[part.step] != number)) is not None}
        entries = fit(others, shipped, len(samples))
        forecast_s = np.zeros(len(samples))
        for key, part in table.items():
            entry = entries.get(key) or _shipped(shipped, key) or GENERIC.entry
            forecast_s += np.bincount(part.step, weights=part.count * predicted_s(entry, part), minlength=len(samples))
        for index in np.flatnonzero(fold == number).tolist():
            errors[index] = float(max(forecast_s[index], samples[index].host_s) / np.median(samples[index].step_s) - 1)
    return errors


def _of(part: ClassSamples, chosen: np.ndarray) -> ClassSamples | None:
    """The chosen operations; None if there are none."""
    if not chosen.any():
        return None
    columns = {name: np.asarray(value)[chosen] for name, value in vars(part.shapes).items()}
    terms = replace(
        part.terms,
        seconds={n: v[chosen] for n, v in part.terms.seconds.items()},
        features={n: v[chosen] for n, v in part.terms.features.items()},
    )
    return ClassSamples(replace(part.shapes, **columns), terms, part.seconds[chosen], part.count[chosen], part.step[chosen])


def _shipped(shipped: Calibration, key: str) -> CalibrationEntry | None:
    """The shipped entry that applies to a class; None without one."""
    kernel_class, _, numerics = key.partition(".")
    match = shipped.find(kernel_class, numerics)
    return None if match is None else match.applied


def _total_s(table: Mapping[str, ClassSamples], steps: int) -> np.ndarray:
    """Seconds of each step. Shape (steps,)."""
    total_s = np.zeros(steps)
    for part in table.values():
        total_s += np.bincount(part.step, weights=part.seconds * part.count, minlength=steps)
    return np.maximum(total_s, 1e-12)


def _weighted_median(values: np.ndarray, weight: np.ndarray) -> float:
    order = np.argsort(values)
    share = np.cumsum(weight[order]) / weight.sum()
    return float(values[order][min(int(np.searchsorted(share, 0.5)), len(values) - 1)])


def _interval(logs: np.ndarray) -> tuple[float, float]:
    """The interval of 90 % of measured / forecast, widened to contain 1 as in an entry."""
    low, high = np.exp(np.quantile(logs, [0.05, 0.95]))
    return round(float(min(low, 1 / LEAST_SPREAD)), 3), round(float(max(high, LEAST_SPREAD)), 3)


def _spreads(family_name: str, errors: Mapping[str, Sequence[float]]) -> tuple[StepSpread, ...]:
    """Of each mode, by its own errors; by all where it has few. errors: by mode."""
    together = [error for of_mode in errors.values() for error in of_mode]
    if len(together) < FEWEST_NETWORKS:
        return ()
    spreads = []
    for mode, of_mode in errors.items():
        counted = of_mode if len(of_mode) >= FEWEST_NETWORKS else together
        low, high = _interval(-np.log1p(np.array(counted)))
        spreads.append(StepSpread(family_name, "machine", mode, low, high, rows=len(counted)))
    return tuple(spreads)
