"""The published fine-tuning and pre-training steps as jobs, by what their projects say of them.

litgpt (finetune/lora.py): adapters of rank 8 on queries and values, everything in bf16, the output matrix applied to
128 positions at a time. torchtune (recipes/configs/llama3_1/8B_*): checkpointing of every layer, batches packed to the
whole length, adapters of rank 8 on queries, values, the output and the MLP; PagedAdamW8bit, whose state lies outside
PyTorch's allocator, for the full fine-tuning.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpuwise.job import Job
from gpuwise.job.models.language import next_token_batch
from gpuwise.job.models.llama import LLAMA_SIZES, Llama, LlamaAttention, LlamaConfig
from gpuwise.job.torchvision_cpu import make_importable
from gpuwise.runtime.build.adapters import in_4_bits

HEAD_CHUNK = 128  # positions that litgpt's output matrix sees at a time
ADAPTER_RANK = 8
# Lightning-AI/litgpt, litgpt/config.py; padded vocabularies.
DECODERS = {
    "StableLM Alpha 3 B": LlamaConfig(vocabulary=50_688, width=4096, layers=16, heads=32, kv_heads=32, hidden=16_384),
    "Llama 2 13 B": LLAMA_SIZES["llama2-13b"],
    "falcon-7b": LlamaConfig(vocabulary=65_024, width=4544, layers=32, heads=71, kv_heads=1, hidden=18_176),
    "llama-3.1-8b": LlamaConfig(),
    "TinyLlama 1.1B": LlamaConfig(vocabulary=32_000, width=2048, layers=22, heads=32, kv_heads=4, hidden=5632),
}
PARALLEL = {"StableLM Alpha 3 B": 2, "falcon-7b": 1}  # blocks whose MLP runs beside attention, and their norms


class ParallelBlock(nn.Module):
    """GPT-NeoX (Black et al. 2022) and Falcon: x + attention(norm(x)) + mlp(norm(x)); an MLP of two matrices."""

    def __init__(self, config: LlamaConfig, norms: int):
        super().__init__()
        self.attention = LlamaAttention(width=config.width, heads=config.heads, kv_heads=config.kv_heads)
        self.norms = nn.ModuleList(nn.LayerNorm(config.width) for _ in range(norms))
        self.up, self.down = nn.Linear(config.width, config.hidden), nn.Linear(config.hidden, config.width)

    def forward(self, x: Tensor, rotary: Tensor) -> Tensor:
        return x + self.attention(self.norms[0](x), rotary) + self.down(F.gelu(self.up(self.norms[-1](x))))


class WrittenOutNorm(nn.Module):
    """RMS norm as litgpt writes it: in fp32, so that two fp32 tensors are kept for backward (litgpt/model.py)."""

    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        normed = wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + 1e-5)
        return (normed * self.weight.float()).to(x.dtype)


def decoder(name: str) -> Llama:
    model = Llama(DECODERS[name])
    if name in PARALLEL:
        model.layers = nn.ModuleList(ParallelBlock(model.config, PARALLEL[name]) for _ in range(model.config.layers))
    for path, module in list(model.named_modules()):
        if isinstance(module, nn.RMSNorm):
            model.set_submodule(path, WrittenOutNorm(model.config.width))
    return model


def adapted(name: str, quantized: str) -> nn.Module:
    """The decoder in bf16, its weights frozen (all matrices in 4 bits for nf4 and nf4-dq), and low-rank additions."""
    make_importable()
    import peft

    model: nn.Module = decoder(name).to(torch.bfloat16)
    if quantized:
        layers = [path for path, module in model.named_modules() if type(module) is nn.Linear]
        in_4_bits(model, layers, torch.bfloat16, double_quantized=quantized.endswith("dq"))
    config = peft.LoraConfig(r=ADAPTER_RANK, target_modules=["q", "v"], lora_dropout=0.05, bias="none")
    model = peft.inject_adapter_in_model(config, model)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch.bfloat16)
    return model


def chunked_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Mean cross entropy, the output matrix applied to HEAD_CHUNK positions at a time."""
    hidden: list[Tensor] = []
    head: Any = model.head
    hook = head.register_forward_pre_hook(lambda module, args: (hidden.append(args[0]), (args[0][:, :1],))[1])
    model(batch["tokens"])
    hook.remove()
    chunks = zip(hidden[0].split(HEAD_CHUNK, 1), batch["labels"].split(HEAD_CHUNK, 1), strict=True)
    losses = [F.cross_entropy(head(x).flatten(0, 1), y.flatten(), reduction="none") for x, y in chunks]
    return torch.cat(losses).mean()


def litgpt_adapters(name: str, quantized: str, seq_len: int) -> Job:
    batch = partial(next_token_batch, vocabulary=DECODERS[name].vocabulary, seq_len=seq_len)
    return Job(
        partial(adapted, name, quantized),
        batch,
        chunked_loss,
        name=name,
        sample_unit="token",
        tokens_per_sample=seq_len,
        seq_len=seq_len,
    )


def torchtune(seq_len: int) -> Job:
    """Llama 3.1 8B with the loss in chunks; in bf16, for its fp32 copy lives only inside a compiled kernel."""
    batch = partial(next_token_batch, vocabulary=LlamaConfig().vocabulary, seq_len=seq_len)
    return Job(Llama, batch, chunked_loss, name="llama3-8b", sample_unit="token", tokens_per_sample=seq_len, seq_len=seq_len)


def pretraining(name: str, seq_len: int) -> Job:
    from gpuwise.job.models.language import token_loss

    batch = partial(next_token_batch, vocabulary=DECODERS[name].vocabulary, seq_len=seq_len)
    return Job(
        partial(decoder, name), batch, token_loss, name=name, sample_unit="token", tokens_per_sample=seq_len, seq_len=seq_len
    )
