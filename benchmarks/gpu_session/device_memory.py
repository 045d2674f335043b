"""Memory of a real step: what the allocator, the driver and the system say of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from benchmarks.gpu_session import machine
from benchmarks.gpu_session.cases import StepCase
from benchmarks.gpu_session.forecasts import MOST_SIZES, attention_by
from benchmarks.memory_on_cpu import measured_bytes
from gpuwise.cost.memory.allocator import replay
from gpuwise.job import Job
from gpuwise.measure.trial_memory import one_step
from gpuwise.runtime.build.program import Program, build

STEPS = 3  # the second is the steady one; a third shows whether it is
_MOST_EVENTS = 2_000_000


def first_contact() -> dict[str, Any]:
    """Device memory that CUDA takes before any tensor of a program: its context, then cuBLAS's and cuDNN's kernels."""
    seen: dict[str, int | None] = {"before": machine.used_bytes()}
    torch.cuda.init()
    x = torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    seen["context"] = machine.used_bytes()
    for name, call in {
        "fp32 product": lambda: torch.zeros(512, 512, device="cuda") @ torch.zeros(512, 512, device="cuda"),
        "bf16 product": lambda: (
            torch.zeros(512, 512, device="cuda").bfloat16() @ torch.zeros(512, 512, device="cuda").bfloat16()
        ),
        "convolution": lambda: torch.nn.functional.conv2d(
            torch.zeros(8, 64, 56, 56, device="cuda"), torch.zeros(64, 64, 3, 3, device="cuda")
        ),
    }.items():
        call()
        torch.cuda.synchronize()
        seen[name] = _outside_allocator()
    about = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info()
    return {
        "used_bytes": seen,
        "free_bytes": free,
        "total_bytes": total,
        "allocated_bytes": x.untyped_storage().nbytes(),
        "name": about.name,
        "memory_bytes": about.total_memory,
        "capability": [about.major, about.minor],
        "sm_count": about.multi_processor_count,
        "l2_bytes": about.L2_cache_size,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "nccl": list(torch.cuda.nccl.version()),
    }


def _outside_allocator() -> int | None:
    used = machine.used_bytes()
    return None if used is None else used - torch.cuda.memory_reserved()


def memory_of(case: StepCase, device: str) -> dict[str, Any]:
    """Bytes of the step as it runs. Raises whatever building and running it raises."""
    with attention_by(case.attention):
        if device == "cpu":
            return {"allocated_bytes": measured_bytes(case.job(), case.strategy)}
        return _on_cuda(case)


def _on_cuda(case: StepCase) -> dict[str, Any]:
    before = machine.used_bytes()
    torch.cuda.init()
    torch.manual_seed(0)
    torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=_MOST_EVENTS)
    peaks = _Peaks()
    program = build(peaks.watching(case.job()), case.strategy, torch.device("cuda"))
    built = torch.cuda.memory_allocated()
    steps = [peaks.of_step(program) for _ in range(STEPS)]
    torch.cuda.synchronize()
    reserved, used = torch.cuda.max_memory_reserved(), machine.used_bytes()
    free, total = torch.cuda.mem_get_info()
    stats = torch.cuda.memory_stats()
    results = {
        "allocated_bytes": max(step["step"] for step in steps[:2]),
        "reserved_bytes": reserved,
        "device_bytes": None if used is None or before is None else used - before,
        "driver_bytes": total - free,
        "used_before_bytes": before,
        "resident_bytes": built,
        "steps": steps,
        "retries": stats["num_alloc_retries"],
        "host_bytes": _host_peak_bytes(),
    }
    with suppress(Exception):  # more to look at, where this version of PyTorch tells it
        results |= _history()
    return results


class _Peaks:
    """Allocated bytes at most in each phase of a step; the allocator counts as the host asks, so nothing is waited for."""

    def __init__(self) -> None:
        self._found: dict[str, int] = {}

    def watching(self, job: Job) -> Job:
        """The job, whose loss says that forward is done."""
        loss = job.loss

        def watched(model: Any, batch: Any) -> Any:
            self._ends("backward")  # of the micro-batch before
            result = loss(model, batch)
            self._ends("forward")
            return result

        return replace(job, loss=watched)

    def of_step(self, program: Program) -> dict[str, int]:
        self._found = {}
        update: Callable[[], None] = program.update

        def updated() -> None:
            self._ends("backward")
            update()

        program.update = updated  # type: ignore[method-assign]
        torch.cuda.reset_peak_memory_stats()
        try:
            one_step(program)
        finally:
            program.update = update  # type: ignore[method-assign]
        self._ends("optimizer")
        return {**self._found, "step": max(self._found.values())}

    def _ends(self, phase: str) -> None:
        self._found[phase] = max(self._found.get(phase, 0), torch.cuda.max_memory_allocated())
        torch.cuda.reset_peak_memory_stats()


def _history() -> dict[str, Any]:
    """From the allocator's own record: what made its peak, and what gpuwise's allocator takes for the same requests."""
    sizes, order, alive = live_at_peak(torch.cuda.memory._snapshot()["device_traces"][0])
    ours = replay(sizes, order)
    return {
        "allocations": len(sizes),
        "sizes_at_peak": sorted(alive.items(), key=lambda item: -item[0] * item[1])[:MOST_SIZES],
        "replayed": {"allocated_bytes": ours.peak_allocated_bytes, "reserved_bytes": ours.peak_reserved_bytes},
    }


def live_at_peak(events: Sequence[Mapping[str, Any]]) -> tuple[list[int], list[int], Counter[int]]:
    """The requests of an allocator's record as allocator.replay takes them (sizes, order), and how many of each
    size there were when they were most."""
    sizes: list[int] = []
    order: list[int] = []
    index_at: dict[int, int] = {}
    held = peak = end = 0
    for event in events:
        address = event["addr"]
        if event["action"] == "alloc":
            index_at[address] = len(sizes)
            order.append(len(sizes))
            sizes.append(event["size"])
            held += event["size"]
        elif event["action"] == "free_completed" and address in index_at:
            index = index_at.pop(address)
            order.append(~index)
            held -= sizes[index]
        if held > peak:
            peak, end = held, len(order)
    alive = {which for which in order[:end] if which >= 0} - {~which for which in order[:end] if which < 0}
    return sizes, order, Counter(sizes[index] for index in alive)


def _host_peak_bytes() -> int | None:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
