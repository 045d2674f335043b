"""llama_cpp_model: our models and those of Transformers as architectures of llama.cpp."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from gpuwise.errors import UnsupportedError
from gpuwise.job.models.gpt2 import Gpt2
from gpuwise.job.models.llama import Llama
from gpuwise.runtime.gguf.names import Change, above_one, neighbours_turned, tensors_of, transposed

Sizes = dict[str, int | float]
PLAIN, LLAMA_3 = "default", "llama3"  # kinds of rotary positions


@dataclass(frozen=True)
class LlamaCppModel:
    """A model in the terms of llama.cpp.

    Attributes:
        architecture: its name there.
        sizes: keys of a file, without the architecture before them.
        tensors: by their names there, as llama.cpp has them in memory, each with the path of its parameter.
        frequency_factors: by which frequencies of rotary positions are divided; None (default) where they are plain.
        window: tokens that attention sees, which llama.cpp would not limit; None (default) for all.
    """

    architecture: str
    sizes: Sizes
    tensors: dict[str, tuple[str, Tensor]]
    frequency_factors: Tensor | None = None
    window: int | None = None

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding."""
        return int(self.tensors["token_embd.weight"][1].shape[0])


class _RotarySizes(Protocol):
    """What is read of a configuration of Transformers with rotary positions."""

    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    rms_norm_eps: float
    hidden_act: str
    rope_parameters: Mapping[str, str | float]


class _Gpt2Sizes(Protocol):
    """What is read of a GPT-2 configuration of Transformers."""

    n_layer: int
    n_positions: int
    n_embd: int
    n_inner: int | None
    n_head: int
    layer_norm_epsilon: float
    activation_function: str
    scale_attn_by_inverse_layer_idx: bool
    add_cross_attention: bool


@dataclass(frozen=True)
class _Rotary:
    """A family of Transformers with rotary positions, grouped queries and a gated perceptron.

    Attributes:
        architecture: its name in llama.cpp.
        turns_neighbours: whether llama.cpp turns neighbours of a head, where Transformers turns its halves.
        norms_from_one: whether the parameter of a norm is its distance from one.
        activation: of the gate.
        rotary: kinds of rotary positions.
    """

    architecture: str
    turns_neighbours: bool = False
    norms_from_one: bool = False
    activation: str = "silu"
    rotary: tuple[str, ...] = (PLAIN,)

    def model(self, module: nn.Module, config: _RotarySizes) -> LlamaCppModel:
        """Raises ValueError, with the reason, where the model differs from the architecture."""
        rotary, theta = config.rope_parameters, float(config.rope_parameters["rope_theta"])
        if rotary["rope_type"] not in self.rotary:
            raise ValueError(f"llama.cpp's {self.architecture} has no rotary positions of kind {rotary['rope_type']}")
        if config.hidden_act != self.activation:
            raise ValueError(f"llama.cpp's {self.architecture} computes {self.activation}, not {config.hidden_act}")
        head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        sizes: Sizes = {
            "block_count": config.num_hidden_layers,
            "embedding_length": config.hidden_size,
            "feed_forward_length": config.intermediate_size,
            "attention.head_count": config.num_attention_heads,
            "attention.head_count_kv": config.num_key_value_heads,
            "attention.key_length": head_size,
            "attention.value_length": head_size,
            "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
            "rope.dimension_count": head_size,
            "rope.freq_base": theta,
        }
        changes: dict[str, Change] = {}
        if self.turns_neighbours:
            changes |= dict.fromkeys(("attn_q", "attn_k"), neighbours_turned(head_size))
        if self.norms_from_one:
            changes |= dict.fromkeys(("attn_norm", "ffn_norm", "output_norm"), above_one)
        factors = None
        if rotary["rope_type"] == LLAMA_3:
            scaled = module.get_submodule("model.rotary_emb").get_buffer("inv_freq")
            exponents = torch.arange(0, head_size, 2, dtype=torch.float32, device=scaled.device) / head_size
            factors = theta**-exponents / scaled
        tensors = tensors_of(module, changes)
        return LlamaCppModel(self.architecture, sizes, tensors, factors, getattr(config, "sliding_window", None))


