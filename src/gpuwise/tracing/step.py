"""One step of a program under the recorder, in its parts, and the categories of its storages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from gpuwise.job import Job, checked_batch
from gpuwise.job.job import Batch
from gpuwise.runtime.build.master_weights import MasterOptimizer
from gpuwise.runtime.build.optimizers import CombinedOptimizer
from gpuwise.runtime.build.program import Program
from gpuwise.strategy import Strategy
from gpuwise.trace.header import UpdatedParameter
from gpuwise.tracing.kernels.low_bit import inner_tensors
from gpuwise.tracing.positions import Origin
from gpuwise.tracing.recorder import BACKWARD, UPDATE_STEP, Recorder
from gpuwise.tracing.storage_table import StorageRow

MANY = 3  # micro-batches of a rank's step from which on there is one between the first and the last, which are special


def repeats_micro_batch(strategy: Strategy) -> bool:
    """Whether one recorded micro-batch of a rank's step stands for all between the first and the last."""
    return strategy.mesh.pp == 1 and strategy.accumulation >= MANY


def recorded_micro_batches(strategy: Strategy) -> int:
    """How many micro-batches of the step of one of several ranks are recorded."""
    return MANY if repeats_micro_batch(strategy) else strategy.accumulation


def create_state(program: Program, recorder: Recorder, strategy: Strategy, *, really: bool) -> None:
    """Creates optimizer state, and sets the category of every storage that stays.

    Arguments:
        really: whether by a step; else by gradients that nothing computed.
    """
    optimizer = program.optimizer
    if program.own_step is not None:
        program.own_step.context.evaluation = partial(_evaluating, recorder)
    if isinstance(optimizer, CombinedOptimizer):
        optimizer.on_gradient = lambda parameter: _mark_gradient(recorder, parameter)
    if really:
        one_step(program, recorder, strategy if strategy.mesh.pp > 1 else strategy.but(accumulation=1))
    else:
        for parameter in program.model.parameters():
            parameter.grad = torch.empty_like(parameter) if parameter.requires_grad else None
        program.update()
    name_weights(program.model, recorder)
    for tensor in [*program.model.parameters(), *program.model.buffers()]:
        _mark(recorder, "parameter", tensor)
    for tensor in program.average.tensors.values() if program.average is not None else ():
        _mark(recorder, "optimizer_state", tensor)
    for master in optimizer.copies.values() if isinstance(optimizer, MasterOptimizer) else ():
        _mark(recorder, "optimizer_state", master)
    _mark_optimizer_state(program, recorder)


def name_weights(model: nn.Module, recorder: Recorder) -> None:
    """Parameters and buffers get the module that has them."""
    for path, named in [*model.named_parameters(), *model.named_buffers()]:
        for tensor in inner_tensors(named):
            row = recorder.storages.row(tensor)
            if row is not None:
                row.module = recorder.modules.index(path.rpartition(".")[0])


def one_step(program: Program, recorder: Recorder, strategy: Strategy) -> bool:
    """One step in its parts. Returns whether every parameter that is trained got a gradient."""
    micro_batch = strategy.micro_batch
    recorder.micro_step = 0
    if not program.trains:
        program.infer(_batch(program.job, recorder, micro_batch))
        return True
    if program.world is not None:
        program.accumulate_gradients(_MicroBatches(program.job, recorder, strategy))
    else:
        for recorder.micro_step in range(strategy.accumulation):
            program.forward_backward(_batch(program.job, recorder, micro_batch))
    for parameter in program.model.parameters():
        _mark_gradient(recorder, parameter)
    if program.world is not None:
        recorder.modules.updated = tuple(_updated(recorder, p) for p in program.model.parameters() if p.grad is not None)
    trained = all(p.grad is not None for p in program.model.parameters() if p.requires_grad)
    recorder.micro_step = UPDATE_STEP
    program.update()
    program.parts.clear()  # numbers that a run reads
    if program.own_step is not None:
        _mark_optimizer_state(program, recorder)  # a history has other tensors after each step
    return trained


