"""The virtual accelerator: a device that has every operator's shapes and none of its memory.

A Python backend registered under PyTorch's PrivateUse1 key, used under fake tensors. The registration API is marked
experimental; this module is the only place that touches it, and `accelerator.problem` says whether it still works.
"""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from gpuwise.tracing.streams import NOTHING, Streams

DEVICE = "virt"


class VirtualMode(FakeTensorMode):
    """Fake tensors that never try to initialise a device."""

    avoid_device_init = True

    def __init__(self) -> None:
        # No fallback kernels: an operator without a shape rule is named instead of being run on made-up values.
        super().__init__(allow_non_fake_inputs=True, allow_fallback_kernels=False)
        # A kernel that PyTorch's dispatcher does not see gets an error instead of a null pointer.
        self._allow_unsafe_data_ptr_access = False


class VirtualEvent:
    """Records what a stream has to do, for another to wait for."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        self._mark = NOTHING

    def record(self, stream: VirtualStream | None = None) -> None:
        streams = _Backend.streams
        self._mark = streams.mark(streams.current if stream is None else stream.number)

    def wait(self, stream: VirtualStream | None = None) -> None:
        streams = _Backend.streams
        streams.wait(streams.current if stream is None else stream.number, self._mark)

    def synchronize(self) -> None: ...
    def query(self) -> bool:
        return True


class VirtualStream:
    """A stream of the virtual device. number: None makes a new one."""

    def __init__(self, *args: object, number: int | None = None, **kwargs: object) -> None:
        self.device = torch.device(DEVICE, 0)
        self.number = _Backend.streams.new() if number is None else number
        self._before: list[int] = []

    def wait_event(self, event: VirtualEvent) -> None:
        event.wait(self)

    def wait_stream(self, stream: VirtualStream) -> None:
        _Backend.streams.wait(self.number, _Backend.streams.mark(stream.number))

    def record_event(self, event: VirtualEvent | None = None) -> VirtualEvent:
        event = event or VirtualEvent()
        event.record(self)
        return event

    def synchronize(self) -> None: ...
    def __enter__(self) -> VirtualStream:
        self._before.append(_Backend.streams.current)
        _Backend.streams.current = self.number
        return self

    def __exit__(self, *args: object) -> None:
        _Backend.streams.current = self._before.pop()


class _Backend:
    """The interface of a device module in PyTorch: streams, devices, random state, autocast types."""

    Stream, Event = VirtualStream, VirtualEvent
    streams = Streams()  # those of the recording that runs

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1  # autograd starts a thread for each

    def current_stream(self, device: object = None) -> VirtualStream:
        return VirtualStream(number=self.streams.current)

    def stream(self, stream: VirtualStream) -> VirtualStream:
        return stream

    def set_stream(self, stream: VirtualStream) -> None:
        self.streams.current = stream.number

    def synchronize(self, device: object = None) -> None: ...
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def get_rng_state(self, device: object = None) -> torch.Tensor:
        return torch.zeros(16, dtype=torch.uint8)

    def set_rng_state(self, state: torch.Tensor, device: object = None) -> None: ...
    def manual_seed_all(self, seed: int) -> None: ...


def use(streams: Streams) -> None:
    """Lets the device's streams be those of a recording, from now on."""
    _Backend.streams = streams


def make_device() -> None:
    """Registers the backend; once a process."""
    _setup_privateuseone_for_python_backend(DEVICE, backend_module=_Backend())
