"""Backend: what the runtime asks of a device, for any accelerator that PyTorch has."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import cached_property
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor


class Event(Protocol):
    """A mark in the queue of a device's work; see torch.Event. Times are in milliseconds."""

    def record(self) -> None: ...

    def query(self) -> bool: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, end: Any, /) -> float: ...


class Backend:
    """A device of PyTorch: its queue of work, its memory, its random numbers, and what it lacks.

    This class serves every accelerator whose module has the names of torch.cuda (XPU, MTIA, those of other packages). What
    such a module lacks is None here, a function without effect, or a reason, and never an AttributeError.

    Everything goes through the device's own module and names the device. torch.accelerator knows one type of device in a
    process: once tracing has registered its virtual device, it speaks of that one.

    Attributes:
        device: the device.
        is_host: whether the device is the CPU, which has finished an operation when the call returns.
        against_fragments: setting of the environment against fragmentation of the device's memory; "" without one.
        collectives: PyTorch's name of the library for collectives between such devices; None without one.
    """

    is_host = False
    against_fragments = ""

    def __init__(self, device: torch.device):
        self.device = device

    @cached_property
    def _module(self) -> Any:
        return torch.get_device_module(self.device)

    @property
    def name(self) -> str:
        """The name of the chip, or the type of the device where PyTorch does not tell."""
        with suppress(AttributeError, RuntimeError, AssertionError):
            return str(self._module.get_device_name(self.device))
        return f"a device of type {self.device.type}"

    @property
    def vendor(self) -> str:
        """The maker of the chip, as in the catalog; "" if unknown."""
        return ""

    def count(self) -> int:
        """Devices of this type that this process may use."""
        return int(self._module.device_count()) if self._module.is_available() else 0

    def use(self) -> None:
        """Makes this the current device of its type."""
        if self.device.index is not None and hasattr(self._module, "set_device"):
            self._module.set_device(self.device)

    # The queue of work.

    def synchronize(self) -> None:
        """Waits for all work of the device."""
        self._module.synchronize(self.device)

    @cached_property
    def copies_overlap(self) -> bool:
        """Whether copies can run beside kernels: streams, events that wait for them, and asynchronous copies."""
        return all(hasattr(self._module, name) for name in ("Stream", "Event", "stream", "current_stream"))

    @property
    def non_blocking(self) -> bool:
        """Whether a copy may be queued while the host goes on: the device finds what it reads although the host freed it."""
        return self.copies_overlap

    def new_stream(self) -> torch.Stream:
        return cast(torch.Stream, self._module.Stream(self.device))

    def current_stream(self) -> torch.Stream:
        return cast(torch.Stream, self._module.current_stream(self.device))

    def on_stream(self, stream: torch.Stream) -> AbstractContextManager[object]:
        """Inside, work is queued on this stream."""
        return cast("AbstractContextManager[object]", self._module.stream(stream))

    def keep_for(self, tensor: Tensor, stream: torch.Stream) -> None:
        """The tensor's memory is not used again, after it is freed, before this stream is done with it."""
        tensor.record_stream(stream)

    @cached_property
    def has_timed_events(self) -> bool:
        """Whether events measure the device's own time."""
        try:
            self._module.Event(enable_timing=True)
        except (AttributeError, TypeError, RuntimeError):  # no class, no such keyword, or a class that raises when made
            return False
        return True

    def new_event(self, *, timed: bool = False) -> Event:
        return cast(Event, self._module.Event(enable_timing=True) if timed else self._module.Event())

    def mark(self, *, timed: bool = False) -> Event | None:
        """An event behind all work that is queued on the current stream; None on a device without events."""
        event: Any = self.new_event(timed=timed)
        event.record(self.current_stream())
        return cast(Event, event)

    # Copies between host and device.

    @cached_property
    def pins(self) -> bool:
        """Whether the host has pinned memory, from and to which the device copies by itself."""
        if not self.copies_overlap:
            return False
        try:
            torch.ops.aten._pin_memory(torch.empty(1), self.device)
        except RuntimeError:  # no kernel for the device, which PyTorch raises as NotImplementedError, or a refusal of its own
            return False
        return True

    def pinned(self, tensor: Tensor) -> Tensor:
        """The host's tensor in pinned memory; itself if it is pinned, and on a device without pinned memory.

        As Tensor.pin_memory, for this device. That method pins for the type of device that torch.accelerator names.
        """
        if not self.pins or tensor.is_pinned():
            return tensor
        return cast(Tensor, torch.ops.aten._pin_memory(tensor, self.device))

    def register_host_memory(self, room: Tensor) -> Callable[[], object] | None:
        """Pins memory of the host where it lies. Returns what undoes that; None if it stays pageable."""
        return None

    # Memory of the device.

    def allocated_bytes(self) -> int | None:
        """Bytes of tensors now; None if unknown, as for the other figures of memory."""
        return self._memory("memory_allocated")

    def peak_allocated_bytes(self) -> int | None:
        """Most bytes of tensors since the start or the latest `reset_peak`."""
        return self._memory("max_memory_allocated")

    def reserved_bytes(self) -> int | None:
        """Bytes of PyTorch's allocator now, with what it caches."""
        return self._memory("memory_reserved")

    def peak_reserved_bytes(self) -> int | None:
        return self._memory("max_memory_reserved")

    def reset_peak(self) -> None:
        """Counts peaks from now on."""
        self._memory("reset_peak_memory_stats")

    def free_and_total_bytes(self) -> tuple[int, int] | None:
        """Memory of the device that nobody uses, and all of it, as the driver tells."""
        tell = getattr(self._module, "mem_get_info", None)
        return None if tell is None else tell(self.device)

    def _memory(self, function: str) -> int | None:
        """Asks the device's module, else torch.accelerator if it speaks of this type of device."""
        ask = getattr(self._module, function, None)
        if ask is not None:
            return cast("int | None", ask(self.device))
        current = torch.accelerator.current_accelerator()
        if current is None or current.type != self.device.type:
            return None
        with suppress(RuntimeError, AttributeError):  # an allocator without statistics, a PyTorch without the function
            return cast("int | None", getattr(torch.accelerator, function)(self.device))
        return None

    # What the device tells of itself.

    @property
    def multiprocessors(self) -> int | None:
        """Units that run blocks of threads (NVIDIA's SMs, AMD's compute units); None if unknown."""
        with suppress(AttributeError, RuntimeError, AssertionError):
            return int(self._module.get_device_properties(self.device).multi_processor_count)
        return None

    def profiler_activities(self) -> list[torch.profiler.ProfilerActivity]:
        """The device's own rows in PyTorch's profiler; none if it does not record them."""
        return []

    # Random numbers.

    def random_state(self) -> Tensor | None:
        """The state of the device's generator, on the host; None on a device without one."""
        get = getattr(self._module, "get_rng_state", None)
        return None if get is None else get(self.device)

    def set_random_state(self, state: Tensor) -> None:
        if hasattr(self._module, "set_rng_state"):
            self._module.set_rng_state(state, self.device)

    # What it lacks: a reason in a few words, "" for what it has.

    def why_no_fp8(self) -> str:
        """The reason why products in float8 do not run."""
        try:
            one = torch.ones((), device=self.device)
            a = torch.zeros(16, 16, device=self.device).to(torch.float8_e4m3fn)
            torch._scaled_mm(a, a.t(), one, one, out_dtype=torch.bfloat16)
        except (RuntimeError, TypeError) as error:  # no kernel, or no such dtype on the device
            return f"{self.name} has no fp8 arithmetic in this PyTorch ({_first_words(error)})"
        return ""

    @property
    def has_tf32(self) -> bool:
        """Whether products of fp32 run faster in TF32; True where PyTorch does not tell."""
        return True

    def why_no_bf16(self) -> str:
        """The reason why nothing can be computed in bfloat16."""
        return ""

    def why_no_float64(self) -> str:
        """The reason why there are no tensors in double precision."""
        return ""

    def why_no_compile(self) -> str:
        """The reason why torch.compile makes no kernels."""
        try:
            from torch._inductor.codegen.common import get_scheduling_for_device, init_backend_registration

            init_backend_registration()
            has_kernels = get_scheduling_for_device(self.device.type) is not None
        except (ImportError, AttributeError):  # moved in this version: compiling itself will tell
            return ""
        return "" if has_kernels else f"torch.compile makes no kernels for devices of type {self.device.type}"

    @property
    def collectives(self) -> str | None:
        if not dist.is_available():
            return None
        name = dist.Backend.default_device_backend_map.get(self.device.type)
        # "fake" registers itself for device types without a library of their own once anybody imports it.
        return name if name not in (None, "fake") and dist.is_backend_available(name) else None


def _first_words(error: BaseException) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
