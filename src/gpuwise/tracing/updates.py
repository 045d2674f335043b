"""Records the steps of optimizers over made-up parameters."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch.nn import Parameter

from gpuwise.runtime.build.optimizers import make_optimizer
from gpuwise.runtime.build.precision import make_scaler
from gpuwise.trace import OperationRow
from gpuwise.tracing import accelerator
from gpuwise.tracing.describe import updated_sizes
from gpuwise.tracing.environment import DEVICES, environment
from gpuwise.tracing.kernels.low_bit import inner_tensors, low_bit_updates
from gpuwise.tracing.operator_call import OperatorCall
from gpuwise.tracing.recorder import UPDATE_STEP, Recorder
from gpuwise.tracing.step import noticing_updates


@dataclass(frozen=True)
class UpdateOf:
    """An optimizer's update to record.

    Attributes:
        optimizer, kernels: as in Strategy.
        target: "accelerator" or "cpu".
        scaled: whether gradients are scaled for fp16. Default False.
        clipped: whether scaled gradients are clipped, and so unscaled before the optimizer's step. Default False.
    """

    optimizer: str
    kernels: str
    target: str
    scaled: bool = False
    clipped: bool = False


@dataclass(frozen=True)
class UpdateRecord:
    """A recorded update.

    Attributes:
        rows: its operations.
        updated: of each of them, if it is a kernel over many tensors, the elements of those that it updates.
        parts: where each part of the update begins and ends, by name.
        temporaries: bytes of each storage that it allocates and frees, the row that does, and the last at which it is alive.
        state: bytes of the optimizer's state on the device, of each parameter.
    """

    rows: tuple[OperationRow, ...]
    updated: tuple[tuple[int, ...], ...]
    parts: dict[str, tuple[int, int]]
    temporaries: tuple[tuple[int, int, int], ...]
    state: tuple[tuple[int, ...], ...]


class _UpdateRecorder(Recorder):
    """Knows which tensors a kernel over many of them updates."""

    def __init__(self, device_type: str) -> None:
        super().__init__(device_type)
        self.updated: dict[int, tuple[int, ...]] = {}

    def start(self) -> None:
        super().start()
        self.updated.clear()

    def _record(self, call: OperatorCall) -> None:
        before = len(self.rows)
        super()._record(call)
        if len(self.rows) > before and len(self.rows) - 1 in self.of_many:
            self.updated[len(self.rows) - 1] = tuple(updated_sizes(call))


def record_update(update: UpdateOf, parameters: Sequence[tuple[tuple[int, ...], str]]) -> UpdateRecord:
    """Records the second step of an optimizer over parameters of these shapes and dtypes, all of them hidden matrices for Muon;
    and what setting the gradients to zero takes."""
    problem = accelerator.problem()  # registers the virtual accelerator
    assert problem is None, problem
    device = DEVICES[update.target]
    with ExitStack() as stack:
        stack.enter_context(environment(update.target))
        recorder = _UpdateRecorder(device)
        stack.enter_context(recorder)
        stack.enter_context(noticing_updates(recorder))
        made_up = [Parameter(torch.zeros(shape, dtype=getattr(torch, dtype), device=device)) for shape, dtype in parameters]
        optimizer = make_optimizer(
            update.optimizer, made_up, 1e-3, kernels=update.kernels, hidden=made_up, scaled=update.scaled
        )
        stack.enter_context(low_bit_updates())
        scaler = make_scaler("amp-fp16" if update.scaled else "fp32", torch.device(device).type)
        recorder.micro_step = UPDATE_STEP
        for _ in range(2):
            for parameter in made_up:
                parameter.grad = torch.zeros_like(parameter)
            if update.scaled:
                scaler.scale(torch.zeros((), device=device))
            begins: list[int] = []
            ends: list[int] = []
            hooks = (
                optimizer.register_step_pre_hook(lambda *_, at=begins: at.append(len(recorder.rows))),
                optimizer.register_step_post_hook(lambda *_, at=ends: at.append(len(recorder.rows))),
            )
            recorder.start()
            if update.clipped:
                scaler.unscale_(optimizer)
                begins.append(len(recorder.rows))
            if update.scaled:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            stepped = len(recorder.rows)
            for hook in hooks:
                hook.remove()
        optimizer.zero_grad(set_to_none=False)
        recorder.paused = True
        parts = {"unscale": (0, begins[0]), "step": (begins[0], ends[0]), "rescale": (ends[0], stepped)}
        operations = list(recorder.operations)
        return UpdateRecord(
            rows=tuple(operations[row.operation] for row in recorder.rows),
            updated=tuple(recorder.updated.get(index, ()) for index in range(len(recorder.rows))),
            parts={**parts, "zero": (stepped, len(recorder.rows))},
            temporaries=tuple(
                (row.size_bytes, row.born, row.died)
                for row in recorder.storages.rows
                if row.born >= 0 and row.died is not None and row.size_bytes
            ),
            state=tuple(_state_bytes(recorder, optimizer.state[parameter]) for parameter in made_up),
        )


def _state_bytes(recorder: Recorder, state: dict[str, object]) -> tuple[int, ...]:
    tensors = [inner for value in state.values() if isinstance(value, torch.Tensor) for inner in inner_tensors(value)]
    rows = [recorder.storages.row(tensor) for tensor in tensors]
    return tuple(row.size_bytes for row in rows if row is not None)
