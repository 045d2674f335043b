"""Peak memory of a real step by category.

On the CPU it comes from the profiler's record of every allocation, on an accelerator from its caching allocator.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch._C._profiler import _EventType

from gpuwise.errors import UnsupportedError
from gpuwise.job import checked_batch
from gpuwise.job.batches import named_tensors
from gpuwise.runtime.build.program import Program
from gpuwise.runtime.devices import backend_of
from gpuwise.runtime.parallel.gradients import local

REST, ALL_ELSE = "activations and temporaries", "all else"
_SECOND, _LOOK = "gpuwise second step", "gpuwise look"


@dataclass(frozen=True)
class PeakBytes:
    """Peak bytes of live tensors in the second step, including tensors made before it.

    Attributes:
        allocated_bytes: peak bytes of tensors.
        by_category: bytes by category; bytes of no category are REST.
        reserved_bytes: peak bytes on a GPU, with the allocator's cache; None on a CPU.
        device_bytes: peak bytes on a GPU, with the cache and the context; None on a CPU.
    """

    allocated_bytes: int
    by_category: dict[str, int] = field(default_factory=dict)
    reserved_bytes: int | None = None
    device_bytes: int | None = None


class _Allocated(Protocol):
    alloc_size: int
    ptr: int


class _ProfilerEvent(Protocol):
    """The attributes in use of an event of PyTorch's profiler. extra_fields has this type for allocations only."""

    name: str
    tag: object
    start_time_ns: int
    extra_fields: _Allocated
    children: list[_ProfilerEvent]


@dataclass
class _Looks:
    """Addresses of tensors by category at moments of the step; the profiler marks each moment by its number."""

    moments: list[dict[str, set[int]]] = field(default_factory=list)

    def at(self, **tensors: Iterable[object]) -> None:
        with torch.profiler.record_function(f"{_LOOK} {len(self.moments)}"):
            self.moments.append({name: set(_addresses(group)) for name, group in tensors.items()})


def memory_on_cpu(make: Callable[[], Program]) -> tuple[Program, PeakBytes]:
    """Makes the program and runs two steps of it under PyTorch's profiler."""
    looks = _Looks()
    # acc_events: there is only one cycle, but older versions warn about lost events without it.
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True
    ) as profile:
        program = make()
        one_step(program)
        with torch.profiler.record_function(_SECOND):
            one_step(program, looks)
    recorded: Any = profile.profiler
    tree = recorded.kineto_results.experimental_event_tree()
    return program, _peak(list(_events(tree)), looks)


def memory_on_accelerator(
    make: Callable[[], Program], device: torch.device, take_step: Callable[[Program], object] | None = None
) -> tuple[Program, PeakBytes]:
    """Makes the program and runs two steps. Categories cover persistent tensors only: the allocator's peak has none.

    Arguments:
        take_step: runs a step; by default one_step, for a single device.

    Raises UnsupportedError for an accelerator whose allocator does not keep its peak.
    """
    take_step = take_step or one_step
    backend, program = backend_of(device), make()
    take_step(program)
    backend.synchronize()
    backend.reset_peak()
    take_step(program)
    backend.synchronize()
    memory, peak = backend.free_and_total_bytes(), backend.peak_allocated_bytes()
    if peak is None:
        raise UnsupportedError(
            f"PyTorch does not report the peak memory of {backend.name}: a forecast of it cannot be compared.",
            ["train with the forecast beside it: gpuwise train"],
        )
    return program, PeakBytes(
        peak,
        by_category(program, peak),
        backend.peak_reserved_bytes(),
        None if memory is None else memory[1] - memory[0],
    )


def by_category(program: Program, peak_bytes: int) -> dict[str, int]:
    """A peak by category, with categories for the tensors that stay on the device alone."""
    groups = {"parameter": _model_tensors(program), "optimizer_state": _optimizer_state(program)}
    sizes = {
        name: sum(
            {
                tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
                for tensor in map(local, tensors)
                if tensor.device.type == program.device.type
            }.values()
        )
        for name, tensors in groups.items()
    }
    return {**sizes, ALL_ELSE: peak_bytes - sum(sizes.values())}


