"""Random numbers of the stages of a pipeline in one step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from torch._guards import active_fake_mode

from gpuwise.runtime.devices import backend_of
from gpuwise.runtime.parallel.stages import Stages
from gpuwise.runtime.parallel.stages_flow import Flow

_APART = 0x9E3779B97F4A7C15  # between the seeds of two stages: 2^64 over the golden ratio


@contextmanager
def stage_seeds(stages: Stages, flow: Flow, *, device: torch.device, group: dist.ProcessGroup) -> Iterator[None]:
    """A context for one step: what a loss draws before the first block is alike on all stages, and dropout is not.

    Without it, noise that a loss adds to the model's input on the first stage, and compares with the output on the last,
    would be two different noises. All ranks advance the process's generator by one number a step.
    """
    if active_fake_mode() is not None:
        yield
        return
    base = torch.randint(2**62, ())
    if flow.draws_inputs:
        base = base.to(device)
        dist.broadcast(base, group=group, group_src=0)
    backend = backend_of(device)
    states = torch.get_rng_state(), backend.random_state()
    for stage in stages:
        stage.started = partial(_seed, int(base))
        stage.entered = partial(_seed, int(base) + (stage.index + 1) * _APART)
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        if states[1] is not None:
            backend.set_random_state(states[1])


def _seed(base: int, number: int) -> None:
    torch.manual_seed((base + number) % 2**63)
