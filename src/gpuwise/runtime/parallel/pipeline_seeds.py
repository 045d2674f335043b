"""Random numbers of the stages of a pipeline: alike where a loss draws them for all stages, and not so in dropout."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch._guards import active_fake_mode

from gpuwise.runtime.devices.random_state import unchanged_generators
from gpuwise.runtime.parallel.stages import Stages

_APART = 0x9E3779B97F4A7C15  # between the seeds of two stages: 2^64 over the golden ratio


class StageSeeds:
    """Seeds of the micro-batches of each step.

    Every stage runs the job's loss, so what that draws before the first block (noise that is added to the input on the
    first stage and compared with the output on the last, say) has to be the same on all stages. Each micro-batch begins with
    a seed of its own, from PyTorch's generator of the CPU; the generators of a pipeline's ranks are made equal before the
    first step, and all advance by one number a step. Where a stage's own blocks begin, it takes another seed.

    Arguments:
        stages: of this rank.
        device: of the stages.
        group: the ranks of the pipeline.
    """

    def __init__(self, stages: Stages, *, device: torch.device, group: dist.ProcessGroup):
        self._stages, self._device, self._group = stages, device, group
        self._equal = False

    @contextmanager
    def step(self, *, draws_inputs: bool) -> Iterator[None]:
        """The context of one step, after which all generators are as before, but for that number.

        Arguments:
            draws_inputs: whether the loss draws numbers of PyTorch before the first block, after which the first stage goes
                on without another seed.
        """
        if active_fake_mode() is not None:
            yield
            return
        self._make_equal()
        base = int(torch.randint(2**62, ()))
        for stage in self._stages:
            stage.started = partial(_seed_all, base)
            if not (stage.is_first and draws_inputs):
                stage.entered = partial(_seed, base + (stage.index + 1) * _APART)
        with unchanged_generators(self._device):
            yield

    def _make_equal(self) -> None:
        if self._equal:
            return
        state = torch.get_rng_state().to(self._device)
        dist.broadcast(state, group=self._group, group_src=0)
        torch.set_rng_state(state.cpu())
        self._equal = True


def _seed(base: int, number: int) -> None:
    torch.manual_seed((base + number) % 2**63)


def _seed_all(base: int, number: int) -> None:
    _seed(base, number)
    random.seed(base + number)
    np.random.seed((base + number) % 2**32)
