"""Steps: fitting entries on measured steps of whole models, all classes of kernels at once.

A step is a sum over its operations, so a table of steps determines how fast each class runs as far as the models differ in
what they are made of. Classes without a design are priced by the figures they have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from gpuwise.cost.calibration import Calibration, CalibrationEntry
from gpuwise.cost.host import host_s
from gpuwise.cost.kernels.classes import classes, terms_of
from gpuwise.cost.kernels.limits import GEFORCE_BOOST
from gpuwise.cost.kernels.shapes import Hardware, KernelTerms, Shapes
from gpuwise.cost.kernels.times import GENERIC, hardware_of, least_s
from gpuwise.cost.parameters import parameters
from gpuwise.cost.rates import Units, family, units_for
from gpuwise.hardware.types import Chip
from gpuwise.measure.fitting.design import Design
from gpuwise.measure.fitting.entry_model import ParameterBlock
from gpuwise.measure.fitting.solve import MeasuredSeconds, solve
from gpuwise.trace.trace import Trace

LEAST_COMPUTE = round(1 / GEFORCE_BOOST, 2)


@dataclass(frozen=True)
class Step:
    """A measured step. model: what it is kept out by; group: which rows it is reported with."""

    chip: Chip
    trace: Trace
    seconds: float
    model: str
    group: str = ""


@dataclass(frozen=True)
class Part:
    """Operations of one class of all steps. step, count: as ParameterBlock.measurement and ParameterBlock.count. least: seconds
    that none falls below (gpuwise.cost.kernels.times.least_s)."""

    terms: KernelTerms
    kernels: np.ndarray
    step: np.ndarray
    count: np.ndarray
    least: np.ndarray

    def of(self, index: np.ndarray) -> Part:
        """Those of the chosen steps. index: new number of each step, -1 to leave it out. Shape (steps,)."""
        rows = index[self.step] >= 0
        seconds = {name: values[rows] for name, values in self.terms.seconds.items()}
        features = {name: values[rows] for name, values in self.terms.features.items()}
        return Part(
            KernelTerms(seconds, features), self.kernels[rows], index[self.step[rows]], self.count[rows], self.least[rows]
        )


@dataclass(frozen=True)
class Table:
    """MeasuredSeconds steps as arrays, one entry a step; parts by key of their class (`conv.fp16`, `elementwise`)."""

    seconds: np.ndarray
    host_s: np.ndarray
    chip: np.ndarray
    model: np.ndarray
    group: np.ndarray
    parts: Mapping[str, Part]

    def __len__(self) -> int:
        return len(self.seconds)

    def of(self, chosen: np.ndarray) -> Table:
        """The chosen steps. chosen: shape (steps,), bool."""
        index = np.where(chosen, np.cumsum(chosen) - 1, -1)
        parts = {key: part.of(index) for key, part in self.parts.items()}
        return Table(
            self.seconds[chosen],
            self.host_s[chosen],
            self.chip[chosen],
            self.model[chosen],
            self.group[chosen],
            {key: part for key, part in parts.items() if len(part.step)},
        )

    def part_s(self, key: str, entry: CalibrationEntry, scale: float = 1.0) -> np.ndarray:
        """Seconds that one class takes in each step, by an entry. Shape (steps,)."""
        part = self.parts[key]
        parts = entry.parts_s(part.terms.seconds, part.terms.features)
        busy = np.maximum(scale * entry.join_s(parts), part.least) if parts else 0.0
        seconds = part.count * (part.kernels * entry.floor_s + busy)
        return np.bincount(part.step, weights=seconds, minlength=len(self))

    def step_s(self, entries: Mapping[str, CalibrationEntry]) -> np.ndarray:
        """Forecast of each step; a class without an entry is priced by its bytes and operations. Shape (steps,)."""
        busy = sum((self.part_s(key, entries.get(key, GENERIC.entry)) for key in self.parts), start=np.zeros(len(self)))
        return np.maximum(busy, self.host_s)


def table_of(steps: Iterable[Step]) -> Table:
    """Steps as a table. Term functions run once a class, over the operations of all steps and chips."""
    steps = list(steps)
    shapes: dict[str, list[Shapes]] = {}
    rows: dict[str, list[tuple[np.ndarray, ...]]] = {}
    figures = parameters()
    families = {family(step.chip) for step in steps}
    if len(families) > 1:
        raise ValueError(f"a table holds chips of one family, not {sorted(families)}")
    for index, step in enumerate(steps):
        trace, counts = step.trace, step.trace.counts().astype(float)
        for (kernel_class, dtype), members in classes(trace).items():
            chosen = np.array(members)
            chosen = chosen[counts[chosen] > 0]
            if not len(chosen):
                continue
            key, units, hardware = _hardware(step, kernel_class, dtype)
            result = Shapes.of(trace.operations, images=trace.header.sizes.get("micro_batch", 1)).take(chosen)
            result, count = _distinct(result, counts[chosen])
            shapes.setdefault(key, []).append(result)
            chip = [np.full(len(count), getattr(hardware, field.name)) for field in fields(Hardware)]
            least = np.maximum(*least_s(kernel_class, result, step.chip, units=units, hardware=hardware))
            rows.setdefault(key, []).append((np.full(len(count), index), count, least, *chip))
    parts = {}
    for key, result in shapes.items():
        joined = _joined(result)
        number, count, least, *chip = (np.concatenate(column) for column in zip(*rows[key], strict=True))
        terms = terms_of(key.split(".")[0], joined, Hardware(*chip), *families)
        parts[key] = Part(terms, joined.kernels * terms.floor, number, count, least)
    return Table(
        np.array([step.seconds for step in steps]),
        np.array([host_s(step.trace, step.chip, figures) for step in steps]),
        np.array([step.chip.id for step in steps], dtype=object),
        np.array([step.model for step in steps], dtype=object),
        np.array([step.group for step in steps], dtype=object),
        parts,
    )


def fit_steps(
    table: Table,
    designs: Mapping[str, Design],
    priors: Mapping[str, CalibrationEntry],
    *,
    weight: np.ndarray | None = None,
    pull: float = 1e-3,
    smooth: float = 1e-2,
    iterations: int = 80,
) -> tuple[dict[str, CalibrationEntry], np.ndarray]:
    """Entries of the classes that have a design and occur, and log(measured / forecast) of every step.

    priors: an entry for each class; those without a design are priced by it and stay.
    """
    fixed = np.zeros(len(table))
    blocks = {}
    for key, part in table.parts.items():
        if key in designs:
            blocks[key] = ParameterBlock(part.terms, part.kernels, part.step, part.count, part.least)
        else:
            fixed += table.part_s(key, priors.get(key, GENERIC.entry))
    measured = MeasuredSeconds(table.seconds, weight=weight, fixed_s=fixed, least_s=table.host_s)
    wanted = {key: designs[key] for key in blocks}
    own = {key: _start(design, priors.get(key)) for key, design in wanted.items()}
    return solve(blocks, wanted, own, measured, pull=pull, smooth=smooth, iterations=iterations, least_compute=LEAST_COMPUTE)


def _start(design: Design, prior: CalibrationEntry | None) -> CalibrationEntry:
    """Where a class starts. A family's products have `traffic` where those of steps have `memory`: all bytes once, both."""
    if prior and "traffic" in prior.terms:
        prior = replace(prior, terms={"memory": prior.terms["traffic"], **prior.terms})
    return design.start(prior)


