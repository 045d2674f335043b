"""Adapters and 4-bit layers for steps that are only recorded, where peft or bitsandbytes is not installed.

They run the same operations and hold tensors of the same shapes as the packages' layers: LoRA as in peft 0.21
(tuners/lora/layer.py and bnb.py), 4-bit layers as in bitsandbytes 0.50 (autograd/_functions.py, functional.py). A test
compares the recordings with those of the packages.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

BLOCK, BLOCKS_A_SCALE = 64, 256  # weights per scale, and scales per second-level scale
_libraries: list[torch.library.Library] = []  # keeps the libraries alive, and with them their definitions


_recording: ContextVar[bool] = ContextVar("recording", default=False)


@contextmanager
def only_recorded() -> Iterator[None]:
    """A context in which steps are built only to be recorded, so a missing package raises no error."""
    token = _recording.set(True)
    try:
        yield
    finally:
        _recording.reset(token)


def is_only_recorded() -> bool:
    return _recording.get()


def with_low_rank(model: nn.Module, names: list[str], rank: int, scaling: float) -> nn.Module:
    """Freezes the model and adds a trainable product of two thin matrices to each of these layers."""
    model.requires_grad_(False)
    for name in names:
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, LowRank(model.get_submodule(name), rank, scaling))
    return model


@dataclass
class Scales:
    """The quantized scales of a packed weight: one byte each, with a second-level scale per 256 of them."""

    absmax: Tensor
    code: Tensor


@dataclass
class QuantState:
    """The quantization state of a packed weight, with the attribute names of bitsandbytes.

    Attributes:
        shape: shape of the unpacked weight.
        dtype: dtype of the unpacked weight.
        code: the values of the 16 four-bit codes.
        nested: whether the scales are quantized.
        absmax: scales, one per 64 weights; bytes if quantized.
        offset: offset of the quantized scales.
        state2: second-level scales of the quantized scales.
    """

    shape: torch.Size
    dtype: torch.dtype
    code: Tensor
    nested: bool
    absmax: Tensor
    offset: Tensor | None = None
    state2: Scales | None = None


class LinearLayer(Protocol):
    """The attributes that an adapter needs from its base layer."""

    in_features: int
    out_features: int
    weight: Tensor


class LowRank(nn.Module):
    """A linear layer with an adapter, with peft's names for its parts."""

    def __init__(self, base_layer: nn.Module, rank: int, scaling: float):
        super().__init__()
        self.base_layer, self.scaling = base_layer, scaling
        layer = cast(LinearLayer, base_layer)
        inside, outside, like = layer.in_features, layer.out_features, layer.weight
        dtype = like.dtype if like.dtype.is_floating_point else torch.float32
        self.lora_dropout = nn.ModuleDict({"default": nn.Identity()})
        self.lora_A = nn.ModuleDict({"default": nn.Linear(inside, rank, bias=False, device=like.device, dtype=dtype)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, outside, bias=False, device=like.device, dtype=dtype)})

    def forward(self, x: Tensor) -> Tensor:
        result = self.base_layer(x)
        dtype, four_bits = result.dtype, isinstance(self.base_layer, Linear4Bit)
        if four_bits:
            result = result.clone()
        converts = not (four_bits and torch.is_autocast_enabled())
        if converts:
            x = x.to(next(self.lora_A.parameters()).dtype)
        added = self.lora_B["default"](self.lora_A["default"](self.lora_dropout["default"](x))) * self.scaling
        if not four_bits:
            return (result + added).to(dtype)
        return result + (added.to(dtype) if converts else added)


class Linear4Bit(nn.Module):
    """A linear layer whose weight is packed by `pack` on the move to its device."""

    def __init__(self, old: nn.Linear, compute: torch.dtype, *, double_quantized: bool):
        super().__init__()
        self.in_features, self.out_features, self.compute_dtype = old.in_features, old.out_features, compute
        weight: Any = nn.Parameter(old.weight.detach().to(compute), requires_grad=False)
        weight.bnb_quantized, weight.module, weight.compress_statistics = False, RecordedModule(self), double_quantized
        self.weight = weight
        self.bias = old.bias
        self.quant_state: QuantState | None = None

    def forward(self, x: Tensor) -> Tensor:
        dtype, bias = x.dtype, None if self.bias is None else self.bias.to(self.compute_dtype)
        x = x.to(self.compute_dtype)
        product: Tensor = _Product.apply(x, self.weight, bias, self.quant_state)
        return product.to(dtype)


