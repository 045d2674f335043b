"""Low-rank adapters (LoRA) on any module, and frozen weights in 4 bits under them (QLoRA)."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch._guards import active_fake_mode

from gpuwise.errors import MissingDependencyError, UnsupportedError
from gpuwise.job.dependencies import require
from gpuwise.job.torchvision_cpu import make_importable
from gpuwise.runtime.build.adapters_recorded import Linear4Bit, RecordedModule, is_only_recorded, pack, with_low_rank
from gpuwise.runtime.build.linears import inner_linears
from gpuwise.strategy import Strategy

ALPHA_PER_RANK = 2  # an adapter's output is scaled by alpha / rank
# Compute dtypes of 4-bit products; other precisions compute in fp32.
_COMPUTE = {"amp-bf16": torch.bfloat16, "bf16": torch.bfloat16, "amp-fp16": torch.float16}


def adapted(model: nn.Module, strategy: Strategy) -> nn.Module:
    """Freezes the model's weights and adds a low-rank adapter (a trainable product of two thin matrices) to linear layers.

    Every `nn.Linear` except the output head gets an adapter in fp32. For qlora these layers become bitsandbytes'
    `Linear4bit`, which packs its weight on the move to the device: NF4 in blocks of 64 with quantized scales, 0.516 bytes
    per parameter. The model is returned unchanged if the strategy has no adapter.

    Raises UnsupportedError when no layer can have an adapter, MissingDependencyError without peft or bitsandbytes.
    """
    if strategy.adapter == "none":
        return model
    make_importable()  # peft imports transformers, which imports torchvision where it is installed
    peft = _package("peft", purpose="train adapters")
    names = inner_linears(model)
    if not names:
        raise UnsupportedError(
            f"{type(model).__name__} has no linear layer beside its output that could have an adapter.", ["leave out --adapter"]
        )
    if strategy.adapter == "qlora":
        in_4_bits(model, names, _COMPUTE.get(strategy.precision, torch.float32), double_quantized=True)
    four_bits_recorded = any(isinstance(model.get_submodule(name), Linear4Bit) for name in names)
    if peft is None or four_bits_recorded:
        return _trained_in_fp32(with_low_rank(model, names, strategy.adapter_rank, float(ALPHA_PER_RANK)))
    exactly = "|".join(re.escape(name) for name in names)
    config = peft.LoraConfig(
        r=strategy.adapter_rank,
        lora_alpha=ALPHA_PER_RANK * strategy.adapter_rank,
        target_modules=exactly,
        lora_dropout=0.0,
        bias="none",
    )
    return _trained_in_fp32(peft.inject_adapter_in_model(config, model))


def _package(name: str, *, purpose: str) -> ModuleType | None:
    """Imports the package; None if it is absent and the step is only recorded. Otherwise raises MissingDependencyError."""
    try:
        return require(name, purpose=purpose)
    except MissingDependencyError:
        if is_only_recorded():
            return None
        raise


def _trained_in_fp32(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return model


def in_4_bits(model: nn.Module, names: list[str], compute: torch.dtype, *, double_quantized: bool) -> None:
    """Replaces these linear layers by bitsandbytes' 4-bit layers; `packed` packs their weights later.

    Arguments:
        names: paths of the layers.
        compute: dtype of the products and of the unpacked weight.
        double_quantized: whether the scales are quantized, too (an fp32 scale per 64 weights takes 0.0625 bytes per
            parameter).
    """
    bitsandbytes = _package("bitsandbytes", purpose="hold weights in 4 bits")
    for name in names:
        parent, _, child = name.rpartition(".")
        old = model.get_submodule(name)
        assert isinstance(old, nn.Linear)
        if bitsandbytes is None:
            setattr(model.get_submodule(parent), child, Linear4Bit(old, compute, double_quantized=double_quantized))
            continue
        new = bitsandbytes.nn.Linear4bit(
            old.in_features,
            old.out_features,
            bias=old.bias is not None,
            compute_dtype=compute,
            compress_statistics=double_quantized,
            quant_type="nf4",
            device="meta",
        )
        new.weight = bitsandbytes.nn.Params4bit(
            old.weight.detach().to(compute), compress_statistics=double_quantized, quant_type="nf4", module=new
        )
        new.bias = old.bias
        setattr(model.get_submodule(parent), child, new)
    setattr(model, "is_loaded_in_4bit", True)  # noqa: B010 (peft selects its layer class by it)


def awaits_packing(tensor: torch.Tensor) -> bool:
    """Whether this is the unpacked weight of a 4-bit layer."""
    return getattr(tensor, "bnb_quantized", None) is False


def packed(weight: Any, device: torch.device) -> nn.Parameter:
    """Packs the weight of a 4-bit layer on its device: two values per byte, shape (parameters / 2, 1)."""
    if active_fake_mode() is None:
        result: nn.Parameter = weight.to(device)
        return result
    if isinstance(weight.module, RecordedModule):
        return pack(weight, device)
    functional = import_module("bitsandbytes.functional")
    # Before 2.13 fake tensors refuse every operation, even `.data`, on a subclass of Parameter; only the shape is used.
    values = torch.empty(weight.shape, dtype=weight.dtype, device=device)  # as on a device, freed once it is packed
    data, state = functional.quantize_4bit(values, quant_type=weight.quant_type, compress_statistics=weight.compress_statistics)
    # The class of bitsandbytes would hide that the tensor is fake, so this is a plain parameter.
    parameter = nn.Parameter(data, requires_grad=False)
    parameter.quant_state = weight.module.quant_state = state  # type: ignore[attr-defined]
    return parameter


@contextmanager
def code_tables_of_one_model() -> Iterator[None]:
    """Inside, weights that are packed as fake tensors share one code table, as on a GPU.

    bitsandbytes keeps that table for the whole process, so it must not be a fake tensor afterwards.
    """
    functional = sys.modules.get("bitsandbytes.functional")
    if functional is None:
        yield
        return
    names = vars(functional)
    tables, names["name2qmap"] = names["name2qmap"], {}
    try:
        yield
    finally:
        names["name2qmap"] = tables


def own_scales(model: nn.Module) -> None:
    """Registers the quantization state of packed layers as buffers.

    This is for fake tensors: bitsandbytes stores this state where a traversal of the model does not find it.
    """
    for module in model.modules():
        state = getattr(module, "quant_state", None)
        if state is None:
            continue
        tensors = {"absmax": state.absmax, "code": state.code}
        if state.nested:
            tensors |= {"offset": state.offset, "absmax_absmax": state.state2.absmax, "absmax_code": state.state2.code}
        for name, tensor in tensors.items():
            module.register_buffer(name, tensor, persistent=False)


def parameter_count(parameter: nn.Parameter) -> int:
    """The number of weights in a parameter; a packed one holds two per byte."""
    state = getattr(parameter, "quant_state", None)
    return parameter.numel() if state is None else int(torch.Size(state.shape).numel())
