"""Whose kernels are being recorded: set for the length of a recording, asked by what stands in for the kernels.

Registrations with PyTorch hold for the process; which kernel they stand for depends on the device forecast for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A substrate of traces. compute_capability: of the NVIDIA GPU stood for; None on a CPU."""

    substrate: str
    compute_capability: tuple[int, int] | None


TARGETS = {t.substrate: t for t in (Target("accelerator", (8, 0)), Target("pre-ampere", (7, 5)), Target("cpu", None))}
_current = [TARGETS["accelerator"]]  # of the process, not of a thread: backward may run on another


def current() -> Target:
    return _current[-1]


@contextmanager
def targeting(substrate: str) -> Iterator[None]:
    """While entered, the kernels of this substrate are taken: "accelerator", "pre-ampere" or "cpu"."""
    _current.append(TARGETS[substrate])
    try:
        yield
    finally:
        _current.pop()