def one_step(program: Program, looks: _Looks | None = None) -> None:
    """Runs one step on batches made just before each micro-batch. `looks` records addresses of tensors."""
    micro_batch = program.strategy.micro_batch
    if not program.trains:
        batch = checked_batch(program.job, micro_batch)
        program.infer(batch)
        if looks:
            looks.at(input=(tensor for _, tensor in named_tensors(batch)), parameter=_model_tensors(program))
        return
    for _ in range(program.strategy.accumulation):
        batch = checked_batch(program.job, micro_batch)
        program.forward_backward(batch)
        if looks:
            looks.at(input=(tensor for _, tensor in named_tensors(batch)))
        del batch
    if looks:
        looks.at(gradient=(p.grad for p in program.model.parameters()))
    program.update()
    if looks:
        looks.at(parameter=_model_tensors(program), optimizer_state=_optimizer_state(program))


def _model_tensors(program: Program) -> list[torch.Tensor]:
    return [*program.model.parameters(), *program.model.buffers()]


def _optimizer_state(program: Program) -> list[torch.Tensor]:
    """The optimizer's tensors, and the averages of parameters, which recordings count with them."""
    states = program.optimizer.state.values() if program.optimizer is not None else ()
    averages = program.average.tensors.values() if program.average is not None else ()
    return [*(value for state in states for value in state.values() if isinstance(value, torch.Tensor)), *averages]


def _addresses(tensors: Iterable[object]) -> Iterator[int]:
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor):
            try:
                yield tensor.untyped_storage().data_ptr()
            except RuntimeError:  # a tensor subclass without its own storage
                continue


def _events(nodes: Iterable[_ProfilerEvent]) -> Iterator[_ProfilerEvent]:
    """Every event of the profiler's tree, parents first."""
    waiting = list(nodes)[::-1]
    while waiting:
        event = waiting.pop()
        yield event
        waiting += event.children[::-1]


def _peak(events: list[_ProfilerEvent], looks: _Looks) -> PeakBytes:
    """The largest sum of live bytes from the second step on.

    Addresses are reused, so a recorded tensor is matched to its allocation by address and lifetime.
    """
    named = {event.name: event.start_time_ns for event in events if event.name.startswith((_SECOND, _LOOK))}
    changes = sorted((event for event in events if event.tag == _EventType.Allocation), key=lambda event: event.start_time_ns)
    living: dict[int, int] = {}  # address -> index of the change that allocated it
    until: dict[int, int] = {}
    by_address: dict[int, list[int]] = {}
    deltas = []
    for index, event in enumerate(changes):
        size, address = event.extra_fields.alloc_size, event.extra_fields.ptr
        if size >= 0:
            living[address] = index
            by_address.setdefault(address, []).append(index)
        elif address in living:
            until[living.pop(address)] = index
        else:  # allocated before the profiler started
            size = 0
        deltas.append(size)
    times = [event.start_time_ns for event in changes]
    live, begin = list(accumulate(deltas)), bisect_right(times, named[_SECOND])
    before = live[begin - 1] if begin else 0
    peak = max(range(begin, len(live)), key=live.__getitem__, default=-1)
    if peak < 0 or live[peak] < before:  # nothing is allocated beyond the existing tensors
        peak = begin - 1

    categories: dict[int, str] = {}
    for number, look in enumerate(looks.moments):
        moment = bisect_right(times, named[f"{_LOOK} {number}"]) - 1
        for name, addresses in look.items():
            for address in addresses:
                allocations = by_address.get(address, [])
                index = bisect_right(allocations, moment) - 1
                if index >= 0 and until.get(allocations[index], len(times)) > moment:
                    categories.setdefault(allocations[index], name)
    by_category = dict.fromkeys(("parameter", "gradient", "optimizer_state", "input"), 0)
    for index, name in categories.items():
        if index <= peak < until.get(index, len(times)):
            by_category[name] += deltas[index]
    total = live[peak] if peak >= 0 else 0
    return PeakBytes(total, {**by_category, REST: total - sum(by_category.values())})
