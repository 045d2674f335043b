"""The update of an optimizer's parameters, and its state, from what was recorded of each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from gpuwise.trace.update.rows import Parameter, UpdateRows, evaluate
from gpuwise.trace.update.template_file import updates
from gpuwise.trace.update.templates import form_of


def whole_update(
    optimizer: str, kernels: str, parameters: Sequence[Parameter], *, scaled: bool, keep_gradients: bool, on_host: bool = False
) -> UpdateRows:
    """The update of all parameters after backward.

    Arguments:
        scaled: whether gradients were scaled for fp16. They are then unscaled and checked first.
        keep_gradients: whether they are set to zero in the end.

    Raises UnsupportedError for an update that is not recorded.
    """
    update = UpdateRows(on_host=on_host)
    if scaled:
        _write_part(update, "unscale", optimizer, kernels, parameters, scaled=True)
    write_update(update, optimizer, kernels, parameters, scaled=scaled)
    if scaled:
        _write_part(update, "rescale", optimizer, kernels, parameters, scaled=True)
    if keep_gradients:
        first = sorted(parameters, key=lambda p: not p.hidden) if optimizer == "muon" else parameters
        _write_part(update, "zero", optimizer, kernels, first)
    update.end()
    return update


def write_update(
    update: UpdateRows, optimizer: str, kernels: str, parameters: Sequence[Parameter], *, scaled: bool = False
) -> None:
    """Adds the optimizer's step over these parameters, which come in the model's order."""
    for name, its_kernels, its_own in _parts(optimizer, kernels, parameters):
        # A loss scaler steps Muon and its AdamW as one optimizer that knows nothing of scales.
        _write_part(update, "step", name, its_kernels, its_own, scaled=scaled and name == optimizer)
        update.end()


def state_bytes(optimizer: str, kernels: str, parameter: Parameter, *, on_host: bool = False) -> list[int]:
    """Bytes of each tensor of optimizer state that a parameter has on the device."""
    ((name, its_kernels, _),) = _parts(optimizer, kernels, [parameter])
    recorded = updates().update(name, its_kernels, parameter.dtype, on_host=on_host)
    form = form_of(recorded.forms, parameter.shape)
    return list(evaluate(recorded.forms[form], form, parameter.shape).state)


def _parts(optimizer: str, kernels: str, parameters: Sequence[Parameter]) -> list[tuple[str, str, list[Parameter]]]:
    """The optimizers that step one after the other, each with its kernels and parameters: of Muon, an AdamW for what are no
    hidden matrices."""
    if optimizer != "muon":
        return [(optimizer, kernels, list(parameters))]
    parts = [
        ("muon", kernels, [p for p in parameters if p.hidden]),
        ("adamw", "fused", [p for p in parameters if not p.hidden]),
    ]
    return [part for part in parts if part[2]]


def _write_part(
    update: UpdateRows, part: str, optimizer: str, kernels: str, parameters: Sequence[Parameter], *, scaled: bool = False
) -> None:
    dtypes = [list(of_dtype) for _, of_dtype in groupby(parameters, key=lambda p: p.dtype)]
    together = any(
        updates().update(optimizer, kernels, p[0].dtype, on_host=update.on_host, scaled=scaled, part=part).together
        for p in dtypes
    )
    if together:  # also those that are apart
        dtypes = [[p for p in parameters if p.dtype == dtype] for dtype in dict.fromkeys(p.dtype for p in parameters)]
    for group in dtypes:
        recorded = updates().update(optimizer, kernels, group[0].dtype, on_host=update.on_host, scaled=scaled, part=part)
        update.write(recorded, group)
