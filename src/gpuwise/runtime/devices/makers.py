"""The devices that differ from Backend: the CPU, GPUs of NVIDIA, AMD, Intel and Apple, and the virtual one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor

from gpuwise.runtime.devices.backend import Backend, Event

# The first NVIDIA GPUs that compute in TF32 and bfloat16: Ampere (NVIDIA A100 white paper).
AMPERE = (8, 0)
_FP8_CAPABILITY = (8, 9)  # the first NVIDIA GPUs with fp8 units: Ada
_BF16_MACOS = (14, 0)  # the first macOS whose Metal has bfloat16 (torch.autocast on mps)


class Host(Backend):
    """The CPU. It has no queue: its copies are done when they return, and its memory is the process's."""

    is_host = non_blocking = True
    copies_overlap = has_timed_events = pins = has_tf32 = False

    @property
    def name(self) -> str:
        return "a CPU"

    def count(self) -> int:
        return 1

    def use(self) -> None: ...

    def synchronize(self) -> None: ...

    def mark(self, *, timed: bool = False) -> Event | None:
        return None

    def _memory(self, function: str) -> int | None:
        return None

    def free_and_total_bytes(self) -> tuple[int, int] | None:
        return None

    def random_state(self) -> Tensor | None:
        """None: the generator of the CPU is the process's, and is saved with it."""
        return None

    def set_random_state(self, state: Tensor) -> None: ...

    def why_no_fp8(self) -> str:
        return ""  # torchao emulates it

    def why_no_compile(self) -> str:
        return ""


class Cuda(Backend):
    """A GPU of torch.cuda: of NVIDIA, or of AMD in PyTorch's builds for ROCm."""

    copies_overlap = has_timed_events = pins = True
    against_fragments = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"

    @property
    def vendor(self) -> str:
        return "AMD" if torch.version.hip else "NVIDIA"

    @property
    def compute_capability(self) -> tuple[int, int] | None:
        """NVIDIA's number of the architecture; None for AMD."""
        return None if torch.version.hip else torch.cuda.get_device_capability(self.device)

    @property
    def is_before_ampere(self) -> bool:
        """Whether it is a GPU of NVIDIA without TF32, bfloat16 and flash attention."""
        return self.compute_capability is not None and self.compute_capability < AMPERE

    @property
    def has_tf32(self) -> bool:
        return not self.is_before_ampere

    def profiler_activities(self) -> list[torch.profiler.ProfilerActivity]:
        return [torch.profiler.ProfilerActivity.CUDA]

    def register_host_memory(self, room: Tensor) -> Callable[[], object] | None:
        cudart = torch.cuda.cudart()
        if int(cudart.cudaHostRegister(room.data_ptr(), room.nbytes, 0)) != 0:
            return None
        address = room.data_ptr()
        return lambda: cudart.cudaHostUnregister(address)

    def why_no_fp8(self) -> str:
        capability = self.compute_capability
        return f"{self.name} has no fp8 arithmetic" if capability is not None and capability < _FP8_CAPABILITY else ""

    def why_no_compile(self) -> str:
        return ""


class Xpu(Backend):
    """A GPU of Intel."""

    def profiler_activities(self) -> list[torch.profiler.ProfilerActivity]:
        return [torch.profiler.ProfilerActivity.XPU]

    @property
    def vendor(self) -> str:
        return "Intel"

    def why_no_float64(self) -> str:
        with suppress(AttributeError, RuntimeError, AssertionError):
            if not torch.xpu.get_device_properties(self.device).has_fp64:
                return f"{self.name} has no double precision"
        return ""


class Mps(Backend):
    """The GPU of an Apple chip. It has one queue and shares the memory of the host.

    PyTorch gives it no streams, no pinned memory and no peak of memory; Metal has no double precision, and there are no
    collectives. Copies wait for each other, so losses are read several steps at a time.
    """

    copies_overlap = pins = has_tf32 = False

    @property
    def name(self) -> str:
        return "Apple's GPU"

    @property
    def vendor(self) -> str:
        return "Apple"

    def count(self) -> int:
        return int(torch.backends.mps.is_available())

    def use(self) -> None: ...

    def synchronize(self) -> None:
        torch.mps.synchronize()

    def mark(self, *, timed: bool = False) -> Event | None:
        event = self.new_event(timed=timed)
        event.record()
        return event

    @property
    def multiprocessors(self) -> int | None:
        count = getattr(torch.backends.mps, "get_core_count", None)  # missing in some versions of PyTorch
        return int(count()) if count else None

    def allocated_bytes(self) -> int | None:
        return int(torch.mps.current_allocated_memory())

    def reserved_bytes(self) -> int | None:
        return int(torch.mps.driver_allocated_memory())

    def peak_allocated_bytes(self) -> int | None:
        return super().peak_allocated_bytes() or None  # 0 from an allocator that keeps no statistics

    def peak_reserved_bytes(self) -> int | None:
        return super().peak_reserved_bytes() or None

    def free_and_total_bytes(self) -> tuple[int, int] | None:
        """Of the memory that Metal recommends as the most for one process."""
        total = int(torch.mps.recommended_max_memory())
        return max(0, total - int(torch.mps.driver_allocated_memory())), total

    def random_state(self) -> Tensor | None:
        return torch.mps.get_rng_state()

    def set_random_state(self, state: Tensor) -> None:
        torch.mps.set_rng_state(state)

    def why_no_fp8(self) -> str:
        return "Apple's GPUs have no fp8 arithmetic"

    def why_no_bf16(self) -> str:
        return "" if torch.backends.mps.is_macos_or_newer(*_BF16_MACOS) else "bfloat16 on Apple's GPUs needs macOS 14"

    def why_no_float64(self) -> str:
        return "Apple's GPUs have no double precision"

    @property
    def collectives(self) -> str | None:
        """None: PyTorch names gloo for mps, which takes tensors of the CPU."""
        return None


class Virtual(Backend):
    """The virtual device of tracing: every operation returns at once, and nothing is held in memory."""

    non_blocking = True
    copies_overlap = has_timed_events = pins = False

    def synchronize(self) -> None: ...

    def mark(self, *, timed: bool = False) -> Event | None:
        return None

    def _memory(self, function: str) -> int | None:
        return None

    def why_no_fp8(self) -> str:
        return ""  # what the traced chip has is judged with its figures

    def why_no_compile(self) -> str:
        return ""
