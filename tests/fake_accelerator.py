"""Accelerators made of the CPU: one whose copies arrive late, and one that has nothing beyond what PyTorch requires.

`late_accelerator` has streams, events and pinned memory, and the arithmetic of the CPU. A copy to the host writes garbage
at once and its values only when an event behind it has passed; a copy to the device on a stream of its own, when the
current stream waits for its event. Code that reads too early therefore trains on garbage.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gpuwise.runtime.devices import Backend
from gpuwise.runtime.devices import here as here_module

LOOKS = 3  # an event has passed when it was asked this often


class FakeStream:
    """Work that is done in order, later."""

    def __init__(self, calls: Counter[str]) -> None:
        self.calls, self.done = calls, 0
        self.waiting: list[Callable[[], object]] = []
        self.lock = threading.Lock()

    def queue(self, work: Callable[[], object]) -> None:
        with self.lock:
            self.waiting.append(work)

    def run_until(self, number: int) -> None:
        with self.lock:
            count = max(0, number - self.done)
            ready, self.waiting = self.waiting[:count], self.waiting[count:]
            self.done += len(ready)
            for work in ready:
                work()

    def record_event(self) -> FakeEvent:
        event = FakeEvent(self)
        event.record()
        return event

    def wait_event(self, event: FakeEvent) -> None:
        self.calls["wait_event"] += 1
        event.synchronize()


class FakeEvent:
    def __init__(self, stream: FakeStream):
        self.stream, self.number, self.looks = stream, 0, 0

    def record(self) -> None:
        self.number = self.stream.done + len(self.stream.waiting)

    def query(self) -> bool:
        self.looks += 1
        if self.looks >= LOOKS:
            self.synchronize()
        return self.looks >= LOOKS

    def synchronize(self) -> None:
        self.stream.run_until(self.number)

    def elapsed_time(self, end: FakeEvent) -> float:
        return 1.0


class FakeAccelerator(Backend):
    """The late one. calls: how often each part of the interface was used, by all objects of a class."""

    copies_overlap = has_timed_events = pins = True
    calls: Counter[str]
    stream: FakeStream
    current: list[FakeStream]
    host: list[Tensor]  # memory of the host that the device writes by itself

    def synchronize(self) -> None:
        self.calls["synchronize"] += 1
        self.stream.run_until(2**62)

    def new_stream(self) -> Any:
        return FakeStream(self.calls)

    def current_stream(self) -> Any:
        return self.current[-1]

    @contextmanager
    def _on(self, stream: Any) -> Iterator[None]:
        self.current.append(stream)
        yield
        self.current.pop()

    def on_stream(self, stream: Any) -> AbstractContextManager[object]:
        return self._on(stream)

    def keep_for(self, tensor: Tensor, stream: Any) -> None:
        assert stream is self.stream
        self.calls["keep_for"] += 1

    def new_event(self, *, timed: bool = False) -> Any:
        return FakeEvent(self.current[-1])

    def mark(self, *, timed: bool = False) -> Any:
        self.calls["mark"] += 1
        return self.current[-1].record_event()

    def pinned(self, tensor: Tensor) -> Tensor:
        self.calls["pinned"] += 1
        copy = tensor.clone()
        self.host.append(copy)
        return copy

    def register_host_memory(self, room: Tensor) -> Callable[[], object]:
        self.calls["register"] += 1
        self.host.append(room)
        return lambda: None

    def allocated_bytes(self) -> int:
        return 5_000

    def peak_allocated_bytes(self) -> int:
        return 7_000

    def reset_peak(self) -> None:
        self.calls["reset_peak"] += 1

    def random_state(self) -> Tensor:
        self.calls["random_state"] += 1
        return torch.full((8,), 3, dtype=torch.uint8)

    def set_random_state(self, state: Tensor) -> None:
        assert state.tolist() == [3] * 8
        self.calls["set_random_state"] += 1

    def free_and_total_bytes(self) -> tuple[int, int]:
        return 2**30, 2**31


class LateCopies(TorchFunctionMode):
    """Delays what a device copies by itself: into memory of the host, and from it on a stream of its own."""

    def __init__(self, kind: type[FakeAccelerator]):
        super().__init__()
        self.kind = kind

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        stream = self.kind.current[-1]
        if func is Tensor.copy_ and kwargs.get("non_blocking") and self._is_of_host(args[0]):
            target, value = args[0], args[1].detach().clone()
            _spoil(target)
            stream.queue(lambda: target.data.copy_(value))
            self.kind.calls["late to the host"] += 1
            return target
        if func is Tensor.to and kwargs.get("non_blocking") and stream is not self.kind.stream:
            source, target = args[0], torch.empty_like(args[0])
            _spoil(target)
            stream.queue(lambda: target.copy_(source))  # reads the host's memory when it is its turn
            self.kind.calls["late to the device"] += 1
            return target
        return func(*args, **kwargs)

    def _is_of_host(self, tensor: Tensor) -> bool:
        address = tensor.untyped_storage().data_ptr()
        return any(address == memory.untyped_storage().data_ptr() for memory in self.kind.host)


def _spoil(tensor: Tensor) -> None:
    tensor.detach().fill_(float("nan") if tensor.is_floating_point() else 1)


@contextmanager
def late_accelerator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Inside, the CPU is an accelerator whose copies are late. Yields the counts of what was used of it."""
    calls: Counter[str] = Counter()
    stream = FakeStream(calls)
    kind = type("LateAccelerator", (FakeAccelerator,), {"calls": calls, "stream": stream, "current": [stream], "host": []})
    monkeypatch.setitem(here_module.BACKENDS, "cpu", kind)
    with LateCopies(kind):
        yield calls


def bare_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU becomes an accelerator whose module can wait and nothing else."""

    class Bare(Backend):
        _module = SimpleNamespace(synchronize=lambda device: None)

    monkeypatch.setitem(here_module.BACKENDS, "cpu", Bare)
