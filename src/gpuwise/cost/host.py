"""The host time to launch a step. The host runs ahead of the device, so only the longer of the two counts."""

from __future__ import annotations

import numpy as np

from gpuwise.cost.parameters import Parameters
from gpuwise.cost.rates import family
from gpuwise.hardware.types import Chip
from gpuwise.trace.tables import PHASES
from gpuwise.trace.trace import Trace

COMPILED_PHASES = ("forward", "backward", "recompute")  # torch.compile takes the model; the update stays eager


def host_s(trace: Trace, chip: Chip, parameters: Parameters) -> float:
    """Seconds the host is busy launching one optimizer step of `trace`.

    Eager PyTorch pays for each call of an operation, by phase, and for each kernel a call launches. A compiled model pays
    for the entry of its graphs (guards, arguments) once a micro-batch and for each kernel it launches. On a CPU the dispatch
    is part of each operation's floor, and accelerators that compile whole steps launch one program: 0.
    """
    if family(chip) != "gpu":
        return 0.0
    if not trace.header.strategy.compile:
        return sum(_eager_s(trace, phase, parameters) for phase in PHASES)
    update_s = sum(_eager_s(trace, phase, parameters) for phase in PHASES if phase not in COMPILED_PHASES)
    graphs = trace.accumulation * sum(bool(trace.counts(phase).any()) for phase in ("forward", "backward"))
    kernels = sum(_kernels(trace, phase) for phase in COMPILED_PHASES)
    return update_s + graphs * parameters.host_compiled["graph_s"] + kernels * parameters.host_compiled["kernel_s"]


def launch_s(trace: Trace, chip: Chip, parameters: Parameters) -> np.ndarray:
    """Seconds the host is busy launching each position of a step; over its repeats they sum to host_s. Shape (positions,)."""
    sequence = trace.sequence
    if family(chip) != "gpu":
        return np.zeros(len(sequence))
    kernels = trace.operations.column("kernels")[sequence.operation].astype(np.float64)
    each_s = np.array([parameters.host_operation_s[phase] for phase in PHASES])[sequence.phase]
    seconds: np.ndarray = each_s + kernels * parameters.host_kernel_s
    if trace.header.strategy.compile:
        compiled = np.isin(sequence.phase, [PHASES.index(phase) for phase in COMPILED_PHASES])
        seconds = np.where(compiled, kernels * parameters.host_compiled["kernel_s"], seconds)
        runs = trace.repeats > 0  # the loss of a single micro-batch is not divided
        for phase in ("forward", "backward"):
            for micro_step in (0, 1):
                rows = np.flatnonzero(runs & (sequence.phase == PHASES.index(phase)) & (sequence.micro_step == micro_step))
                seconds[rows[:1]] += parameters.host_compiled["graph_s"]
    return seconds


def _eager_s(trace: Trace, phase: str, parameters: Parameters) -> float:
    calls = float(trace.counts(phase).sum())
    return calls * parameters.host_operation_s[phase] + _kernels(trace, phase) * parameters.host_kernel_s


def _kernels(trace: Trace, phase: str) -> float:
    return float(trace.counts(phase) @ trace.operations.column("kernels"))
