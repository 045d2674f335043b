"""The state of all generators of random numbers that a program draws from."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor

from gpuwise.runtime.devices.here import backend_of


class RandomState(TypedDict):
    """Where the random numbers of PyTorch, on the host and the device, of Python and of NumPy stand."""

    torch: Tensor
    device: Tensor | None
    python: tuple[object, ...]
    numpy: Any


def random_state(device: torch.device) -> RandomState:
    """The state of now."""
    return {
        "torch": torch.get_rng_state(),
        "device": backend_of(device).random_state(),
        "python": random.getstate(),
        "numpy": np.random.get_state(),
    }


def set_random_state(state: RandomState, device: torch.device) -> None:
    """Lets random numbers go on from a state."""
    torch.set_rng_state(state["torch"])
    if state["device"] is not None:
        backend_of(device).set_random_state(state["device"])
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])


@contextmanager
def unchanged_generators(device: torch.device) -> Iterator[None]:
    """A context after which the generators of random numbers, of Python, NumPy, the CPU and this device, are as before."""
    before = random_state(device)
    try:
        yield
    finally:
        set_random_state(before, device)


def seed_everything(seed: int) -> None:
    """Seeds what initial weights and dropout draw from, and what data transforms commonly do."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)
