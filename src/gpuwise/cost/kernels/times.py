"""The time of each distinct operation of a Trace on a Chip, from the calibrated figures of its class of kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpuwise.cost.calibration import AppliedEntry, Calibration, CalibrationEntry, Term
from gpuwise.cost.calibration import calibration as shipped_calibration
from gpuwise.cost.calibration.entry import LATENCY
from gpuwise.cost.clock import busy_share, half_rate_gain, sustained_clock
from gpuwise.cost.kernels import conv, recurrent
from gpuwise.cost.kernels.classes import groups, terms_of
from gpuwise.cost.kernels.limits import WINOGRAD, cache_bytes_per_s, most_flops_per_s, winograd
from gpuwise.cost.kernels.shapes import USUAL_CLOCK_HZ, Hardware, Shapes
from gpuwise.cost.kernels.systolic import ARRAY_SIDE, USUAL_SIDE
from gpuwise.cost.parameters import Parameters
from gpuwise.cost.rates import Units, family, precisions_of, units_for
from gpuwise.hardware.types import Chip
from gpuwise.notes import Note
from gpuwise.trace.trace import Trace

# Prefixes of terms that a faster memory does not shorten: arithmetic, and in products what the second-level cache gives and
# takes at the clock of the chip (operands, results), and latencies in clocks. The other terms are traffic to memory.
ARITHMETIC = ("compute", "direct", "winograd", "operands", "results", LATENCY)
# For a class without figures in any file: bytes and operations at 60 % of the sheet, a few microseconds a kernel.
GENERIC = AppliedEntry(CalibrationEntry({"compute": Term(1 / 0.6), "memory": Term(1 / 0.6)}, floor_s=3e-6), "generic")


@dataclass(frozen=True)
class ClassTimes:
    """Seconds of one run of each operation of one class, shape (operations,).

    Attributes:
        name: name of the class, with its numerics.
        device_s: total seconds.
        compute_s, memory_s: seconds under each of the two roofs.
        floor_s: the part that does not depend on the size.
        least_s: lower bound of the hardware (see limits).
        units: arithmetic units that compute it; None where only bytes matter.
        figures: the calibration entry behind it.
    """

    name: str
    device_s: np.ndarray
    compute_s: np.ndarray
    memory_s: np.ndarray
    floor_s: np.ndarray
    least_s: np.ndarray
    units: Units | None
    figures: AppliedEntry


@dataclass(frozen=True)
class KernelTimes:
    """Seconds of one run of each distinct operation, shape (operations,).

    Attributes:
        device_s, compute_s, memory_s, floor_s: see ClassTimes.
        ideal_s: a contraction's model operations (as MFU counts them) at the datasheet peak; 0 for other kinds.
        names: names of the classes.
        kernel_class: class of each operation, an index into names.
        figures: the calibration entry behind each class; its level is "generic" if no file has figures.
        notes: assumptions about the chip's units.
        peaks: the catalog's rates behind the prices of contractions.
    """

    device_s: np.ndarray
    compute_s: np.ndarray
    memory_s: np.ndarray
    floor_s: np.ndarray
    ideal_s: np.ndarray
    kernel_class: np.ndarray
    names: tuple[str, ...]
    figures: tuple[AppliedEntry, ...]
    notes: tuple[Note, ...]
    peaks: tuple[str, ...]


def kernel_times(trace: Trace, chip: Chip, parameters: Parameters, calibration: Calibration | None = None) -> KernelTimes:
    """Prices the distinct operations. Raises UnsupportedError where the chip lacks a precision the trace computes in."""
    calibration = calibration or shipped_calibration(chip)
    precision = trace.header.strategy.precision
    device, compute, memory, floor, ideal = np.zeros((5, len(trace.operations)))
    kernel_class = np.zeros(len(trace.operations), dtype=np.int32)
    priced = []
    for number, group in enumerate(groups(trace)):
        times = class_times(
            group.kernel_class,
            group.dtype,
            group.shapes,
            chip,
            precision=precision,
            parameters=parameters,
            calibration=calibration,
        )
        rows = group.rows
        device[rows], compute[rows], memory[rows], floor[rows] = times.device_s, times.compute_s, times.memory_s, times.floor_s
        kernel_class[rows] = number
        if times.units:
            ideal[rows] = group.model_flops / times.units.peak_flops_per_s
        priced.append(times)
    units = [times.units for times in priced if times.units]
    return KernelTimes(
        device,
        compute,
        memory,
        floor,
        ideal,
        kernel_class,
        names=tuple(times.name for times in priced),
        figures=tuple(times.figures for times in priced),
        notes=tuple(dict.fromkeys(unit.note for unit in units if unit.note)),
        peaks=tuple(dict.fromkeys(unit.figure for unit in units)),
    )


def class_times(
    kernel_class: str,
    dtype: str,
    shapes: Shapes,
    chip: Chip,
    *,
    precision: str,
    parameters: Parameters,
    calibration: Calibration,
    busy: float | None = 1.0,
) -> ClassTimes:
    """Prices operations of one class (classes.classes).

    dtype: computed in, "" where only bytes matter. busy: share of the time in which tensor cores work, as part of a training by
    default; the board's power limits their clock (see sustained_clock). None: as these operations alone keep them busy.
    """
    if kernel_class.startswith("rnn") and family(chip) == "gpu" and recurrent.has_dims(shapes):
        return _recurrent_times(
            kernel_class,
            dtype,
            shapes,
            chip,
            precision=precision,
            parameters=parameters,
            calibration=calibration,
            busy=busy,
        )
    units, name = None, kernel_class
    if dtype:
        units = units_for(chip, dtype=dtype, kind=kernel_class.split("_")[0], precision=precision, parameters=parameters)
        name = f"{kernel_class}.{units.figure}"
    hardware = hardware_of(chip, parameters, units=units, busy=_busy_with(shapes, chip, units) if busy is None else busy)
    terms = terms_of(kernel_class, shapes, hardware, family(chip))
    applied = calibration.find(kernel_class, units.figure if units else "") or GENERIC
    if kernel_class == "other":  # of no known kind: whatever a file says of it is no model
        applied = replace(applied, level=GENERIC.level)
    parts = applied.entry.parts_s(terms.seconds, terms.features)
    if terms.seconds and not parts:  # figures of a like class whose kernels have other terms say nothing of these
        applied = GENERIC
        parts = applied.entry.parts_s(terms.seconds, terms.features)
    fixed = shapes.kernels * applied.entry.floor_s * terms.floor
    arithmetic = [part for term, part in parts.items() if term.startswith(ARITHMETIC)]
    traffic = [part for term, part in parts.items() if not term.startswith(ARITHMETIC)]
    least_compute, least_memory = least_s(kernel_class, shapes, chip, units=units, hardware=hardware)
    least = np.maximum(least_compute, least_memory)
    work_s = np.maximum(applied.scale * applied.entry.join_s(parts), least) if parts else np.zeros(len(shapes.kernels))
    return ClassTimes(
        name,
        device_s=fixed + work_s,
        compute_s=np.maximum.reduce([least_compute, *(applied.scale * part for part in arithmetic)]),
        memory_s=np.maximum.reduce([least_memory, *(applied.scale * part for part in traffic)]),
        floor_s=fixed,
        least_s=least,
        units=units,
        figures=applied,
    )


def _recurrent_times(
    kernel_class: str,
    dtype: str,
    shapes: Shapes,
    chip: Chip,
    *,
    precision: str,
    parameters: Parameters,
    calibration: Calibration,
    busy: float | None,
) -> ClassTimes:
    """Recurrent layers of cuDNN, priced as products (see recurrent)."""
    if "tf32" in precisions_of(chip):  # torch.backends.cudnn.allow_tf32 is on, as it is for convolutions
        precision = "tf32"
    one, joined = (
        class_times(
            "gemm",
            dtype,
            part,
            chip,
            precision=precision,
            parameters=parameters,
            calibration=calibration,
            busy=busy,
        )
        for part in (recurrent.of_one_time(shapes), recurrent.over_all_times(shapes))
    )
    both = {
        name: shapes.batch * getattr(one, name) + getattr(joined, name)
        for name in ("device_s", "compute_s", "memory_s", "floor_s", "least_s")
    }
    assert one.units is not None
    return replace(one, name=f"{kernel_class}.{one.units.figure}", **both)


def _busy_with(shapes: Shapes, chip: Chip, units: Units | None) -> float:
    """Share of the time in which operations keep arithmetic units busy, where bytes and arithmetic run at full rates."""
    if units is None or chip.memory_bandwidth_bytes_per_s is None:
        return 1.0
    compute_s = float(shapes.flops.sum()) / units.peak_flops_per_s
    return busy_share(compute_s, float(shapes.moved_bytes.sum()) / chip.memory_bandwidth_bytes_per_s)


def least_s(
    kernel_class: str, shapes: Shapes, chip: Chip, *, units: Units | None, hardware: Hardware
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds below which no kernel of a class falls, its floor aside: by its arithmetic, and by its bytes."""
    none = np.zeros(len(shapes.kernels))
    compute = shapes.flops / most_flops_per_s(chip, units, kernel_class) if units else none
    if units and winograd(kernel_class, units.figure):
        compute = np.where(conv.leaves_out(shapes), compute, compute * WINOGRAD)
    memory = _least_memory_s(shapes, hardware, chip) if family(chip) != "systolic" else none  # fused: few bytes move
    return compute, memory


