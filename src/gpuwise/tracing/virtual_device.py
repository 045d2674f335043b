"""The virtual accelerator: a device that has every operator's shapes and none of its memory.

A Python backend registered under PyTorch's PrivateUse1 key, used under fake tensors. The registration API is marked
experimental; this module is the only place that touches it, and `accelerator.problem` says whether it still works.
"""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

DEVICE = "virt"


class VirtualMode(FakeTensorMode):
    """Fake tensors that never try to initialise a device."""

    avoid_device_init = True

    def __init__(self) -> None:
        # No fallback kernels: an operator without a shape rule is named instead of being run on made-up values.
        super().__init__(allow_non_fake_inputs=True, allow_fallback_kernels=False)
        # A kernel that PyTorch's dispatcher does not see gets an error instead of a null pointer.
        self._allow_unsafe_data_ptr_access = False


class _Event:
    def __init__(self, *args: object, **kwargs: object) -> None: ...
    def record(self, stream: object = None) -> None: ...
    def wait(self, stream: object = None) -> None: ...
    def synchronize(self) -> None: ...
    def query(self) -> bool:
        return True


class _Stream:
    def __init__(self, *args: object, **kwargs: object) -> None:
        self.device = torch.device(DEVICE, 0)

    def wait_event(self, event: object) -> None: ...
    def wait_stream(self, stream: object) -> None: ...
    def record_event(self, event: object = None) -> _Event:
        return _Event()

    def synchronize(self) -> None: ...
    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *args: object) -> None: ...


class _Backend:
    """The interface of a device module in PyTorch: streams, devices, random state, autocast types."""

    Stream, Event = _Stream, _Event

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

    def current_stream(self, device: object = None) -> _Stream:
        return _Stream()

    def stream(self, stream: _Stream) -> _Stream:
        return stream

    def synchronize(self, device: object = None) -> None: ...
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def get_rng_state(self, device: object = None) -> torch.Tensor:
        return torch.zeros(16, dtype=torch.uint8)

    def set_rng_state(self, state: torch.Tensor, device: object = None) -> None: ...
    def manual_seed_all(self, seed: int) -> None: ...


def make_device() -> None:
    """Registers the backend; once a process."""
    _setup_privateuseone_for_python_backend(DEVICE, backend_module=_Backend())
