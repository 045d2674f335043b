"""How long each distinct operation of a Trace takes on a Chip: a roofline with few, physical corrections.

time = kernels × floor + roof(arithmetic, memory), where arithmetic = flops × (1 + fill × units / outputs) / (peak ×
efficiency): small operations leave units idle; memory = bytes / (bandwidth × efficiency), what fits the cache faster;
and roof is a smooth maximum. More flops, bytes or kernels never take less time; a faster chip never takes more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuwise.cost.parameters import Parameters
from gpuwise.cost.rates import (
    CONTRACTIONS,
    Units,
    capability,
    family,
    sustained_share,
    sustained_tensor_share,
    units_for,
)
from gpuwise.hardware.types import Chip
from gpuwise.trace.trace import KINDS, Trace


@dataclass(frozen=True)
class KernelTimes:
    """Seconds of one run of each distinct operation, shape (operations,).

    device_s: all of it; compute_s and memory_s: the two roofs; floor_s: the part no size avoids; ideal_s: a
    contraction's model operations (as MFU counts them) at the datasheet peak, 0 for other kinds.
    notes: assumptions made about the chip's units; peaks: the catalog's rates that priced contractions.
    """

    device_s: np.ndarray
    compute_s: np.ndarray
    memory_s: np.ndarray
    floor_s: np.ndarray
    ideal_s: np.ndarray
    notes: tuple[str, ...]
    peaks: tuple[str, ...]


def arithmetic_s(flops, outputs, units, *, peak_flops_per_s, efficiency, fill):
    """Seconds of arithmetic; all arguments broadcast (numbers or arrays)."""
    return flops * (1 + fill * units / np.maximum(outputs, 1)) / (peak_flops_per_s * efficiency)


def traffic_s(size_bytes, *, bandwidth_bytes_per_s, efficiency, cache_bytes, parameters: Parameters):  # type: ignore[no-untyped-def]
    """Seconds to move bytes, those that fit `cache_share` of the cache at `cache_speedup`; broadcasts."""
    near = np.minimum(size_bytes, parameters.cache_share * cache_bytes)
    return (near / parameters.cache_speedup + (size_bytes - near)) / (bandwidth_bytes_per_s * efficiency)


def roof_s(compute_s, memory_s, sharpness: float):  # type: ignore[no-untyped-def]
    """A smooth maximum of the two roofs; broadcasts."""
    top = np.maximum(np.maximum(compute_s, memory_s), 1e-30)
    return top * ((compute_s / top) ** sharpness + (memory_s / top) ** sharpness) ** (1 / sharpness)


def outputs_of(kind: str, batch, m, n, k):  # type: ignore[no-untyped-def]
    """Outputs a contraction spreads over the units: batch × m × n; attention keeps its keys inside: batch × m × k."""
    return batch * m * (k if kind == "attention" else n)


def kernel_times(trace: Trace, chip: Chip, parameters: Parameters) -> KernelTimes:
    """Prices the distinct operations. Raises UnsupportedError where the chip lacks a precision the trace computes in."""
    operations, precision = trace.operations, trace.header.strategy.precision
    floor = _by_family(parameters.kernel_floor_s, chip)
    unit_count = chip.sm_count or parameters.default_units
    relative = parameters.architecture_efficiency.get(chip.architecture or "", 1.0)
    vector = sustained_share(chip, parameters)
    sustained = {"vector": vector, "tensor": min(vector, sustained_tensor_share(chip, parameters))}
    sustained["tf32"] = sustained["tensor"]
    compute, ideal = np.zeros(len(operations)), np.zeros(len(operations))
    flops, model_flops = operations.column("flops").astype(float), operations.model_flops
    batch, m, n, k = (operations.column(name).astype(float) for name in ("batch", "m", "n", "k"))
    notes: dict[str, None] = {}
    peaks: dict[str, None] = {}
    for (kind, dtype, backward), rows in _groups(trace).items():
        if kind not in CONTRACTIONS:
            continue
        units: Units = units_for(chip, dtype=dtype, kind=kind, precision=precision, parameters=parameters)
        rate = parameters.rates[units.rate]
        efficiency = parameters.efficiency(units.rate, kind, backward=backward)
        efficiency *= relative * sustained.get(units.rate, 1.0)
        if kind == "attention" and units.rate == "tensor":
            efficiency *= parameters.attention_efficiency.get(capability(chip), 1.0)
        compute[rows] = arithmetic_s(
            flops[rows],
            outputs_of(kind, batch[rows], m[rows], n[rows], k[rows]),
            unit_count,
            peak_flops_per_s=units.peak_flops_per_s,
            efficiency=efficiency,
            fill=rate.fill,
        )
        ideal[rows] = model_flops[rows] / units.peak_flops_per_s
        peaks[units.figure] = None
        if units.note:
            notes[units.note] = None
    memory = _memory_s(trace, chip, parameters)
    floor_s = operations.column("kernels") * floor
    device = floor_s + roof_s(compute, memory, parameters.roof_sharpness)
    return KernelTimes(device, compute, memory, floor_s, ideal, tuple(notes), tuple(peaks))


def _memory_s(trace: Trace, chip: Chip, parameters: Parameters) -> np.ndarray:
    operations, table = trace.operations, _by_family(parameters.bandwidth, chip)
    moved = (operations.column("bytes_read") + operations.column("bytes_written")).astype(float)
    depthwise = (operations.column("n") == 1) & (operations.column("batch") > 1)
    efficiency = np.empty(len(operations))
    for row, (name, kind) in enumerate(zip(operations.name, operations.kind.tolist(), strict=True)):
        key = KINDS[kind]
        if key == "conv" and depthwise[row]:
            key = "conv_depthwise"
        elif key == "norm" and "batch_norm" in name and trace.header.strategy.mode == "infer":
            key = "elementwise"  # the statistics are known: one pass instead of two
        forward = table.get(key, table["other"])
        efficiency[row] = table.get(f"{key}_backward", forward) if "backward" in name else forward
    if family(chip) == "systolic":  # a whole-graph compiler keeps most intermediate results on the chip
        contraction = np.isin(operations.kind, [KINDS.index(kind) for kind in CONTRACTIONS])
        moved = np.where(contraction, moved, moved * parameters.fused_bytes_share)
    assert chip.memory_bandwidth_bytes_per_s is not None  # check_can_run has seen to it
    return traffic_s(
        moved,
        bandwidth_bytes_per_s=chip.memory_bandwidth_bytes_per_s,
        efficiency=efficiency,
        cache_bytes=(chip.l2_bytes or 0) if family(chip) == "gpu" else 0,
        parameters=parameters,
    )


def _groups(trace: Trace) -> dict[tuple[str, str, bool], list[int]]:
    """Rows of distinct operations by kind, dtype and whether the operation is a backward one."""
    groups: dict[tuple[str, str, bool], list[int]] = {}
    operations = trace.operations
    for row, (name, kind, dtype) in enumerate(zip(operations.name, operations.kind.tolist(), operations.dtype, strict=True)):
        groups.setdefault((KINDS[kind], dtype, "backward" in name), []).append(row)
    return groups


def _by_family(table, chip: Chip):  # type: ignore[no-untyped-def]
    return table[family(chip)]
