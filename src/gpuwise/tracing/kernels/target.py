"""The target whose kernels are recorded: set for the length of a recording, read by the stand-ins for its kernels.

Registrations with PyTorch hold for the process; which kernel they stand for depends on the device forecast for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A kind of device whose kernels a trace has.

    Attributes:
        name: "accelerator" (CUDA on Ampere and newer), "pre-ampere" or "cpu".
        compute_capability: of the NVIDIA GPU stood for; None on a CPU.
    """

    name: str
    compute_capability: tuple[int, int] | None


TARGETS = {t.name: t for t in (Target("accelerator", (8, 0)), Target("pre-ampere", (7, 5)), Target("cpu", None))}
_current = [TARGETS["accelerator"]]  # of the process, not of a thread: backward may run on another


def current() -> Target:
    return _current[-1]


@contextmanager
def targeting(name: str) -> Iterator[None]:
    """Inside, the kernels of the target of this name are recorded: "accelerator", "pre-ampere" or "cpu"."""
    _current.append(TARGETS[name])
    try:
        yield
    finally:
        _current.pop()
