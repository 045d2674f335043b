"""The update of an optimizer's parameters, and its state, from what was recorded of each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from gpuwise.trace.update.rows import Parameter, UpdateRows, evaluate
from gpuwise.trace.update.template_file import updates
from gpuwise.trace.update.templates import form_of


def whole_update(
    optimizer: str,
    kernels: str,
    parameters: Sequence[Parameter],
    *,
    scaled: bool,
    keep_gradients: bool,
    clipped: bool = False,
    on_host: bool = False,
) -> UpdateRows:
    """The update of all parameters after backward.

    Arguments:
        scaled: whether gradients were scaled for fp16. They are then unscaled and checked first.
        keep_gradients: whether they are set to zero in the end.
        clipped: whether the step clips scaled gradients. Default False.

    Raises UnsupportedError for an update that is not recorded.
    """
    update = UpdateRows(on_host=on_host)
    if scaled:
        _write_part(update, "unscale", optimizer, kernels, parameters, scaled=True, clipped=clipped)
        update.unscaling = len(update.rows)
    write_update(update, optimizer, kernels, parameters, scaled=scaled, clipped=clipped)
    if scaled:
        _write_part(update, "rescale", optimizer, kernels, parameters, scaled=True, clipped=clipped)
    if keep_gradients:
        first = sorted(parameters, key=lambda p: not p.hidden) if optimizer == "muon" else parameters
        _write_part(update, "zero", optimizer, kernels, first)
    update.end()
    return update


def write_update(
    update: UpdateRows,
    optimizer: str,
    kernels: str,
    parameters: Sequence[Parameter],
    *,
    scaled: bool = False,
    clipped: bool = False,
) -> None:
    """Adds the optimizer's step over these parameters, which come in the model's order."""
    for name, its_kernels, its_own in _parts(optimizer, kernels, parameters):
        # A loss scaler steps Muon and its AdamW as one optimizer that knows nothing of scales.
        of_scaler = scaled and name == optimizer
        _write_part(update, "step", name, its_kernels, its_own, scaled=of_scaler, clipped=of_scaler and clipped)
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
    update: UpdateRows,
    part: str,
    optimizer: str,
    kernels: str,
    parameters: Sequence[Parameter],
    *,
    scaled: bool = False,
    clipped: bool = False,
) -> None:
    dtypes = [list(of_dtype) for _, of_dtype in groupby(parameters, key=lambda p: p.dtype)]
    recorded_of = {
        dtype: updates().update(optimizer, kernels, dtype, on_host=update.on_host, scaled=scaled, clipped=clipped, part=part)
        for dtype in {p.dtype for p in parameters}
    }
    together = any(recorded.together for recorded in recorded_of.values())
    if together:  # also those that are apart
        dtypes = [[p for p in parameters if p.dtype == dtype] for dtype in dict.fromkeys(p.dtype for p in parameters)]
    for group in dtypes:
        update.write(recorded_of[group[0].dtype], group)
