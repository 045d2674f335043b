"""Runs real steps of a job on this machine and measures their time, their memory and their shares by kind of operator."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from math import ceil

import torch

from gpuwise.job import Job, checked_batch
from gpuwise.job.batches import map_tensors
from gpuwise.measure.timing import clock_of, summary, wall_seconds
from gpuwise.measure.trial_memory import memory_on_accelerator, memory_on_cpu
from gpuwise.results.measurement import Timing
from gpuwise.results.validation import MeasuredStep
from gpuwise.runtime.build.host_memory import keep_freed_memory
from gpuwise.runtime.build.program import Program, build
from gpuwise.runtime.devices import backend_of
from gpuwise.strategy import Strategy

FEWEST_STEPS, LEAST_S, MOST_S = 7, 5.0, 40.0  # fewest timed steps, and the fewest and most seconds of timing
WARM_STEPS, WARM_S = 3, 0.5  # warm-up steps, besides the two that measure memory, and their longest time
BATCHES = 3  # batches that take turns, so that no cache holds the input of a step
ASYNC_S = 0.05  # seconds of steps issued to a GPU between two waits, as in a training loop

_ARITHMETIC = ("convolution", "attention", "rnn", "lstm", "gru", "linear_pointwise", "_mm", "mm_")
_PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot"}
# Operators that only change a tensor's view or allocate memory; their time is the overhead of the call.
_VIEWS = {
    "view",
    "t",
    "transpose",
    "as_strided",
    "expand",
    "reshape",
    "detach",
    "select",
    "slice",
    "unsqueeze",
    "squeeze",
    "permute",
    "empty",
    "empty_like",
    "empty_strided",
    "resize",
    "to",
    "unbind",
    "chunk",
    "split",
    "alias",
    "narrow",
    "flatten",
    "unflatten",
    "linear",
    "matmul",
    "set",
    "result_type",
    "is_nonzero",
    "item",
}


def run_trial(
    job: Job, strategy: Strategy, device: torch.device, *, steps: int | None = None, say: Callable[[str], None] = lambda _: None
) -> MeasuredStep:
    """Builds the job's program and runs it on random batches.

    Arguments:
        job: the job.
        strategy: the strategy of the steps.
        device: the device to run on.
        steps: number of timed steps; None: at least FEWEST_STEPS and LEAST_S seconds, at most MOST_S seconds.
        say: called with a description of the current phase.

    Raises any error of the job's own code, and MemoryError or RuntimeError when memory runs out.
    """
    keep_freed_memory()
    torch.manual_seed(0)
    make = partial(build, job, strategy, device)
    say("its first steps")
    program, peak = memory_on_cpu(make) if backend_of(device).is_host else memory_on_accelerator(make, device)
    say("the timed steps")
    runs = steps_of(program)
    timing = _timed(runs, device, steps)
    say("one step under the profiler")
    return MeasuredStep(
        timing,
        peak.allocated_bytes,
        peak.by_category,
        peak.reserved_bytes,
        peak.device_bytes,
        shares=_shares(runs[0], timing, device),
    )


def steps_of(program: Program) -> list[Callable[[], object]]:
    """A step for each of BATCHES sets of micro-batches.

    The batches are on the device before the timing starts, because a forecast assumes that they are loaded during the
    previous step.
    """
    strategy = program.strategy
    runs: list[Callable[[], object]] = []
    for _ in range(BATCHES):
        batches = [
            map_tensors(checked_batch(program.job, strategy.micro_batch), lambda tensor: tensor.to(program.device))
            for _ in range(strategy.accumulation if program.trains else 1)
        ]
        runs.append(partial(program.step, batches) if program.trains else partial(program.infer, batches[0]))
    return runs


def _timed(runs: Sequence[Callable[[], object]], device: torch.device, steps: int | None) -> Timing:
    once = clock_of(device)
    began, warm = time.perf_counter(), [once(runs[0])]
    while len(warm) < WARM_STEPS and time.perf_counter() - began < WARM_S:
        warm.append(once(runs[len(warm) % len(runs)]))
    issued = max(1, ceil(ASYNC_S / max(warm[-1], 1e-6))) if not backend_of(device).is_host else 1
    seconds: list[float] = []
    began = time.perf_counter()
    while _more(len(seconds), time.perf_counter() - began, steps):
        turn = [runs[(len(seconds) * issued + index) % len(runs)] for index in range(issued)]
        seconds.append(once(*turn) / issued)
    return summary(seconds)


def _more(done: int, passed_s: float, steps: int | None) -> bool:
    if steps is not None:
        return done < steps
    return done < 1 or (passed_s < MOST_S and (done < FEWEST_STEPS or passed_s < LEAST_S))


def _shares(run: Callable[[], object], timing: Timing, device: torch.device) -> dict[str, float]:
    """Runs one step under the profiler and returns shares by kind of operator.

    On an accelerator that PyTorch's profiler knows, the shares are times of kernels relative to the step, and the rest is idle
    time. Others have none.
    """
    backend = backend_of(device)
    on_device = [] if backend.is_host else backend.profiler_activities()
    if not backend.is_host and not on_device:
        return {}
    activities = [torch.profiler.ProfilerActivity.CPU, *on_device]
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        seconds = wall_seconds(run)
        backend.synchronize()
    spent = {"arithmetic": 0.0, "moving bytes": 0.0}
    for row in profile.key_averages():
        kind = kind_of_operator(row.key)
        if (
            kind is not None and row.device_type == torch.autograd.DeviceType.CPU
        ):  # an operator's time already includes its kernels
            spent[kind] += (row.self_device_time_total if on_device else row.self_cpu_time_total) / 1e6
    whole = max(timing.median_s if on_device else seconds, sum(spent.values()))
    return {**{kind: value / whole for kind, value in spent.items()}, "overhead": 1 - sum(spent.values()) / whole}


def kind_of_operator(name: str) -> str | None:
    """The kind of a profiler's event: "arithmetic", "moving bytes", or None for an operator that only calls others."""
    space, separator, rest = name.partition("::")
    if not separator or space in ("autograd", "torch") or "::" in rest:
        return None
    plain = rest.strip("_")
    if plain in _VIEWS:
        return None
    return "arithmetic" if plain in _PRODUCTS or any(part in rest for part in _ARITHMETIC) else "moving bytes"
