"""Whether the state of a run can be saved: known before anything is trained, not at its end."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from gpuwise.errors import InputError
from gpuwise.job import Job
from gpuwise.runtime.checkpoint import pack
from gpuwise.runtime.checkpoint.manifest import check_meta, state_json
from gpuwise.runtime.devices.random_state import random_state, set_random_state
from gpuwise.strategy import Strategy

MOST_DIMS = 6  # of a stand-in; no parameter of a usual layer has more than five (a 3-d convolution)


def check_saveable(state: Mapping[str, object], meta: Mapping[str, object]) -> None:
    """Raises InputError or UnsupportedError, with its place, for what a checkpoint cannot hold. Copies no tensor."""
    state_json(pack(state).structure)
    check_meta(meta)


def rehearse_optimizer(job: Job, strategy: Strategy) -> None:
    """One step of the job's own optimizer on tiny parameters: most optimizers make their state in their first step.

    Raises InputError where what it would keep cannot be saved. An optimizer that these parameters do not do for is left to
    the check after the first real step. Nothing random is drawn.
    """
    make = strategy.optimizer or job.optimizer
    if not callable(make):
        return
    before = random_state(torch.device("cpu"))
    try:
        stand_ins = [nn.Parameter(torch.zeros((2,) * dims)) for dims in range(1, MOST_DIMS)]
        optimizer = make(stand_ins)
        for parameter in stand_ins:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        state = optimizer.state_dict()
    except Exception:  # it wants the job's own parameters, or a closure
        return
    finally:
        set_random_state(before, torch.device("cpu"))
    try:
        pack({"optimizer": state})
    except InputError as error:
        raise InputError(
            f"the state of the job's optimizer cannot be saved: {error.what}", [*error.ways_out, "--no-run keeps nothing"]
        ) from error
