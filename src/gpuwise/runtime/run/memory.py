"""The peak memory of a run."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import torch

from gpuwise.runtime.devices import backend_of

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")  # see proc(5): writing 5 resets the peak resident set size


class PeakMemory:
    """Counts from construction: the allocator's bytes on an accelerator, the process's resident set on the CPU (Linux only)."""

    def __init__(self, device: torch.device):
        self._backend = backend_of(device)
        if not self._backend.is_host:
            self._backend.reset_peak()
            self._before_bytes = self._backend.allocated_bytes()
            return
        with suppress(OSError):  # not Linux, or not allowed: then a peak from before may hide the run's own
            _CLEAR.write_text("5")
        self._before_bytes, self._peak_before_bytes = _resident("VmRSS"), _resident("VmHWM")

    def now_bytes(self) -> int | None:
        """Bytes in use now, minus those at the start."""
        if not self._backend.is_host:
            allocated = self._backend.allocated_bytes()
            return None if allocated is None else allocated - (self._before_bytes or 0)
        now = _resident("VmRSS")
        return None if now is None or self._before_bytes is None else max(0, now - self._before_bytes)

    def bytes(self) -> int | None:
        """Peak bytes since the start, minus those at the start; None if unknown."""
        if not self._backend.is_host:
            peak = self._backend.peak_allocated_bytes()
            return None if peak is None else peak - (self._before_bytes or 0)
        peak = _resident("VmHWM")
        if peak is None or self._before_bytes is None or peak == self._peak_before_bytes:
            return None
        return peak - self._before_bytes


def _resident(field: str) -> int | None:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), None)
