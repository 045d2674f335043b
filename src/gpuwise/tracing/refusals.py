"""The errors of a job that cannot be recorded: the cause, what to write instead, and the line of the user's code."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import takewhile
from types import TracebackType

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from gpuwise.errors import GpuwiseError, JobError, StepFailedError
from gpuwise.job.argument_checks import moves_itself
from gpuwise.tracing.describe import device_type

# What is called from these is the user's.
_ENTRIES = tuple(os.path.join(os.path.dirname(__file__), name) for name in ("record.py", "step.py"))
_STATIC = {
    "nonzero": "give the most there can be: torch.nonzero_static(mask, size=N)",
    "index": "keep the shape: torch.where(mask, x, 0), or x * mask, instead of x[mask]",
    "masked_select": "keep the shape: torch.where(mask, x, 0), or x * mask",
    "repeat_interleave": "give the length of the result: repeat_interleave(..., output_size=N)",
    "bincount": "count into a known number of bins: x.new_zeros(N).scatter_add_(0, index, ones)",
}
_ANY_STATIC = "use an operation whose result has a known size, or pad to the most there can be"


def dynamic_shape(op: OpOverload) -> JobError:
    """The error for an operator whose result has as many elements as the data decide."""
    way = _STATIC.get(op._overloadpacket.__name__, _ANY_STATIC)
    return JobError(f"{op} gives a result whose shape depends on the data, so its memory cannot be forecast.", [way])


def no_shape_rule(operator: str) -> JobError:
    """The error for an operator without a shape rule. operator: namespace::name or namespace.name."""
    what = f"{operator} has no shape rule for fake tensors, so the model cannot be traced."
    namespace, name, *_ = re.split(r"::|\.", operator)
    if name == "empty_strided":  # what a compiled graph allocates with
        return _compiles_itself()
    if namespace in ("aten", "prims"):
        return JobError(what, ["leave it out, or write it with other operators"])
    packet = getattr(getattr(torch.ops, namespace), name, None)
    overload = getattr(packet, "default", None)
    arguments = ", ".join(argument.name for argument in overload._schema.arguments) if overload else "..."
    rule = f'@torch.library.register_fake("{namespace}::{name}") before def _({arguments}): return x.new_empty(...)'
    return JobError(what, [f"say the shape of its result: {rule}", "replace the operator"])


def _compiles_itself() -> JobError:
    return JobError(
        "the job compiles its model itself, and a compiled graph does not run on fake tensors.",
        ["leave torch.compile out of model and loss: --compile forecasts and runs it"],
    )


def refuse_compiled_parts(model: nn.Module) -> None:
    """Raises JobError for a model with parts that torch.compile wrapped, or whose forward it replaced."""
    for module in model.modules():
        if module._compiled_call_impl is not None or hasattr(module.forward, "_torchdynamo_orig_callable"):
            raise _compiles_itself()


_SPARSE = {torch.ops.aten.embedding.default: 4, torch.ops.aten._embedding_bag.default: 5}  # position of `sparse`


def refuse_sparse_gradients(op: OpOverload, args: Sequence[object]) -> None:
    """Raises JobError where an embedding asks for a sparse gradient, whose size depends on the data: PyTorch cannot make one
    of fake tensors."""
    position = _SPARSE.get(op)
    table = args[0] if position is not None and len(args) > position and args[position] else None
    if isinstance(table, Tensor) and table.requires_grad:
        raise JobError(
            "an embedding with sparse=True gives a gradient whose size depends on the data, so its memory cannot be forecast.",
            ["sparse=False: the forecast is then of dense gradients, which are as large as the table"],
        )


def asks_for_cuda() -> JobError:
    return JobError(
        "the job asks for a CUDA device itself, but a forecast runs on a virtual device.",
        [
            "make tensors where an input is: x.new_zeros(...), device=x.device; constants: register_buffer",
            'leave .cuda() and device="cuda" out of model, batch and loss: gpuwise moves them',
        ],
    )


def refuse_cuda(results: object) -> None:
    """Raises JobError where the job made a tensor on a CUDA device, which fake tensors of a CUDA build allow."""
    if any(isinstance(t, Tensor) and device_type(t) == "cuda" for t in tree_leaves(results)):
        raise asks_for_cuda()


def _foreign_kernel(kind: str) -> JobError:
    return JobError(
        f"the job calls {kind}, which needs real memory; a forecast has none.",
        [
            'wrap the call: @torch.library.custom_op("mylib::my_op", mutates_args=()), then '
            "@my_op.register_fake on a function that returns an empty tensor of the same shape",
            "forecast with a PyTorch implementation of the same operation",
        ],
    )


def _numpy() -> JobError:
    return JobError(
        "the job turns a tensor into a NumPy array, whose values a forecast does not have.",
        ["write it with PyTorch's operations", "do it outside of model and loss, where data are made"],
    )


def _mixed_devices() -> JobError:
    return JobError(
        "a tensor on the CPU meets one on the device.",
        [
            "leave .to(device) out of model, batch and loss: gpuwise moves them",
            "make it where an input is: x.new_zeros(...), device=x.device; constants: register_buffer",
        ],
    )


def _needs_values() -> JobError:
    return JobError(
        "the model reads values of tensors while it is built; a forecast builds it without any.",
        ['make those tensors on the CPU: torch.linspace(..., device="cpu")', "compute such numbers with Python or NumPy"],
    )


def _too_large() -> JobError:
    return JobError(
        "a step of the job counts more bytes or operations than 64 bits hold.",
        ["check the sizes of its layers and of its example batch"],
    )


# What PyTorch and extensions say, first match counts; a group is the operator's name.
_MESSAGES: list[tuple[str, Callable[..., JobError]]] = [
    (r"no fake impl registered for <CustomOpDef\(([\w.]+::\w+)\)>", no_shape_rule),
    (r"Could not run '([\w.]+::\w+)", no_shape_rule),
    (r"NYI: ([\w.]+)", no_shape_rule),
    (r"cannot be called on meta tensors", _needs_values),
    (r"Cannot copy out of meta tensor", moves_itself),
    (
        r"Cannot access data pointer|__cuda_array_interface__|active drivers",
        lambda: _foreign_kernel("a kernel from outside PyTorch (a compiled extension, Triton)"),
    ),
    (
        r"(?i)(?:must be|expected|is not|not) an? (?:cuda|gpu) tensor|must be on (?:cuda|a gpu)",
        lambda: _foreign_kernel("a kernel of a CUDA extension"),
    ),
    (
        r"not compiled with CUDA|not linked with support for cuda|requires CUDA|NVIDIA driver|torch\.cuda\.\w+ not available",
        asks_for_cuda,
    ),
    (
        r"Python int too large to convert to C|Storage size calculation overflowed|numel: integer multiplication overflow",
        _too_large,
    ),
    (
        r"FlexAttention is only supported",
        partial(
            JobError,
            "the job calls FlexAttention, which has no kernel on a virtual device.",
            ["F.scaled_dot_product_attention with is_causal or attn_mask computes the same", "--on here follows it on a CPU"],
        ),
    ),
    (
        r"self\.shape_env must not be None",
        partial(
            JobError,
            "the job makes nested tensors, whose sizes depend on the data.",
            ["pad to the longest, with a mask", "pack sequences, and call flash-attn's or PyTorch's varlen_attn"],
        ),
    ),
    (
        r"does not currently support double backward",
        partial(
            JobError,
            "the job differentiates a backward pass, which torch.compile cannot compile.",
            ["leave --compile out"],
        ),
    ),
    (r"(?:at least two|two different) devices.* cuda", asks_for_cuda),
    (r"(?:at least two|two different) devices.* cpu", _mixed_devices),
    (r"\.numpy\(\) is not supported|device type tensor to numpy", _numpy),
]


def explained(error: Exception, name: str) -> GpuwiseError:
    """The error to raise for an error of building or running a job: in gpuwise's words where the cause is known, else in
    its own, each with the location in the user's code where there is one.

    Arguments:
        name: the job's.
    """
    if isinstance(error, GpuwiseError) and not isinstance(error, JobError):
        return error
    cause = error.__cause__ if isinstance(error, JobError) and isinstance(error.__cause__, Exception) else error
    explanation = error if isinstance(error, JobError) else None
    if not isinstance(cause, GpuwiseError):
        explanation = _known_cause(cause) or explanation
    location = location_of(cause.__traceback__)
    at = f" (at {location})" if location else ""
    if explanation is None:
        problem = f"{type(error).__name__}: {_first_line(error)}{at}."
        return StepFailedError(
            f"a step of {name or 'the job'} fails: {problem}",
            ["run the loss on one example batch yourself to see the full trace"],
            problem=problem,
        )
    return JobError(f"{explanation.what.removesuffix('.')}{at}.", explanation.ways_out) if at else explanation


def location_of(trace: TracebackType | None) -> str:
    """file:line of the deepest call in the user's own code, else in a library's model; "" where there is none."""
    return _users_location([(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(trace)])


def location_of_caller() -> str:
    """As `location_of`, of the code that runs now inside a recording."""
    return _users_location(_calls_of_job()[::-1])


def called_by_job() -> bool:
    """Whether it is the job's code (its model's, its libraries') that calls PyTorch now, and not gpuwise's."""
    passing = (os.path.dirname(torch.__file__), os.path.dirname(__file__), "<")
    caller = next((path for path, _ in _calls_of_job() if not path.startswith(passing)), _ENTRIES[0])
    return not caller.startswith(os.path.dirname(os.path.dirname(__file__)))


def _calls_of_job() -> list[tuple[str, int]]:
    """File and line of every call since the recording began, the last call first."""
    calls = traceback.walk_stack(sys._getframe())
    locations = ((frame.f_code.co_filename, line) for frame, line in calls)
    return list(takewhile(lambda location: location[0] not in _ENTRIES, locations))


def _users_location(calls: list[tuple[str, int]]) -> str:
    outside = [call for call in calls if not call[0].startswith(("<", *_not_the_users()))]
    own = [call for call in outside if "site-packages" not in call[0]]
    if not outside:
        return ""
    path, line = (own or outside)[-1]
    if not own:
        return f"{path.rpartition(f'site-packages{os.sep}')[2]}:{line}"
    with suppress(OSError, ValueError):  # the current folder is gone, or on another drive
        path = min(path, os.path.relpath(path), key=len)
    return f"{path}:{line}"


@cache
def _not_the_users() -> tuple[str, ...]:
    """Folders of PyTorch, gpuwise and Python's own library. The standard library may hold site-packages: not those."""
    standard = sysconfig.get_path("stdlib")
    inside = [os.path.join(standard, name) for name in os.listdir(standard) if name != "site-packages"]
    return (os.path.dirname(torch.__file__), os.path.dirname(os.path.dirname(__file__)), *inside)


def _known_cause(error: BaseException) -> JobError | None:
    text = str(error)
    for pattern, make in _MESSAGES:
        match = re.search(pattern, text)
        if match:
            return make(*match.groups())
    return None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["(no message)"])[0].rstrip(".")
