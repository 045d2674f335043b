"""Samples: the operations of an observed step by class of kernels, as plain numbers that are sent between processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from gpuwise.cost.kernels.classes import groups, terms_of
from gpuwise.cost.kernels.shapes import KernelTerms, Shapes
from gpuwise.cost.kernels.times import hardware_of
from gpuwise.cost.parameters import Parameters
from gpuwise.cost.rates import Units, family, units_for
from gpuwise.hardware.types import Chip
from gpuwise.measure.observe import SHORT_STEP_S, Observation
from gpuwise.measure.timing import summary
from gpuwise.results.measurement import GROUPS, MeasuredRow

# Steps that interruptions by other programs find with certainty; and what is still a machine to measure.
LONG_STEP_S, MOST_STRETCH = 0.08, 1.5
# Kinds of kernels by the group of a report that shows them, where the names differ.
_GROUPS = {"rnn": "gemm", "softmax": "reduction", "loss": "reduction", "copy": "elementwise"}
DTYPE_WORDS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True)
class StepSamples:
    """One observed network, in one precision and mode.

    Attributes:
        network: name of the network.
        precision: precision of its steps.
        mode: mode of its steps.
        step_s: seconds of its steps without observation.
        unseen_s: seconds of a call besides its kernel (Observation.unseen_s).
        host_s: seconds that a GPU's host needs at least to launch a step.
        flops: model FLOPs of the trace.
        classes: by class and dtype the columns of Shapes, with `seconds`, the median of one run of each distinct
            operation, and `count`, its runs per step.
    """

    network: str
    precision: str
    mode: str
    step_s: tuple[float, ...]
    unseen_s: float
    host_s: float
    flops: int
    classes: tuple[tuple[str, str, dict[str, list[float]]], ...]

    @property
    def name(self) -> str:
        return f"{self.network}, {self.precision}, {self.mode}"

    @property
    def operations_s(self) -> float:
        """Of a step: each operation's median, as often as it runs."""
        return float(sum(np.dot(columns["seconds"], columns["count"]) for *_, columns in self.classes))

    def to_dict(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StepSamples:
        """What to_dict gave."""
        classes = tuple((kernel_class, dtype, columns) for kernel_class, dtype, columns in data["classes"])
        return cls(**{**data, "step_s": tuple(data["step_s"]), "classes": classes})


def samples_of(network: str, observation: Observation, *, host_s: float = 0.0) -> StepSamples:
    """The operations of a step by class; those that launch nothing are left out. host_s: what the host needs to launch it."""
    trace = observation.trace
    operation, count_of = trace.sequence.operation, len(trace.operations)
    count = np.bincount(operation, minlength=count_of)
    median_s = np.median(observation.seconds, axis=0)
    once_s = np.bincount(operation, weights=median_s, minlength=count_of) / np.maximum(count, 1)
    classes = []
    for group in groups(trace):
        kept = (count[group.rows] > 0) & (group.shapes.kernels > 0)
        if kept.any():
            columns = {field.name: np.asarray(getattr(group.shapes, field.name))[kept].tolist() for field in fields(Shapes)}
            columns |= {"seconds": once_s[group.rows][kept].tolist(), "count": count[group.rows][kept].tolist()}
            classes.append((group.kernel_class, group.dtype, columns))
    strategy = trace.header.strategy
    return StepSamples(
        network,
        strategy.precision,
        strategy.mode,
        tuple(observation.step_s.tolist()),
        observation.unseen_s,
        host_s,
        int(trace.model_flops),
        tuple(classes),
    )


def slowest_class(network: str, observation: Observation) -> MeasuredRow:
    """The class of kernels that takes most of a step, all of its operations together: what a roofline shows of the network."""
    trace = observation.trace
    operation, precision = trace.sequence.operation, trace.header.strategy.precision
    best, best_s = None, np.zeros(len(observation.seconds))
    for group in groups(trace):
        seconds = observation.seconds[:, np.isin(operation, group.rows)].sum(axis=1)
        if best is None or np.median(seconds) > np.median(best_s):
            best, best_s = group, seconds
    assert best is not None
    count = np.bincount(operation, minlength=len(trace.operations))[best.rows]
    kind = best.kernel_class.partition("_")[0]
    flops, moved = (int(np.dot(count, column)) for column in (best.shapes.flops, best.shapes.moved_bytes))
    kept = best_s[best_s > 0].tolist() or [1e-9]
    dtype = DTYPE_WORDS.get(best.dtype, precision.removeprefix("amp-"))
    return MeasuredRow(
        _GROUPS.get(kind, kind if kind in GROUPS else "other"),
        f"{best.kernel_class}, {network}",
        summary(kept),
        dtype,
        {},
        flops,
        moved,
    )


@dataclass(frozen=True)
class ClassSamples:
    """One class of kernels in all networks, shape (operations,) each. step: the index of each operation's network."""

    shapes: Shapes
    terms: KernelTerms
    seconds: np.ndarray
    count: np.ndarray
    step: np.ndarray

    @property
    def kernels(self) -> np.ndarray:
        """How many floors of a kernel each operation has."""
        return self.shapes.kernels * self.terms.floor


def by_class(samples: Sequence[StepSamples], chip: Chip, parameters: Parameters) -> dict[str, ClassSamples]:
    """All samples by key of their class in calibration files (`conv.fp32`), priced against the figures of a chip."""
    stretch, modes = stretch_of(samples), {step.mode for step in samples}
    # A mode without short steps has what those of all modes show.
    by_mode = {mode: [s for s in samples if s.mode == mode and np.median(s.step_s) < SHORT_STEP_S] for mode in modes}
    unseen_s = np.array([unseen_of(by_mode[step.mode] or samples) for step in samples])
    columns: dict[str, list[dict[str, list[float]]]] = {}
    units_of: dict[str, Units | None] = {}
    for index, step in enumerate(samples):
        for kernel_class, dtype, operations in step.classes:
            key, units = kernel_class, None
            if dtype:
                kind = kernel_class.split("_")[0]
                units = units_for(chip, dtype=dtype, kind=kind, precision=step.precision, parameters=parameters)
                key = f"{kernel_class}.{units.figure}"
            units_of[key] = units
            columns.setdefault(key, []).append(operations | {"step": [index] * len(operations["seconds"])})
    return {
        key: _joined(key, operations, chip, parameters, units_of[key], unseen_s, stretch) for key, operations in columns.items()
    }


def stretch_of(samples: Iterable[StepSamples]) -> float:
    """How much longer whole steps take than their operations do in the median: what else runs on this machine takes its share
    of long steps, and the median of each operation does not show it. 1 where no step is long enough to tell."""
    ratios = [np.median(step.step_s) / step.operations_s for step in samples if np.median(step.step_s) > LONG_STEP_S]
    return float(np.clip(np.median(ratios), 1.0, MOST_STRETCH)) if ratios else 1.0


def unseen_of(samples: Iterable[StepSamples]) -> float:
    """What a call takes beside its kernel, by the short steps: their median; 0 where there are none."""
    seconds = [step.unseen_s for step in samples if np.median(step.step_s) < SHORT_STEP_S]
    return max(0.0, float(np.median(seconds))) if seconds else 0.0


def _joined(
    key: str,
    parts: Sequence[Mapping[str, list[float]]],
    chip: Chip,
    parameters: Parameters,
    units: Units | None,
    unseen_s: np.ndarray,
    stretch: float,
) -> ClassSamples:
    """Operations of one class. unseen_s: what a call takes beside its kernel, of each step. Shape (steps,)."""
    joined = {name: np.array([value for columns in parts for value in columns[name]], dtype=float) for name in parts[0]}
    shapes = Shapes(**{field.name: joined[field.name] for field in fields(Shapes)})
    hardware = hardware_of(chip, parameters, units=units)
    terms = terms_of(key.partition(".")[0], shapes, hardware, family(chip))
    step = joined["step"].astype(int)
    return ClassSamples(shapes, terms, stretch * joined["seconds"] + unseen_s[step], joined["count"], step)
