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

_ALIGNMENT_BYTES = 64  # a cache line, and more than any dtype asks for
_ENOUGH = 0.8  # of the memory that is free now; the rest is for what the training has not allocated yet


class Snapshot:
    """Room for one copy of a state. It grows with the state, and a second copy overwrites the first.

    On a CUDA device the copies are queued on the current stream, behind the step that made the values, into memory the
    device writes to by itself; the host does not wait.
    """

    def __init__(self) -> None:
        self._room = torch.empty(0, dtype=torch.uint8)
        self._events: tuple[torch.cuda.Event, torch.cuda.Event] | None = None

    def has_room_for(self, packed: Packed) -> bool:
        """Whether the host's memory suffices for a copy."""
        more = _room_bytes(packed) - self._room.nbytes
        available = detect_memory().available_bytes if more > 0 else None
        return available is None or more < _ENOUGH * available

    def take(self, packed: Packed) -> Packed:
        """The state with its tensors on the host, as they were in this moment; `wait` before they are read."""
        devices = {tensor.device for tensor in _tensors(packed)}
        cuda = next((device for device in devices if device.type == "cuda"), None)
        self._grow(_room_bytes(packed), pinned=cuda is not None)
        begin = _event(cuda)
        end = 0
        copies: dict[str, dict[str, Tensor]] = {}
        for part, tensors in packed.tensors.items():
            copies[part] = {}
            for name, tensor in tensors.items():
                start, end = end, end + _aligned(tensor.nbytes)
                flat = self._room[start : start + tensor.nbytes].view(tensor.dtype)
                copy = flat.as_strided(tensor.shape, tensor.stride()) if dense_order(tensor) else flat.view(tensor.shape)
                copies[part][name] = copy.copy_(tensor, non_blocking=True)
        done = _event(cuda)
        self._events = (begin, done) if begin and done else None
        return replace(packed, tensors=copies)

    def wait(self) -> float:
        """Until the last copies are there. Returns the seconds the device spent on them, zero on a CPU."""
        if self._events is None:
            return 0.0
        begin, done = self._events
        self._events = None
        done.synchronize()
        return begin.elapsed_time(done) / 1e3

    def _grow(self, nbytes: int, *, pinned: bool) -> None:
        if nbytes > self._room.nbytes:
            self._room = torch.empty(0, dtype=torch.uint8)  # the old room is given back before the new is taken
            self._room = torch.empty(nbytes, dtype=torch.uint8)
            if pinned:
                _pin(self._room)


def _pin(room: Tensor) -> None:
    """Lets the device write to it directly. torch's own pinned memory comes in powers of two: up to twice as much.

    Where the system allows no pinned memory the copies are right all the same, only slower.
    """
    cudart = torch.cuda.cudart()
    if int(cudart.cudaHostRegister(room.data_ptr(), room.nbytes, 0)) == 0:
        weakref.finalize(room, cudart.cudaHostUnregister, room.data_ptr()).atexit = False  # the driver does it then


def _event(device: torch.device | None) -> torch.cuda.Event | None:
    if device is None:
        return None
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def _tensors(packed: Packed) -> Iterator[Tensor]:
    return (tensor for tensors in packed.tensors.values() for tensor in tensors.values())


def _room_bytes(packed: Packed) -> int:
    return sum(_aligned(tensor.nbytes) for tensor in _tensors(packed))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
