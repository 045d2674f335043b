"""One tensor as a file of plain tensors can hold it, and back: its memory layout, its dtype, and what is made of several."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TypedDict

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass as is_wrapped

from gpuwise.errors import UnsupportedError
from gpuwise.job.dependencies import require

# The dtypes every version of safetensors has; what is of another is written as its bytes.
NATIVE = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}

# The tensors made of several that are known: the state of torchao's 8- and 4-bit optimizers. A file names one of these
# and nothing else: what it says is never imported.
_WRAPPED = {
    "OptimState8bit": "torchao.optim.subclass_8bit",
    "OptimState4bit": "torchao.optim.subclass_4bit",
    "OptimStateFp8": "torchao.optim.subclass_fp8",
}

__all__ = [
    "NATIVE",
    "Layout",
    "bytes_of",
    "dense_order",
    "from_file",
    "is_wrapped",
    "pack_shard",
    "pack_tensor",
    "unwrapped",
    "wrapped",
]


class Layout(TypedDict, total=False):
    """What the file of a tensor does not say of it.

    order: of its dims in memory, where that is not theirs.
    dtype, shape: of one that is written as bytes.
    """

    order: list[int]
    dtype: str
    shape: list[int]


def pack_tensor(tensor: Tensor, name: str) -> tuple[Tensor, Layout]:
    """The tensor to write, with the same memory wherever that is possible, and what `from_file` must know to make it again.

    Raises UnsupportedError for a tensor without plain memory; `name` is its name for people.
    """
    if tensor.layout != torch.strided or tensor.device.type == "meta" or tensor.is_quantized:
        kind = "has no values (meta)" if tensor.device.type == "meta" else "is sparse, nested or quantized"
        raise UnsupportedError(f"{name} {kind}, which a checkpoint cannot hold.", ["keep a dense tensor in the state"])
    tensor = tensor.detach().as_subclass(Tensor).resolve_conj().resolve_neg()
    order = dense_order(tensor)
    how: Layout = {} if order is None else {"order": order}
    if tensor.dtype not in NATIVE:
        in_memory_order = tensor if order is None else tensor.permute(order)
        how |= {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(in_memory_order.shape)}
        tensor = _flat_bytes(in_memory_order)
    return tensor, how


def pack_shard(local: Tensor, name: str) -> Tensor:
    """A rank's part of a tensor, as it is to be written.

    Raises UnsupportedError for a tensor without plain memory, or of a dtype that files hold as bytes alone.
    """
    if is_wrapped(local) or local.dtype not in NATIVE:
        kind = type(local).__name__ if is_wrapped(local) else str(local.dtype).removeprefix("torch.")
        raise UnsupportedError(
            f"{name} is split among ranks in parts of {kind}, which a checkpoint cannot hold.",
            ["--optimizer adamw", "a mesh that does not split it: dp=N"],
        )
    return pack_tensor(local, name)[0]


def from_file(tensor: Tensor, how: Layout, dtypes: Mapping[str, torch.dtype]) -> Tensor:
    """The tensor that `pack_tensor` was given, in memory of its own."""
    order = how.get("order")
    if "dtype" in how:
        tensor = tensor.clone().view(dtypes[how["dtype"]]).reshape(how["shape"])
    else:
        tensor = (tensor if order is None else tensor.permute(order)).clone(memory_format=torch.contiguous_format)
    return tensor if order is None else tensor.permute(sorted(range(len(order)), key=order.__getitem__))


def dense_order(tensor: Tensor) -> list[int] | None:
    """The dims from outermost to innermost in memory, where that is another order than theirs (channels last, a transposed
    matrix); None for contiguous tensors and for those with gaps or overlaps, which become contiguous."""
    if tensor.is_contiguous():
        return None
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    return order if tensor.permute(order).is_contiguous() else None


def bytes_of(tensor: Tensor) -> memoryview:
    """The values in the order of the dims, on the host; not copied where they lie so already."""
    return _flat_bytes(tensor.to("cpu")).numpy().data


def _flat_bytes(tensor: Tensor) -> Tensor:
    """Of a single element reshape would keep the stride, which `view` asks to be 1."""
    return tensor.contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def unwrapped(tensor: Tensor, name: str) -> tuple[str, dict[str, Tensor], object]:
    """A tensor made of several: its kind, its tensors by name, what else it is made with.

    Raises UnsupportedError for a kind that is not known.
    """
    kind, source = type(tensor).__name__, type(tensor).__module__
    if _WRAPPED.get(kind) != source:
        raise UnsupportedError(
            f"{name} is a {source}.{kind}, a kind of tensor that a checkpoint cannot hold.",
            ["--optimizer adamw", "leave it out of the state"],
        )
    names, attributes = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    return kind, {name: getattr(tensor, name) for name in names}, attributes


def wrapped(kind: str, tensors: dict[str, Tensor], attributes: object) -> Tensor:
    """Puts together what `unwrapped` took apart. Raises MissingDependencyError without torchao."""
    source = _WRAPPED[kind]
    require("torchao", purpose="load the state of 8- and 4-bit optimizers")
    tensor: Tensor = getattr(import_module(source), kind).__tensor_unflatten__(tensors, attributes)
    return tensor