class _MicroBatches(Sequence[Batch]):
    """The micro-batches of a rank's step, each made when it is taken: the first, one of those between, the last.

    Of a pipeline all of them: they overlap, and those in flight hold memory.
    """

    def __init__(self, job: Job, recorder: Recorder, strategy: Strategy):
        self._job, self._recorder, self._strategy = job, recorder, strategy

    def __len__(self) -> int:
        return recorded_micro_batches(self._strategy)

    def __getitem__(self, index: int) -> Batch:  # type: ignore[override]
        if index >= len(self):
            raise IndexError
        self._recorder.micro_step = int(repeats_micro_batch(self._strategy) and index == 1)
        return _batch(self._job, self._recorder, self._strategy.micro_batch)


@contextmanager
def noticing_updates(recorder: Recorder) -> Iterator[None]:
    """Inside, the recorder knows when an optimizer steps, be it inside backward."""

    def begins(optimizer: torch.optim.Optimizer, *_: object) -> None:
        recorder.updating = True
        if recorder.micro_step != UPDATE_STEP:  # a step of the job's own may free its gradients after the update
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if id(parameter) in recorder.modules.parameters:
                        _mark_gradient(recorder, parameter)

    def ends(*_: object) -> None:
        recorder.updating = False

    hooks = register_optimizer_step_pre_hook(begins), register_optimizer_step_post_hook(ends)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def record_clipping_in_backward(program: Program, recorder: Recorder) -> None:
    """Lets clipping count as backward: it stays when the optimizer is replaced (gpuwise.trace.update.optimizers)."""
    clip = program.clip_gradients

    def recorded(norm: float, parameters: list[torch.nn.Parameter] | None = None) -> torch.Tensor:
        recorder.origin = Origin(BACKWARD, module=0)
        try:
            return clip(norm, parameters)
        finally:
            recorder.origin = None

    program.clip_gradients = recorded  # type: ignore[method-assign]


@contextmanager
def _evaluating(recorder: Recorder) -> Iterator[None]:
    """The closure of an optimizer: forward and backward again, in the middle of its update."""
    before, recorder.updating = recorder.updating, False
    try:
        yield
    finally:
        recorder.updating = before


def _batch(job: Job, recorder: Recorder, micro_batch: int) -> Batch:
    """An example batch; making it is not part of the step."""
    recorder.paused = True
    try:
        batch = checked_batch(job, micro_batch)
    finally:
        recorder.paused = False
    recorder.receive(batch)
    return batch


def _mark_optimizer_state(program: Program, recorder: Recorder) -> None:
    """Sets the category of the tensors of the optimizer's state, those in its lists included."""
    for value in tree_leaves(list(program.optimizer.state.values()) if program.optimizer is not None else []):
        if isinstance(value, torch.Tensor):
            _mark(recorder, "optimizer_state", value)


def _mark_gradient(recorder: Recorder, parameter: torch.Tensor) -> None:
    """Sets the category of the parameter's gradient, if it has one; to be called before it is freed."""
    if parameter.grad is None:
        return
    order, path = recorder.modules.parameters[id(parameter)]
    for row in _mark(recorder, "gradient", parameter.grad):
        row.gradient_shape, row.gradient_order = tuple(parameter.shape), order
        row.module = recorder.modules.index(path)


def _updated(recorder: Recorder, parameter: torch.Tensor) -> UpdatedParameter:
    """This rank's part of a parameter that the optimizer updates."""
    _, path = recorder.modules.parameters[id(parameter)]
    part = inner_tensors(parameter)[0]
    return UpdatedParameter(tuple(part.shape), part.element_size(), recorder.modules.index(path))


def _mark(recorder: Recorder, category: str, tensor: torch.Tensor) -> list[StorageRow]:
    """Sets the category of a tensor's storages, and returns their rows."""
    rows = [row for inner in inner_tensors(tensor) if (row := recorder.storages.row(inner)) is not None]
    for row in rows:
        row.category = category
    return rows
