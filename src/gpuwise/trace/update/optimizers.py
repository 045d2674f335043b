"""with_optimizer: a recorded step with another optimizer, or with its state elsewhere, without recording again.

Gradients are what backward leaves, whatever the optimizer: so the optimizer's part of a step follows from the
gradients' sizes and shapes. Everything here is of the parameters and does not depend on the batch: in a family it is the
constant term.
"""

from __future__ import annotations

from math import prod
from typing import TypeVar

from gpuwise.errors import InputError, UnsupportedError
from gpuwise.strategy import StepFacts, Strategy, check_techniques, kernels_of, nothing_for_muon
from gpuwise.trace.family import TraceFamily
from gpuwise.trace.parallel.variant import is_split
from gpuwise.trace.tables import BEFORE
from gpuwise.trace.trace import Trace
from gpuwise.trace.update.edit import END, Edit
from gpuwise.trace.update.rows import Parameter, UpdateRows
from gpuwise.trace.update.whole import state_bytes, whole_update, write_update

ADD = "aten.add_.Tensor"

Recorded = TypeVar("Recorded", bound=Trace | TraceFamily)


def with_optimizer(
    trace: Recorded,
    optimizer: str,
    kernels: str | None = None,
    *,
    in_backward: bool = False,
    offload: str = "none",
    keep_gradients: bool = False,
    on_cpu: bool | None = None,
) -> Recorded:
    """The same step under another optimizer, its kernels, and where gradients and state live.

    Arguments:
        trace: recorded in mode train with gradients freed after the step, with any optimizer: on one device, or one rank
            of several, of which only optimizer and kernels can be others.
        optimizer, kernels, in_backward, offload, keep_gradients: as in Strategy.
        on_cpu: the device that is forecast is a CPU; None: as the recording's.

    Raises InputError for techniques that exclude each other or kernels the optimizer lacks, UnsupportedError for what
    must be recorded: offloaded parameters, kept gradients of a rank, updates in which ranks talk to each other, and what a
    file of an older version does not say.
    """
    recorded = trace.header.strategy
    requested = recorded.but(
        optimizer=optimizer,
        optimizer_kernels=kernels,
        optimizer_in_backward=in_backward,
        offload=offload,
        keep_gradients=keep_gradients,
    )
    _check(trace, requested)
    edit = Edit(trace)
    parameters = parameters_of(trace, edit, needs_shapes=optimizer in ("adafactor", "muon"))
    if optimizer == "muon" and recorded.mesh.pp == 1 and not any(p.hidden for p in parameters):
        raise nothing_for_muon(trace.header.job)
    on_host = trace.header.target == "cpu"
    if is_split(recorded) and optimizer in ("sgd", "momentum"):
        kernels = kernels or "foreach"  # aten._fused_sgd_ has no sharding strategy (PyTorch 2.13)
    kernels = kernels_of(
        optimizer,
        kernels,
        on_cpu=(on_host if on_cpu is None else on_cpu) or offload != "none",
        in_16_bits=any(p.element_bytes == 2 for p in parameters),
        scaled=recorded.precision == "amp-fp16",
    )
    if offload == "optimizer":
        _offload(edit, parameters)
    elif in_backward:
        _in_backward(edit, parameters, optimizer, kernels, on_host=on_host)
    else:
        update = whole_update(
            optimizer,
            kernels,
            parameters,
            scaled=recorded.precision == "amp-fp16",
            keep_gradients=keep_gradients,
            clipped=edit.clips_scaled,
            on_host=on_host,
        )
        if keep_gradients:
            _keep_gradients(edit, parameters)
        edit.insert_update(update)
    if offload == "none":
        for parameter, module in zip(parameters, edit.modules_of_parameters, strict=True):
            for size in state_bytes(optimizer, kernels, parameter, on_host=on_host):
                edit.add(size, "optimizer_state", module, BEFORE, END)
    # Offload makes a gradient a micro-batch: the shapes are no longer one for each.
    return edit.result(requested, gradient_shapes=() if offload == "optimizer" else trace.header.gradient_shapes)


