"""Threads of CPU operations: their number and cores. Also lists settings that a device ignores."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from gpuwise.hardware.detect.cpu import Cpu, core_processors, detect_cpu
from gpuwise.notes import Note
from gpuwise.notes import training as training_notes
from gpuwise.runtime.devices import Cuda, backend_of
from gpuwise.strategy import HostSettings, Strategy

# OpenMP libraries of PyTorch's builds: GNU's, LLVM's or Intel's. All of them export GOMP_parallel.
_OPENMP = ("libgomp", "libomp", "libiomp5")
_UNSET = HostSettings()


def apply_threads(host: HostSettings, *, core_share: int = 1) -> list[Note]:
    """Sets the number of threads of CPU operations, and binds them to cores if the settings require it.

    With None the number is kept, but limited to the physical cores that this process may use (by affinity and a container's
    limit), divided by the ranks that share them (core_share). More threads would only wait for each other.

    Returns notes on settings that could not be applied.
    """
    threads = host.threads
    if threads is None and not os.environ.get("OMP_NUM_THREADS"):
        threads = max(1, min(torch.get_num_threads(), detect_cpu().cores // core_share))
    if threads is not None and threads != torch.get_num_threads():
        torch.set_num_threads(threads)
    if not host.pin_threads:
        return []
    problem = bind_threads(torch.get_num_threads(), core_processors())
    return [training_notes.threads_not_bound(problem=problem)] if problem else []


def bind_threads(threads: int, processors: Sequence[int]) -> str | None:
    """Binds each OpenMP thread except the calling one to a separate processor. Returns the error, None on success.

    OpenMP has already read its own setting (OMP_PROC_BIND) when it was loaded, so each thread of its pool binds itself. The
    calling thread stays unbound, because processes that it starts later, such as loader workers, would inherit its core.
    The system then runs it on the remaining core.
    """
    if not sys.platform.startswith("linux"):
        return "only Linux lets a program choose"
    if threads > len(processors):
        return f"{threads} threads have {len(processors)} cores"
    try:
        library = _openmp()
    except OSError as error:
        return str(error)
    problems: list[str] = []

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def bind(_: object) -> None:  # runs on each thread of the pool
        number = library.omp_get_thread_num()
        if number:
            try:
                os.sched_setaffinity(0, {processors[number]})
            except OSError as error:
                problems.append(str(error))

    library.GOMP_parallel(bind, None, threads, 0)
    return problems[0] if problems else None


def _openmp() -> ctypes.CDLL:
    """The OpenMP library that PyTorch has loaded. Raises OSError without one."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if Path(path).name.startswith(_OPENMP):
            library = ctypes.CDLL(path)
            if hasattr(library, "GOMP_parallel"):
                return library
    raise OSError("this build of PyTorch runs its loops without OpenMP")


def unusable(strategy: Strategy, device: torch.device, *, host: HostSettings = _UNSET) -> list[Note]:
    """Notes on settings of the strategy and the host that this device ignores or only emulates."""
    backend = backend_of(device)
    on_cpu = backend.is_host
    notes: list[Note] = []
    bf16 = strategy.precision in ("amp-bf16", "bf16")
    if strategy.precision == "tf32" and not backend.has_tf32:
        notes.append(training_notes.tf32_ignored(device=backend.name))
    if bf16 and on_cpu and not computes_bf16(cpu := detect_cpu()):
        notes.append(training_notes.bf16_emulated(precision=strategy.precision, device=cpu.name, faster="fp32"))
    if bf16 and isinstance(backend, Cuda) and backend.is_before_ampere:
        notes.append(training_notes.bf16_emulated(precision=strategy.precision, device=backend.name, faster="amp-fp16"))
    if strategy.scales_loss and on_cpu:
        notes.append(training_notes.fp16_slow_on_cpu(precision=strategy.precision))
    if strategy.precision == "fp8" and on_cpu:
        notes.append(training_notes.fp8_emulated())
    if host.pinned_memory and not backend.pins:
        notes.append(training_notes.pinned_memory_ignored())
    if host.threads is not None and host.threads > (processors := detect_cpu().threads):
        notes.append(training_notes.more_threads_than_processors(threads=host.threads, processors=processors))
    return notes


def computes_bf16(cpu: Cpu) -> bool:
    """Whether a CPU has bfloat16 multiplication (AVX-512 BF16, AMX, or Arm's BF16)."""
    return bool({"avx512-bf16", "amx-bf16", "bf16"} & set(cpu.flags))
