"""The update of each optimizer, tensor by tensor: its state, its operations, its temporaries.

Written down from the optimizers of PyTorch 2.13 (torch/optim/{sgd,adam}.py) and torchao 0.18 (torchao/optim/adam.py). A
test holds each against a recording of the optimizer itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuwise.trace.update.matrices import adafactor, adafactor_foreach, factors, muon
from gpuwise.trace.update.rows import Parameter, Temporary, UpdateRows, launches_of_many

# torchao/optim/adam.py: values a scale stands for, bytes of a code, values of the lookup table. Smaller tensors, and those
# that blocks do not divide, keep plain state.
LOW_BIT = {"adamw-8bit": (256, 1.0, 256), "adamw-4bit": (128, 0.5, 16)}
LOW_BIT_FROM = 4096


def state_bytes(optimizer: str, kernels: str, parameter: Parameter, *, on_host: bool = False) -> list[int]:
    """Bytes of each tensor of optimizer state that a parameter has on the device (counters are the host's, else 4)."""
    size, counter = parameter.size_bytes, [4] if on_host else []
    if optimizer == "sgd":
        return []
    if optimizer == "momentum" or (optimizer == "muon" and parameter.hidden):
        return [size]
    if optimizer in ("adam", "adamw", "muon"):
        on_device = optimizer == "muon" or kernels == "fused"  # a fused kernel reads the counter itself
        return [*([4] if on_device or on_host else []), size, size]
    if optimizer == "adafactor":
        return counter + ([*factors(parameter)] if len(parameter.shape) > 1 else [size])
    codes = _low_bit_state(optimizer, parameter)
    return counter + (codes or [size]) * 2


def _low_bit_state(optimizer: str, parameter: Parameter) -> list[int]:
    """Codes, scales and lookup table of one moment; empty where it is kept as it is."""
    block, code_bytes, values = LOW_BIT[optimizer]
    elements = parameter.elements
    if elements < LOW_BIT_FROM or elements % block:
        return []
    return [int(elements * code_bytes), elements // block * 4, values * 4]


def write_update(update: UpdateRows, optimizer: str, kernels: str, parameters: Sequence[Parameter]) -> None:
    """Writes down one step of an optimizer over these parameters, which come in the model's order."""
    if optimizer == "muon":
        matrices = [p for p in parameters if p.hidden]
        muon(update, matrices)
        update.end()
        others = [p for p in parameters if not p.hidden]
        if others:
            write_update(update, "adamw", "fused", others)
        return
    if optimizer in LOW_BIT:
        _low_bit(update, optimizer, parameters)
    elif kernels == "for-loop":
        loop: dict[str, Callable[[UpdateRows, Parameter], None]] = {
            "sgd": _sgd,
            "momentum": _momentum,
            "adam": _adam,
            "adamw": _adamw,
            "adafactor": adafactor,
        }
        for parameter in parameters:
            loop[optimizer](update, parameter)
    else:
        for group in _by_dtype(parameters):
            _MANY[optimizer, kernels](update, group)
    update.end()


def _by_dtype(parameters: Sequence[Parameter]) -> list[list[Parameter]]:
    groups: dict[str, list[Parameter]] = {}
    for parameter in parameters:
        groups.setdefault(parameter.dtype, []).append(parameter)
    return list(groups.values())


def _sgd(update: UpdateRows, p: Parameter) -> None:
    update.run("aten.add_.Tensor", p.dtype, 2 * p.size_bytes, p.size_bytes)


def _momentum(update: UpdateRows, p: Parameter) -> None:
    update.run("aten.mul_.Tensor", p.dtype, p.size_bytes, p.size_bytes)
    update.run("aten.add_.Tensor", p.dtype, 2 * p.size_bytes, p.size_bytes)
    update.run("aten.add_.Tensor", p.dtype, 2 * p.size_bytes, p.size_bytes)


def _adamw(update: UpdateRows, p: Parameter) -> None:
    if update.on_host:
        update.run("aten.add_.Tensor", "float32", 4, 4)
    update.run("aten.mul_.Tensor", p.dtype, p.size_bytes, p.size_bytes)
    _moments(update, p)


def _adam(update: UpdateRows, p: Parameter) -> None:
    if update.on_host:
        update.run("aten.add_.Tensor", "float32", 4, 4)
    _moments(update, p)


def _moments(update: UpdateRows, p: Parameter) -> None:
    size = p.size_bytes
    update.run("aten.lerp_.Scalar", p.dtype, 2 * size, size)
    update.run("aten.mul_.Tensor", p.dtype, size, size)
    update.run("aten.addcmul_.default", p.dtype, 2 * size, size)
    root = update.run("aten.sqrt.default", p.dtype, size, size, new=[size])
    denominator = update.run("aten.div.Tensor", p.dtype, size, size, new=[size])
    update.drop(root)
    update.run("aten.add_.Tensor", p.dtype, size, size)
    update.hold("denominator", denominator)
    update.run("aten.addcdiv_.default", p.dtype, 3 * size, size)


def _low_bit(update: UpdateRows, optimizer: str, parameters: Sequence[Parameter]) -> None:
    """torchao's update of each parameter, compiled into one kernel, and the buffers that Inductor's C++ backend adds."""
    for p in parameters:
        codes = _low_bit_state(optimizer, p)
        state = (codes or [p.size_bytes]) * 2
        kept: list[Temporary] = []
        if update.on_host:
            update.run("aten.add_.Tensor", "float32", 4, 4)
            for size in (4 * p.elements, codes[1]) * 2 if codes else ():
                kept += update.run("aten.empty_like.default", "float32", 0, 0, kind="copy", kernels=0, new=[size])
        counts = [p.elements, *([round(codes[0]), codes[1] // 4, codes[2] // 4] if codes else [p.elements]) * 2]
        update.run(
            "gpuwise._fused_low_bit_adamw_.default",
            p.dtype,
            2 * p.size_bytes + sum(state),
            p.size_bytes + sum(state),
            kind="optimizer",
            kernels=launches_of_many(counts),
        )
        update.drop(kept)


def _fused_sgd(update: UpdateRows, parameters: Sequence[Parameter]) -> None:
    update.many("aten._fused_sgd_.default", parameters, 2, 2)


def _fused_momentum(update: UpdateRows, parameters: Sequence[Parameter]) -> None:
    update.many("aten._fused_sgd_.default", parameters, 3, 3)


def _foreach_sgd(update: UpdateRows, parameters: Sequence[Parameter]) -> None:
    update.many("aten._foreach_add_.List", parameters, 2)


def _foreach_momentum(update: UpdateRows, parameters: Sequence[Parameter]) -> None:
    update.many("aten._foreach_mul_.Scalar", parameters, 1)
    update.many("aten._foreach_add_.List", parameters, 2)
    update.many("aten._foreach_add_.List", parameters, 2)


def _fused_adam(name: str) -> Callable[[UpdateRows, Sequence[Parameter]], None]:
    def write(update: UpdateRows, parameters: Sequence[Parameter]) -> None:
        counters = 4 * len(parameters)
        update.run(
            "aten._foreach_add_.Scalar",
            "float32",
            counters,
            counters,
            kind="optimizer",
            kernels=launches_of_many([1] * len(parameters)),
        )
        update.many(f"aten.{name}.default", parameters, 4, 4, more_read=counters)

    return write


def _foreach_adam(decoupled: bool) -> Callable[[UpdateRows, Sequence[Parameter]], None]:
    def write(update: UpdateRows, parameters: Sequence[Parameter]) -> None:
        if update.on_host:
            update.run("aten._foreach_add_.Tensor", "float32", 4 * len(parameters), 4 * len(parameters), kind="optimizer")
        if decoupled:
            update.many("aten._foreach_mul_.Scalar", parameters, 1)
        update.many("aten._foreach_lerp_.Scalar", parameters, 2)
        update.many("aten._foreach_mul_.Scalar", parameters, 1)
        update.many("aten._foreach_addcmul_.Scalar", parameters, 2)
        update.hold("root", update.many("aten._foreach_sqrt.default", parameters, 1, new=True))
        update.many("aten._foreach_div_.ScalarList", parameters, 1)
        update.many("aten._foreach_add_.Scalar", parameters, 1)
        update.many("aten._foreach_addcdiv_.ScalarList", parameters, 3)

    return write


_MANY: dict[tuple[str, str], Callable[[UpdateRows, Sequence[Parameter]], None]] = {
    ("sgd", "fused"): _fused_sgd,
    ("sgd", "foreach"): _foreach_sgd,
    ("momentum", "fused"): _fused_momentum,
    ("momentum", "foreach"): _foreach_momentum,
    ("adam", "fused"): _fused_adam("_fused_adam_"),
    ("adam", "foreach"): _foreach_adam(decoupled=False),
    ("adamw", "fused"): _fused_adam("_fused_adamw_"),
    ("adamw", "foreach"): _foreach_adam(decoupled=True),
    ("adafactor", "foreach"): adafactor_foreach,
}