class RecordedModule:
    """A reference from a parameter to a module that does not make the module part of it."""

    _module: Linear4Bit

    def __init__(self, module: Linear4Bit):
        object.__setattr__(self, "_module", module)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._module, name, value)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, state: QuantState) -> Tensor:
        ctx.state, ctx.weight = state, weight.view(-1, 1)
        scales = scales_of(state, in_place=False)  # bitsandbytes holds them until the product is done
        return nn.functional.linear(x, unpacked(ctx.weight, scales, state, x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, Tensor | None, None]:
        gradient = gradients[0]
        needs_input, _, wants_bias, _ = ctx.needs_input_grad
        bias = gradient.sum(0) if wants_bias else None
        if not needs_input:
            return None, None, bias, None
        weight = unpacked(ctx.weight, scales_of(ctx.state, in_place=True), ctx.state, ctx.state.dtype)
        return torch.matmul(gradient, weight.to(gradient.dtype)), None, bias, None


def scales_of(state: QuantState, *, in_place: bool) -> Tensor:
    """The scales of a packed weight in fp32, dequantized if necessary."""
    scales: Tensor = state.absmax
    if not state.nested:
        return scales
    assert state.state2 is not None
    assert state.offset is not None
    scales = torch.ops.bitsandbytes.dequantize_blockwise(
        scales, state.state2.absmax, state.state2.code, BLOCKS_A_SCALE, torch.float32
    )
    return scales.add_(state.offset) if in_place else scales + state.offset


def unpacked(weight: Tensor, scales: Tensor, state: QuantState, dtype: torch.dtype) -> Tensor:
    values: Tensor = torch.ops.bitsandbytes.dequantize_4bit(weight, scales, BLOCK, "nf4", list(state.shape), dtype)
    return values


def pack(weight: Any, device: torch.device) -> nn.Parameter:
    """Packs a weight, two values per byte, with one scale per 64 weights and one second-level scale per 256 scales.

    Memory is allocated and freed in the order of `quantize_4bit` in functional.py of bitsandbytes.
    """
    define_operators()
    blocks = -(-weight.numel() // BLOCK)

    def empty(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(size, dtype=dtype, device=device)

    nested = bool(weight.compress_statistics)
    values = empty(*weight.shape, dtype=weight.dtype)
    parameter: Any = nn.Parameter(empty(-(-weight.numel() // 2), 1, dtype=torch.uint8), requires_grad=False)
    absmax, code = empty(blocks), empty(16)
    code.div_(code.abs().max())
    state = QuantState(weight.shape, weight.dtype, code, nested, absmax)
    if nested:
        state.offset = absmax.mean()
        centred = absmax - state.offset
        state.absmax = torch.empty_like(centred, dtype=torch.uint8)
        state.state2 = Scales(absmax=empty(-(-blocks // BLOCKS_A_SCALE)), code=empty(256))
        del centred
    parameter.quant_state = weight.module.quant_state = state
    del values
    return cast(nn.Parameter, parameter)


def define_operators() -> None:
    """Defines the operators of bitsandbytes that a step runs, by shape; does nothing if bitsandbytes is loaded."""
    if _libraries or hasattr(torch.ops.bitsandbytes, "dequantize_4bit"):
        return
    library = torch.library.Library("bitsandbytes", "FRAGMENT")
    library.define("dequantize_blockwise(Tensor A, Tensor absmax, Tensor code, int blocksize, ScalarType dtype) -> Tensor")
    library.define(
        "dequantize_4bit(Tensor A, Tensor absmax, int blocksize, str quant_type, int[] shape, ScalarType dtype) -> Tensor"
    )
    library.impl("dequantize_blockwise", lambda A, absmax, code, blocksize, dtype: torch.empty_like(A, dtype=dtype), "Meta")
    library.impl(
        "dequantize_4bit",
        lambda A, absmax, blocksize, quant_type, shape, dtype: torch.empty(shape, dtype=dtype, device=A.device),
        "Meta",
    )
    _libraries.append(library)
