"""Real steps of a job on this machine: how long they take, what they hold, and what they spend their time on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from math import ceil

import torch

from gpuwise.job import Job, checked_batch
from gpuwise.job.batches import map_tensors
from gpuwise.measure.timing import device_seconds, summary, wall_seconds
from gpuwise.measure.trial_memory import memory_on_cpu, memory_on_cuda
from gpuwise.results.measurement import Timing
from gpuwise.results.validation import MeasuredStep
from gpuwise.runtime.build.host_memory import keep_freed_memory
from gpuwise.runtime.build.program import Program, build
from gpuwise.strategy import Strategy

FEWEST_STEPS, LEAST_S, MOST_S = 7, 5.0, 40.0  # steps timed, and seconds spent on them
WARM_STEPS, WARM_S = 3, 0.5  # beyond the two that memory is measured in; not longer than this
BATCHES = 3  # taken in turn, so that no cache holds the input of a step
ASYNC_S = 0.05  # steps of a GPU are issued for so long before it is waited for, as a training loop does

_ARITHMETIC = ("convolution", "attention", "rnn", "lstm", "gru", "linear_pointwise", "_mm", "mm_")
_PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot"}
# They change how a tensor is looked at, or ask for memory; their time is that of being called.
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
        steps: timed ones; None: at least FEWEST_STEPS and LEAST_S seconds, MOST_S at most. say: told what runs.

    Raises whatever the job's own code raises, and MemoryError or RuntimeError where memory runs out.
    """
    keep_freed_memory()
    torch.manual_seed(0)
    make = partial(build, job, strategy, device)
    say("its first steps")
    program, peak = memory_on_cuda(make, device) if device.type == "cuda" else memory_on_cpu(make)
    say("the timed steps")
    runs = _steps_of(program)
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


def _steps_of(program: Program) -> list[Callable[[], object]]:
    """A step on each of BATCHES sets of micro-batches, made and on the device before any is timed: a forecast takes them to be
    loaded while the step before computes."""
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
    once = device_seconds if device.type == "cuda" else wall_seconds
    began, warm = time.perf_counter(), [once(runs[0])]
    while len(warm) < WARM_STEPS and time.perf_counter() - began < WARM_S:
        warm.append(once(runs[len(warm) % len(runs)]))
    issued = max(1, ceil(ASYNC_S / max(warm[-1], 1e-6))) if device.type == "cuda" else 1
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
    """One step under the profiler: shares of it by kind of operator. On a GPU its kernels against the time of a step, so that
    the rest is idle."""
    cuda = device.type == "cuda"
    activities = [torch.profiler.ProfilerActivity.CPU] + ([torch.profiler.ProfilerActivity.CUDA] if cuda else [])
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        seconds = wall_seconds(run)
        if cuda:
            torch.cuda.synchronize(device)
    spent = {"arithmetic": 0.0, "moving bytes": 0.0}
    for row in profile.key_averages():
        kind = kind_of_operator(row.key)
        if kind is not None and row.device_type == torch.autograd.DeviceType.CPU:  # a kernel's time is also its operator's
            spent[kind] += (row.self_device_time_total if cuda else row.self_cpu_time_total) / 1e6
    whole = max(timing.median_s if cuda else seconds, sum(spent.values()))
    return {**{kind: value / whole for kind, value in spent.items()}, "overhead": 1 - sum(spent.values()) / whole}


def kind_of_operator(name: str) -> str | None:
    """Of a profiler's event: "arithmetic", "moving bytes", or None for what only calls others."""
    space, separator, rest = name.partition("::")
    if not separator or space in ("autograd", "torch") or "::" in rest:
        return None
    plain = rest.strip("_")
    if plain in _VIEWS:
        return None
    return "arithmetic" if plain in _PRODUCTS or any(part in rest for part in _ARITHMETIC) else "moving bytes"