def entries_of(calibration: Calibration, keys: Iterable[str]) -> dict[str, CalibrationEntry]:
    """The entry of each key (`conv.fp16`) as it applies, a level's scale worked in."""
    entries = {}
    for key in keys:
        kernel_class, _, numerics = key.partition(".")
        result = calibration.find(kernel_class, numerics)
        if result is not None:
            entries[key] = result.applied
    return entries


def _hardware(step: Step, kernel_class: str, dtype: str) -> tuple[str, Units | None, Hardware]:
    """Key of a class on the step's chip, the units that compute it and the chip's figures for it."""
    figures = parameters()
    if not dtype:
        return kernel_class, None, hardware_of(step.chip, figures)
    kind, precision = kernel_class.split("_")[0], step.trace.header.strategy.precision
    units = units_for(step.chip, dtype=dtype, kind=kind, precision=precision, parameters=figures)
    return f"{kernel_class}.{units.figure}", units, hardware_of(step.chip, figures, units=units)


def _distinct(shapes: Shapes, counts: np.ndarray) -> tuple[Shapes, np.ndarray]:
    """Operations of equal numbers joined to one that runs more often."""
    columns = np.column_stack([getattr(shapes, field.name) for field in fields(Shapes)])
    unique, inverse = np.unique(columns, axis=0, return_inverse=True)
    return Shapes(*unique.T), np.bincount(inverse.ravel(), weights=counts, minlength=len(unique))


def _joined(shapes: list[Shapes]) -> Shapes:
    return Shapes(*(np.concatenate([getattr(one, field.name) for one in shapes]) for field in fields(Shapes)))
