"""Copies of a state in host memory that is used again from save to save, so that training goes on while they are written."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from gpuwise.hardware.detect.memory import detect_memory
from gpuwise.runtime.checkpoint.state import Packed
from gpuwise.runtime.checkpoint.tensors import dense_order
from gpuwise.runtime.devices import Backend, Event, backend_of

_ALIGNMENT_BYTES = 64  # a cache line, and more than any dtype asks for
_ENOUGH = 0.8  # of the memory that is free now; the rest is for what the training has not allocated yet


class Snapshot:
    """Room for one copy of a state. It grows with the state, and a second copy overwrites the first.

    On an accelerator the copies are queued on the current stream, behind the step that made the values, into memory the
    device writes to by itself; the host does not wait, except for devices that cannot copy so.
    """

    def __init__(self) -> None:
        self._room = torch.empty(0, dtype=torch.uint8)
        self._events: tuple[Event, Event] | None = None
        self._are_timed = False

    def has_room_for(self, packed: Packed) -> bool:
        """Whether the host's memory suffices for a copy."""
        more = _room_bytes(packed) - self._room.nbytes
        available = detect_memory().available_bytes if more > 0 else None
        return available is None or more < _ENOUGH * available

    def take(self, packed: Packed) -> Packed:
        """The state with its tensors on the host, as they were in this moment; `wait` before they are read."""
        devices = {tensor.device for tensor in _tensors(packed)}
        backend = next((each for each in map(backend_of, devices) if not each.is_host), None)
        self._grow(_room_bytes(packed), backend)
        begin = self._mark(backend)
        end = 0
        copies: dict[str, dict[str, Tensor]] = {}
        for part, tensors in packed.tensors.items():
            copies[part] = {}
            for name, tensor in tensors.items():
                start, end = end, end + _aligned(tensor.nbytes)
                flat = self._room[start : start + tensor.nbytes].view(tensor.dtype)
                copy = flat.as_strided(tensor.shape, tensor.stride()) if dense_order(tensor) else flat.view(tensor.shape)
                copies[part][name] = copy.copy_(tensor, non_blocking=backend is None or backend.non_blocking)
        done = self._mark(backend)
        self._events = (begin, done) if begin and done else None
        return replace(packed, tensors=copies)

    def wait(self) -> float:
        """Until the last copies are there. Returns the seconds the device spent on them, zero where that is unknown."""
        if self._events is None:
            return 0.0
        begin, done = self._events
        self._events = None
        done.synchronize()
        return begin.elapsed_time(done) / 1e3 if self._are_timed else 0.0

    def _mark(self, backend: Backend | None) -> Event | None:
        """An event on the device; None where copies are done when they return."""
        if backend is None or not backend.non_blocking:
            return None
        self._are_timed = backend.has_timed_events
        return backend.mark(timed=self._are_timed)

    def _grow(self, nbytes: int, backend: Backend | None) -> None:
        if nbytes > self._room.nbytes:
            self._room = torch.empty(0, dtype=torch.uint8)  # the old room is given back before the new is taken
            self._room = torch.empty(nbytes, dtype=torch.uint8)
            if backend is not None:
                _pin(self._room, backend)


def _pin(room: Tensor, backend: Backend) -> None:
    """Lets the device write to it directly. torch's own pinned memory comes in powers of two: up to twice as much.

    Where the system allows no pinned memory the copies are right all the same, only slower.
    """
    undo = backend.register_host_memory(room)
    if undo is not None:
        weakref.finalize(room, undo).atexit = False  # the driver does it then


def _tensors(packed: Packed) -> Iterator[Tensor]:
    return (tensor for tensors in packed.tensors.values() for tensor in tensors.values())


def _room_bytes(packed: Packed) -> int:
    return sum(_aligned(tensor.nbytes) for tensor in _tensors(packed))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