def _least_memory_s(shapes: Shapes, hardware: Hardware, chip: Chip) -> np.ndarray:
    """What no kernel falls below: all bytes at the speed of the cache, and at that of memory those that the cache can neither
    have from the kernel before nor keep for the next."""
    achieved = chip.achieved.memory_bandwidth_bytes_per_s if chip.achieved else None
    bandwidth = achieved or hardware.bandwidth_bytes_per_s
    from_memory = np.maximum(shapes.moved_bytes - 2 * hardware.cache_bytes, 0.0) / bandwidth
    cache = cache_bytes_per_s(chip)
    return from_memory if cache is None else np.maximum(from_memory, shapes.moved_bytes / cache)


def hardware_of(chip: Chip, parameters: Parameters, *, units: Units | None = None, busy: float = 1.0) -> Hardware:
    """The figures of a chip for term functions, at the clock it sustains (see sustained_clock) while these units work; at boost
    clock without any. Its bandwidth must be known (check_can_run ensures it)."""
    assert chip.memory_bandwidth_bytes_per_s is not None
    share = sustained_clock(chip, units, parameters, busy=busy) if units else 1.0
    gain = half_rate_gain(chip, units, parameters) if units else 1.0
    # The share of vector units was fitted to their arithmetic alone.
    clock_hz = (chip.boost_clock_hz or USUAL_CLOCK_HZ) * (share if units and units.rate != "vector" else 1.0)
    return Hardware(
        peak_flops_per_s=units.peak_flops_per_s * share * gain if units else 1.0,
        bandwidth_bytes_per_s=chip.memory_bandwidth_bytes_per_s,
        units=chip.sm_count or parameters.default_units,
        cache_bytes=(chip.l2_bytes or 0) if family(chip) in ("gpu", "cpu") else 0,
        array_side=ARRAY_SIDE.get(chip.architecture or "", USUAL_SIDE),
        clock_hz=clock_hz,
    )
