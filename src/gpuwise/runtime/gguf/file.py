"""write_gguf: a file of a model for llama.cpp, each tensor in the type that its mix gives it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from gpuwise.job.dependencies import require
from gpuwise.runtime.gguf.architectures import LlamaCppModel
from gpuwise.runtime.gguf.quantizer import Quantizer
from gpuwise.serving import ggml
from gpuwise.serving.weights import EMBEDDING, HEAD, OTHER, PRODUCT, Weights

if TYPE_CHECKING:
    from gguf import GGUFWriter

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_BLOCK = re.compile(r"blk\.(\d+)\.")
_ROLES = {"token_embd.weight": EMBEDDING, "output.weight": HEAD, "position_embd.weight": EMBEDDING}
_NORMAL = 1  # type of a token of text (llama.h, LLAMA_TOKEN_TYPE_NORMAL)


@dataclass(frozen=True)
class TypedTensor:
    """A tensor of a file. type: of gpuwise.serving.ggml.TYPES."""

    name: str
    type: str
    tensor: Tensor

    @property
    def bytes(self) -> int:
        """Bytes in the file."""
        return ggml.tensor_bytes(self.type, self.tensor.numel())


def typed_tensors(model: LlamaCppModel, mix: str) -> list[TypedTensor]:
    """The tensors of a model with the types that a mix of gpuwise.serving.ggml gives them."""
    weights = {name: _weights(model, name) for name in model.tensors}
    shape = ggml.ModelShape.of(list(weights.values()), layers=int(model.sizes["block_count"]))
    typed = []
    for name, (_, tensor) in model.tensors.items():
        block = _BLOCK.match(name)
        typed.append(TypedTensor(name, ggml.type_of(weights[name], mix, int(block[1]) if block else 0, shape), tensor))
    if model.frequency_factors is not None:
        typed.append(TypedTensor("rope_freqs.weight", "f32", model.frequency_factors))
    return typed


def write_gguf(path: Path, model: LlamaCppModel, mix: str, *, context: int, threads: int = 1) -> None:
    """Writes a model with made-up tokens, whose texts are their numbers.

    Arguments:
        mix: of gpuwise.serving.ggml.MIXES.
        context: most tokens of a sequence.
        threads: that round weights; 1 by default.

    Raises MissingDependencyError, UnsupportedError (a type that cannot be written here) or OSError.
    """
    gguf = require("gguf", purpose="write a model for llama.cpp")
    quantizer = Quantizer(threads)
    tensors = typed_tensors(model, mix)
    quantizer.check({each.type for each in tensors}, mix=mix)
    writer: GGUFWriter = gguf.GGUFWriter(path, model.architecture)
    for key, value in {"context_length": context, **model.sizes}.items():
        name = f"{model.architecture}.{key}"
        if isinstance(value, int):
            writer.add_uint32(name, value)
        else:
            writer.add_float32(name, value)
    _add_tokens(writer, model.vocabulary)
    for each in tensors:
        stored = np.dtype(quantizer.stored_in(each.type))
        shape = (*each.tensor.shape[:-1], each.tensor.shape[-1] * each.bytes // (each.tensor.numel() * stored.itemsize))
        writer.add_tensor_info(each.name, shape, stored, each.bytes, raw_dtype=gguf.GGMLQuantizationType[each.type.upper()])
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for each in tensors:
            writer.write_tensor_data(quantizer.quantized(each.tensor.float().contiguous().numpy(), each.type))
    finally:
        writer.close()


def _weights(model: LlamaCppModel, name: str) -> Weights:
    """A tensor as gpuwise.serving.ggml looks at it."""
    path, tensor = model.tensors[name]
    role = _ROLES.get(name, PRODUCT) if tensor.dim() > 1 else OTHER
    tied = name == "token_embd.weight" and "output.weight" not in model.tensors
    blocks = int(model.sizes["block_count"]) if _BLOCK.match(name) else 1
    return Weights(_NUMBER.sub("*", path), tuple(tensor.shape), blocks, tensor.element_size(), role, tied)


def _add_tokens(writer: GGUFWriter, count: int) -> None:
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"{number} " for number in range(count)])
    writer.add_token_scores([0.0] * count)
    writer.add_token_types([_NORMAL] * count)
