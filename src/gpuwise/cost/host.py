"""The host time to launch a step. The host runs ahead of the device, so only the longer of the two counts."""

from __future__ import annotations

import numpy as np

from gpuwise.cost.parameters import Parameters
from gpuwise.cost.rates import family
from gpuwise.hardware.types import Chip
from gpuwise.trace.parallel.communication import Collective, Communication
from gpuwise.trace.parallel.launches import Count, HostLaunches
from gpuwise.trace.tables import PHASES
from gpuwise.trace.trace import Trace

COMPILED_PHASES = ("forward", "backward", "recompute")  # torch.compile takes the model; the update stays eager
# What the host does, in operations of forward. A cast of autocast, which no Python calls: fitted to inference with and without
# it on the same machines (NVIDIA/DeepLearningExamples; `python -m benchmarks.fit_host`). A checkpointed block, beside its
# operations: fitted to layers of Megatron-DeepSpeed traced on A100s (VIA-Research/vTrain); without a device a block of GPT-2
# adds 42 to 46, with hooks on saved tensors as gpuwise runs it (`python -m benchmarks.host_ratios`). A micro-batch: 8 to 11
# there, its loss among them; copies of the batch to the device are taken to make up for that.
CAST, CHECKPOINT, MICRO_BATCH = 0.35, 54.0, 10.0
_FORWARD, _BACKWARD, _RECOMPUTE = (PHASES.index(phase) for phase in ("forward", "backward", "recompute"))


def host_s(trace: Trace, chip: Chip, parameters: Parameters, communication: Communication | None = None) -> float:
    """Seconds the host is busy launching one optimizer step of `trace`.

    Eager PyTorch pays for each call of an operation, by phase, and for each kernel a call launches; for each block that is
    computed again, each micro-batch, each collective of `communication`, and for the copies around it; of a pipeline those of
    tensor and context parallelism alone. A compiled model pays for the entry of its graphs (guards, arguments) once a
    micro-batch and for each kernel it launches. On a CPU the dispatch is part of each operation's floor, and accelerators that
    compile whole steps launch one program: 0.
    """
    seconds = float(launch_s(trace, chip, parameters) @ trace.repeats)
    if communication is None or family(chip) != "gpu":
        return seconds
    in_pipeline = trace.header.strategy.mesh.pp > 1  # which gathers less often than is counted
    waited = [c for c in communication.collectives if not c.between_stages and not (in_pipeline and _of_data(c))]
    collectives = sum(c.calls for c in waited)
    beside_s = float(launches_s(communication.launches, parameters))
    return seconds + host_factor(chip, parameters) * (collectives * collective_s(parameters) + beside_s)


def launch_s(trace: Trace, chip: Chip, parameters: Parameters) -> np.ndarray:
    """Seconds the host is busy launching each position of a step; over its repeats they sum to host_s without collectives.
    Shape (positions,)."""
    sequence = trace.sequence
    if family(chip) != "gpu":
        return np.zeros(len(sequence))
    kernels = trace.operations.column("kernels")[sequence.operation].astype(np.float64)
    each_s = np.array([parameters.host_operation_s[phase] for phase in PHASES])[sequence.phase]
    factor = host_factor(chip, parameters)
    seconds: np.ndarray = factor * (calls(trace) * each_s + kernels * parameters.host_kernel_s)
    runs = trace.repeats > 0  # the loss of a single micro-batch is not divided
    if trace.header.strategy.compile:
        compiled = np.isin(sequence.phase, [PHASES.index(phase) for phase in COMPILED_PHASES])
        seconds = np.where(compiled, kernels * parameters.host_compiled["kernel_s"], seconds)
        for phase in ("forward", "backward"):
            rows = np.flatnonzero(runs & (sequence.phase == PHASES.index(phase)))
            seconds[rows[np.unique(sequence.micro_step[rows], return_index=True)[1]]] += parameters.host_compiled["graph_s"]
        return seconds
    rows = np.flatnonzero(runs & (sequence.phase == _BACKWARD))[::-1]
    ends = rows[np.unique(sequence.micro_step[rows], return_index=True)[1]]
    if len(ends):  # a recorded pipeline has all its micro-batches in one
        seconds[ends] += factor * micro_batch_s(parameters) * trace.accumulation / trace.repeats[ends].sum()
    return seconds


def calls(trace: Trace) -> np.ndarray:
    """What the host does for each position beside launching its kernels, in operations of its phase. Shape (positions,)."""
    sequence = trace.sequence
    cast = np.array([name.startswith("aten._to_copy") for name in trace.operations.name], dtype=bool)[sequence.operation]
    by_autocast = cast & np.isin(sequence.phase, (_FORWARD, _RECOMPUTE))
    again = sequence.phase == _RECOMPUTE
    starts = again & ~np.concatenate([[False], again[:-1]])
    return np.where(by_autocast, CAST, 1.0) + CHECKPOINT * starts


def micro_batch_s(parameters: Parameters) -> float:
    """Seconds of a micro-batch beside its operations on the reference host: batch, loss, backward's start, gradients."""
    return MICRO_BATCH * parameters.host_operation_s["forward"]


def collective_s(parameters: Parameters) -> float:
    """Seconds of a call of a collective on the reference host: it is called from Python, as operations of forward are."""
    return parameters.host_operation_s["forward"]


def _of_data(collective: Collective) -> bool:
    return collective.group.axis.startswith(("dp", "data"))


def launches_s(launches: HostLaunches, parameters: Parameters) -> Count:
    """Seconds of what the reference host does for collectives beside calling them."""
    each_s = parameters.host_operation_s
    of_forward = launches.forward + CAST * launches.casts
    return of_forward * each_s["forward"] + launches.backward * each_s["backward"] + launches.kernels * parameters.host_kernel_s


def host_factor(chip: Chip, parameters: Parameters) -> float:
    """Seconds of the hosts that a chip usually has over those of the reference host; 0 where the host launches nothing."""
    if family(chip) != "gpu":
        return 0.0
    capability = ".".join(map(str, chip.compute_capability or ()))
    factors = parameters.host_factor
    return factors.get(chip.kind, factors.get(capability, 1.0))
