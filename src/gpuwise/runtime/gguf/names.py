"""What llama.cpp calls the parameters of a model, and how it has them in memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from torch import Tensor, nn

Change = Callable[[Tensor], Tensor]
_OF_TRANSFORMERS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "transformer.wte": "token_embd",
    "transformer.wpe": "position_embd",
    "transformer.ln_f": "output_norm",
    "ln_1": "attn_norm",
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
_OF_OURS = {
    "words": "token_embd",
    "positions": "position_embd",
    "norm": "output_norm",
    "head": "output",
    "attention_norm": "attn_norm",
    "attention.q": "attn_q",
    "attention.k": "attn_k",
    "attention.v": "attn_v",
    "attention.out": "attn_output",
    "mlp_norm": "ffn_norm",
    "mlp.gate": "ffn_gate",
    "mlp.up": "ffn_up",
    "mlp.down": "ffn_down",
    "qkv": "attn_qkv",
    "out": "attn_output",
    "up": "ffn_up",
    "down": "ffn_down",
}
_NAMES = {**_OF_TRANSFORMERS, **_OF_OURS}
_BLOCK = re.compile(r"(?:model\.layers|transformer\.h|layers)\.(\d+)\.(.+)")


def tensors_of(model: nn.Module, changes: Mapping[str, Change]) -> dict[str, tuple[str, Tensor]]:
    """The parameters of a model by their names in llama.cpp, each with its path in the model. A head that shares the
    embedding's parameter is not there.

    changes: what makes llama.cpp's layout of a parameter, by its name there without block, "weight" and "bias".

    Raises KeyError, with the path, for a parameter that has no name there.
    """
    tensors = {}
    for path, parameter in model.named_parameters():
        module, _, kind = path.rpartition(".")
        block = _BLOCK.fullmatch(module)
        name = _NAMES[block[2] if block else module]
        tensor = parameter.detach()
        if (change := changes.get(name)) is not None and (tensor.dim() > 1 or change is not transposed):
            tensor = change(tensor)
        tensors[f"blk.{block[1]}.{name}.{kind}" if block else f"{name}.{kind}"] = (path, tensor)
    return tensors


def transposed(weight: Tensor) -> Tensor:
    """The weight of a Conv1D of Transformers, which has inputs as rows."""
    return weight.T


def above_one(weight: Tensor) -> Tensor:
    """The weight of a norm whose parameter is the distance from one."""
    return weight + 1


def neighbours_turned(head_size: int) -> Change:
    """Rows of queries or keys in the order of llama.cpp's Llama, which turns neighbours of a head, from that of models which
    turn the first half of a head with its second one."""

    def change(weight: Tensor) -> Tensor:
        halves = weight.unflatten(0, (-1, 2, head_size // 2))
        return halves.transpose(1, 2).flatten(0, 2)

    return change