class _Gpt2OfTransformers:
    """GPT-2 of Transformers."""

    def model(self, module: nn.Module, config: _Gpt2Sizes) -> LlamaCppModel:
        if config.activation_function != "gelu_new" or config.scale_attn_by_inverse_layer_idx or config.add_cross_attention:
            raise ValueError("llama.cpp's gpt2 has the activation and the attention of GPT-2 alone")
        sizes: Sizes = {
            "block_count": config.n_layer,
            "context_length": config.n_positions,
            "embedding_length": config.n_embd,
            "feed_forward_length": config.n_inner or 4 * config.n_embd,
            "attention.head_count": config.n_head,
            "attention.layer_norm_epsilon": config.layer_norm_epsilon,
        }
        changes = dict.fromkeys(("attn_qkv", "attn_output", "ffn_up", "ffn_down"), transposed)
        return LlamaCppModel("gpt2", sizes, tensors_of(module, changes))


# By model_type of a configuration of Transformers.
_FAMILIES: dict[str, _Rotary | _Gpt2OfTransformers] = {
    "llama": _Rotary("llama", turns_neighbours=True, rotary=(PLAIN, LLAMA_3)),
    "mistral": _Rotary("llama", turns_neighbours=True, rotary=(PLAIN, LLAMA_3)),
    "qwen2": _Rotary("qwen2"),
    "qwen3": _Rotary("qwen3"),
    "gemma": _Rotary("gemma", norms_from_one=True, activation="gelu_pytorch_tanh"),
    "gpt2": _Gpt2OfTransformers(),
}
WRITTEN = "Llama, Mistral, Qwen2, Qwen3, Gemma and GPT-2"


def llama_cpp_model(module: nn.Module, *, name: str) -> LlamaCppModel:
    """A model in the terms of llama.cpp. Its tensors share memory with the parameters where their layout allows it.

    Arguments:
        module: the model, or its shapes on the meta device.
        name: of the job, for messages.

    Raises UnsupportedError for a model that is of none of these architectures.
    """
    if type(module) is Llama:
        return _our_llama(module)
    if type(module) is Gpt2:
        return _our_gpt2(module)
    config = getattr(module, "config", None)
    kind = getattr(config, "model_type", None) or type(module).__name__
    reason = f"it is of the kind {kind}, and gpuwise writes {WRITTEN} for llama.cpp"
    if config is not None and (family := _FAMILIES.get(kind)) is not None:
        try:
            return family.model(module, config)
        except KeyError as error:
            reason = f"llama.cpp's {kind} has no parameter {error.args[0]}"
        except ValueError as error:
            reason = str(error)
    raise UnsupportedError(
        f"{name} cannot be served with llama.cpp: {reason}.", ["--engine transformers, of hf: models", "leave out --engine"]
    )


def _our_llama(module: Llama) -> LlamaCppModel:
    config = module.config
    head_size = config.width // config.heads
    sizes: Sizes = {
        "block_count": config.layers,
        "embedding_length": config.width,
        "feed_forward_length": config.hidden,
        "attention.head_count": config.heads,
        "attention.head_count_kv": config.kv_heads,
        "attention.layer_norm_rms_epsilon": config.norm_eps,
        "rope.dimension_count": head_size,
        "rope.freq_base": config.rope_theta,
    }
    return LlamaCppModel("llama", sizes, tensors_of(module, dict.fromkeys(("attn_q", "attn_k"), neighbours_turned(head_size))))


def _our_gpt2(module: Gpt2) -> LlamaCppModel:
    config = module.config
    sizes: Sizes = {
        "block_count": config.layers,
        "context_length": config.positions,
        "embedding_length": config.width,
        "feed_forward_length": 4 * config.width,
        "attention.head_count": config.heads,
        "attention.layer_norm_epsilon": module.norm.eps,
    }
    return LlamaCppModel("gpt2", sizes, tensors_of(module, {}))