def _check(trace: Trace | TraceFamily, requested: Strategy) -> None:
    recorded, target = trace.header.strategy, trace.header.target
    plain = recorded.mode == "train" and recorded.offload == "none"
    if not plain or recorded.optimizer_in_backward or recorded.keep_gradients:
        raise InputError(
            "an optimizer can be exchanged only in a plain training step.",
            ["start from a recording without offload, updates in backward or kept gradients"],
        )
    if recorded.mesh.devices > 1:
        _check_rank(trace, requested)
    if requested.offload == "parameters":
        raise UnsupportedError(
            "parameters that visit the device must be recorded; they cannot be composed.",
            ['record them with PyTorch: pip install "gpuwise[torch]"'],
        )
    check_techniques(requested, StepFacts(on_cpu=target == "cpu"))


def _check_rank(trace: Trace | TraceFamily, requested: Strategy) -> None:
    if not trace.header.updated or requested.mesh.ep > 1:
        raise UnsupportedError("this recording of a rank does not say what its optimizer updates.", ["record it again"])
    if requested.keep_gradients:
        raise UnsupportedError("gradients of several ranks that are kept must be recorded.", ["leave out --keep-gradients"])


def parameters_of(trace: Recorded, edit: Edit[Recorded], *, needs_shapes: bool = False) -> list[Parameter]:
    """The trainable parameters, in the model's order."""
    header, sizes = trace.header, edit.sizes_of_gradients
    blocks = tuple(f"{path}." for path in header.blocks)
    paths = [f"{trace.modules[module]}." for module in edit.modules_of_parameters]
    if header.updated:
        return [
            Parameter(part.shape, part.element_bytes, hidden=len(part.shape) == 2 and path.startswith(blocks))
            for part, path in zip(header.updated, paths, strict=True)
        ]
    shapes = list(header.gradient_shapes)
    if len(shapes) != len(sizes) or not all(prod(shape) for shape in shapes):
        if needs_shapes:
            raise UnsupportedError("this recording does not say the shapes of the parameters.", ["record it again"])
        element_bytes = 2 if header.strategy.precision == "bf16" else 4
        shapes = [(size // element_bytes,) for size in sizes]
    return [
        Parameter(shape, size // prod(shape), hidden=len(shape) == 2 and path.startswith(blocks))
        for shape, size, path in zip(shapes, sizes, paths, strict=True)
    ]


def _in_backward(edit: Edit[Recorded], parameters: list[Parameter], optimizer: str, kernels: str, *, on_host: bool) -> None:
    """Each parameter is updated where backward has its gradient, which is then freed. One micro-batch is left."""
    arrivals = edit.arrivals()
    edit.drop_second_micro_batch()
    for arrival in arrivals:
        update = UpdateRows(on_host=on_host)
        write_update(update, optimizer, kernels, [parameters[arrival.gradient]])
        last = edit.insert(arrival.position, update.rows, update.temporaries, phase="optimizer", micro_step=2)
        edit.end_gradient(arrival.gradient, last)


def _offload(edit: Edit[Recorded], parameters: list[Parameter]) -> None:
    """Each gradient is sent to the host where backward has it; the host steps, and sends the parameters back."""
    for arrival in edit.arrivals():
        send = _copy([parameters[arrival.gradient]])
        edit.end_gradient(arrival.gradient, edit.insert(arrival.position, send.rows, [], phase="backward", micro_step=0))
        if arrival.again is not None and arrival.added_at is not None:
            edit.drop(arrival.added_at)  # the host adds
            edit.set_category(arrival.again, "gradient")
    edit.insert(END, _copy(parameters).rows, [], phase="optimizer", micro_step=2)


def _copy(parameters: list[Parameter]) -> UpdateRows:
    update = UpdateRows()
    for parameter in parameters:
        update.add("aten.copy_.default", parameter, 2, kind="copy")
    return update


def _keep_gradients(edit: Edit[Recorded], parameters: list[Parameter]) -> None:
    """Gradients that stay: the first micro-batch adds to them, too."""
    for index, position, *_ in edit.arrivals():
        parameter, add = parameters[index], UpdateRows()
        add.add(ADD, parameter, 2)
        edit.end_gradient(index, edit.insert(position, add.rows, [], phase="backward", micro_step=0))
        edit.set_category(edit.gradients[index], "temporary")
    for parameter, module in zip(parameters, edit.modules_of_parameters, strict=True):
        edit.add(parameter.size_bytes, "gradient", module, BEFORE, END)
