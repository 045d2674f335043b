"""Which type each tensor of a GGUF file has, by the name of its mix, and its bytes.

The rules are those of llama.cpp's quantizer (src/llama-quant.cpp, MIT, commit 007dbbf): a mix such as Q4_K_M gives more bits to
some tensors of some blocks. Blocks of a type and their bytes: ggml/src/ggml-common.h.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpuwise.serving.weights import EMBEDDING, HEAD, OTHER, Weights

# Type: elements of a block, bytes of a block.
TYPES = {
    "f32": (1, 4),
    "f16": (1, 2),
    "q8_0": (32, 34),
    "q5_1": (32, 24),
    "q5_0": (32, 22),
    "q4_0": (32, 18),
    "q6_k": (256, 210),
    "q5_k": (256, 176),
    "q4_k": (256, 144),
    "q3_k": (256, 110),
    "q2_k": (256, 84),
    "mxfp4": (32, 17),
}
# Mix: the type of tensors that no rule names.
MIXES = {
    "f16": "f16",
    "q8_0": "q8_0",
    "q6_k": "q6_k",
    "q5_k_m": "q5_k",
    "q5_k_s": "q5_k",
    "q5_0": "q5_0",
    "q4_k_m": "q4_k",
    "q4_k_s": "q4_k",
    "q4_0": "q4_0",
    "q3_k_l": "q3_k",
    "q3_k_m": "q3_k",
    "q2_k": "q2_k",
    "mxfp4": "mxfp4",  # of experts; MXFP4_MOE of the quantizer, and the files of gpt-oss
}
WIDE = ("f16",)  # mixes that nothing is rounded in
# What stands in for a type whose blocks do not divide the rows of a tensor.
NARROWER_BLOCKS = {"q6_k": "q8_0", "q5_k": "q5_1", "q4_k": "q5_0", "q3_k": "q4_0", "q2_k": "q4_0"}
# Names that Hugging Face models and ours give the tensors that rules name.
_KEYS = re.compile(r"(\bk_proj|\bkey|attention\.k)\.weight$")
_VALUES = re.compile(r"(\bv_proj|\bvalue|attention\.v)\.weight$")
_DOWN = re.compile(r"(\bdown_proj|\bdown|\bfc2|\bw2|dense_4h_to_h|mlp\.c_proj)(\.weight)?$")
_OUTPUT = re.compile(r"(\bo_proj|\bout_proj|attention\.out|attention\.dense|attn\.c_proj)\.weight$")
_POSITIONS = re.compile(r"(\bpositions|\bwpe|\bembed_positions|\bposition_embeddings)\.weight$")  # never rounded
_JOINT = re.compile(r"(\bqkv|qkv_proj|query_key_value|c_attn)\.weight$")
_EXPERTS_WITH_Q8 = 8  # mixtures of so many experts have keys and values in q8_0
_LAYERS_OF_70B = 80  # Llama's 70B, whose values get more bits


@dataclass(frozen=True)
class ModelShape:
    """What rules look at.

    Attributes:
        layers: blocks of the model.
        experts: of a mixture; 0 without.
        grouped: query heads that share a key head; 1 where values have no matrix of their own.
    """

    layers: int
    experts: int
    grouped: int

    @classmethod
    def of(cls, weights: Sequence[Weights], *, layers: int) -> ModelShape:
        """The shape of a model with these weights and so many layers of attention."""
        values, results = (next((w for w in weights if name.search(w.name)), None) for name in (_VALUES, _OUTPUT))
        # Some models have all experts of a block in one parameter.
        of_experts = [w for w in weights if ".experts." in w.name]
        experts = max((w.shape[0] if len(w.shape) > 2 else w.count // max(layers, 1) for w in of_experts), default=0)
        grouped = results.shape[-1] // values.shape[0] if values and results else 1
        return cls(max(layers, 1), experts, max(grouped, 1))


def types_of(weights: Weights, mix: str, model: ModelShape) -> list[str]:
    """The type of each of equal weights in a file of the mix, in the order of their blocks."""
    # Experts follow each other in a block.
    blocks = [n * model.layers // weights.count if weights.count > model.layers else n for n in range(weights.count)]
    return [type_of(weights, mix, block, model) for block in blocks]


def type_of(weights: Weights, mix: str, block: int, model: ModelShape) -> str:
    """The type of those of equal weights that are in one block, in a file of the mix."""
    if weights.role == OTHER or len(weights.shape) < 2 or _POSITIONS.search(weights.name):
        return "f32"
    return _fitting(_type(weights, mix, block, model), weights.shape[-1])


def tensor_bytes(kind: str, elements: int) -> int:
    """Bytes of a tensor of whole blocks of a type."""
    block, size = TYPES[kind]
    return elements // block * size


def _type(weights: Weights, mix: str, block: int, model: ModelShape) -> str:
    base, name = MIXES[mix], weights.name
    if mix in WIDE:
        return base
    if mix == "mxfp4":
        return base if weights.of_experts else "q8_0"
    if weights.role == HEAD or weights.tied:
        return "q8_0" if base == "q8_0" or weights.shape[-1] % TYPES[base][0] else "q6_k"
    if weights.role == EMBEDDING:
        return base
    many_experts = model.experts == _EXPERTS_WITH_Q8
    if many_experts and (_VALUES.search(name) or _KEYS.search(name)):
        return "q8_0"
    if _VALUES.search(name):
        return _values(mix, base, block, model)
    if _DOWN.search(name):
        return _down(mix, base, block, model.layers)
    if _OUTPUT.search(name):
        if many_experts:
            return "q5_k" if mix in ("q2_k", "q3_k_m", "q4_k_s", "q4_k_m") else base
        return {"q2_k": "q3_k", "q3_k_m": "q4_k", "q3_k_l": "q5_k"}.get(mix, base)
    if _JOINT.search(name):
        return {"q3_k_m": "q4_k", "q3_k_l": "q4_k", "q4_k_m": "q5_k", "q5_k_m": "q6_k"}.get(mix, base)
    return base


def _values(mix: str, base: str, block: int, model: ModelShape) -> str:
    kind = base
    if mix == "q2_k":
        kind = "q4_k" if model.grouped >= 4 else "q3_k"
    elif mix == "q3_k_m":
        kind = "q5_k" if block < 2 else "q4_k"
    elif mix == "q3_k_l" or (mix == "q4_k_s" and block < 4):
        kind = "q5_k"
    elif mix in ("q4_k_m", "q5_k_m") and _more_bits(block, model.layers):
        kind = "q6_k"
    return "q5_k" if model.layers == _LAYERS_OF_70B and model.grouped > 1 and kind in ("q3_k", "q4_k") else kind


def _down(mix: str, base: str, block: int, layers: int) -> str:
    if mix == "q3_k_m":
        return "q5_k" if block < layers // 16 else "q4_k"
    if mix == "q4_k_s" and block < layers // 8:
        return "q5_k"
    if mix in ("q4_k_m", "q5_k_m") and _more_bits(block, layers):
        return "q6_k"
    return {"q2_k": "q3_k", "q3_k_l": "q5_k"}.get(mix, base)


def _more_bits(block: int, layers: int) -> bool:
    """The first and last eighth of the blocks, and every third between."""
    return block < layers // 8 or block >= 7 * layers // 8 or (block - layers // 8) % 3 == 2


def _fitting(kind: str, columns: int) -> str:
    if columns % TYPES[kind][0] == 0:
        return kind
    narrower = NARROWER_BLOCKS.get(kind, "f16")
    return narrower if columns % TYPES[narrower][0] == 0 else "f16"
