"""Small models of every family, each as a training step whose memory can be measured on a CPU in a second or two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpuwise.job import Job
from gpuwise.job.models.alexnet import AlexNet, AlexNetConfig
from gpuwise.job.models.bert import Bert, BertConfig
from gpuwise.job.models.gpt2 import Gpt2, Gpt2Config
from gpuwise.job.models.language import (
    masked_word_batch,
    merge_heads,
    next_token_batch,
    split_heads,
    token_loss,
    translation_batch,
)
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.job.models.mixtral import Mixtral, MixtralConfig
from gpuwise.job.models.mlp import Mlp, MlpConfig, class_loss, image_batch, table_batch
from gpuwise.job.models.resnet import ResNet
from gpuwise.job.models.t5 import T5, T5Config
from gpuwise.job.models.unet import Unet, UnetConfig, diffusion_batch, diffusion_loss
from gpuwise.job.models.vit import Vit, VitConfig
from gpuwise.strategy import Strategy

VOCABULARY, SEQ_LEN = 2048, 64
MANY_WORDS = 32_000  # the gradient of so large an embedding is at the peak


@dataclass(frozen=True)
class Case:
    name: str
    job: Job
    strategy: Strategy
    convolutions: bool = False


def cases() -> list[Case]:
    """Each precision, recompute, optimizer, kind of optimizer kernels and kind of attention at least once."""
    mlp, bert, gpt, llama, moe, lstm, vit = _mlp(), _bert(), _gpt(), _llama(), _mixtral(), _lstm(), _vit()
    return [
        Case("MLP, adamw", mlp, Strategy(micro_batch=64)),
        Case("MLP, adamw for-loop", mlp, Strategy(micro_batch=64, optimizer_kernels="for-loop")),
        Case("MLP, adamw foreach", mlp, Strategy(micro_batch=64, optimizer_kernels="foreach")),
        Case("MLP, sgd", mlp, Strategy(micro_batch=64, optimizer="sgd")),
        Case("MLP, momentum foreach", mlp, Strategy(micro_batch=64, optimizer="momentum", optimizer_kernels="foreach")),
        Case("MLP, adam, amp-bf16", mlp, Strategy(micro_batch=64, optimizer="adam", precision="amp-bf16")),
        Case("MLP, adafactor", mlp, Strategy(micro_batch=64, optimizer="adafactor")),
        Case("MLP, accumulated, gradients kept", mlp, Strategy(micro_batch=64, accumulation=2, keep_gradients=True)),
        Case("AlexNet, momentum", _alexnet(), Strategy(micro_batch=16, optimizer="momentum"), True),
        Case("ResNet-50, momentum", _resnet(), Strategy(micro_batch=4, optimizer="momentum"), True),
        Case("ResNet-50, adamw, amp-bf16", _resnet(), Strategy(micro_batch=4, precision="amp-bf16"), True),
        Case("BERT, adamw", bert, Strategy(micro_batch=4)),
        Case("BERT, recomputed", bert, Strategy(micro_batch=4, recompute="full")),
        Case("BERT, adamw foreach, amp-bf16", bert, Strategy(micro_batch=4, precision="amp-bf16", optimizer_kernels="foreach")),
        Case("GPT-2, adamw", gpt, Strategy(micro_batch=4)),
        Case("GPT-2, accumulated", gpt, Strategy(micro_batch=4, accumulation=2)),
        Case("GPT-2, amp-bf16", gpt, Strategy(micro_batch=4, precision="amp-bf16")),
        Case("GPT-2, bf16", gpt, Strategy(micro_batch=4, precision="bf16")),
        Case("GPT-2, tied words, fp32", _gpt(MANY_WORDS), Strategy(micro_batch=1)),
        Case("GPT-2, tied words, amp-bf16", _gpt(MANY_WORDS), Strategy(micro_batch=1, precision="amp-bf16")),
        Case("BERT, tied words, amp-bf16", _bert(MANY_WORDS), Strategy(micro_batch=1, precision="amp-bf16")),
        Case("T5, tied words, fp32", _t5(), Strategy(micro_batch=1)),
        Case("T5, tied words, amp-bf16", _t5(), Strategy(micro_batch=1, precision="amp-bf16")),
        Case("Llama, adamw", llama, Strategy(micro_batch=4)),
        Case("Llama, muon", llama, Strategy(micro_batch=4, optimizer="muon")),
        Case("Llama, adamw in backward", llama, Strategy(micro_batch=4, optimizer_in_backward=True)),
        Case("Llama, selective", llama, Strategy(micro_batch=4, recompute="selective")),
        Case("Llama, bf16, recomputed", llama, Strategy(micro_batch=4, precision="bf16", recompute="full")),
        Case("Mixtral, adamw", moe, Strategy(micro_batch=4)),
        Case("Mixtral, bf16, adafactor", moe, Strategy(micro_batch=4, precision="bf16", optimizer="adafactor")),
        Case("LSTM, adam", lstm, Strategy(micro_batch=8, optimizer="adam")),
        Case("LSTM, amp-bf16", lstm, Strategy(micro_batch=8, precision="amp-bf16")),
        Case("encoder, sdpa", _encoder("sdpa"), Strategy(micro_batch=4)),
        Case("encoder, sdpa with a mask", _encoder("masked"), Strategy(micro_batch=4)),
        Case("encoder, eager", _encoder("eager"), Strategy(micro_batch=4)),
        Case(
            "encoder, eager, bf16, recomputed", _encoder("eager"), Strategy(micro_batch=4, precision="bf16", recompute="full")
        ),
        Case("ViT, adamw", vit, Strategy(micro_batch=8), True),
        Case("ViT, amp-bf16", vit, Strategy(micro_batch=8, precision="amp-bf16"), True),
        Case("UNet, adamw", _unet(), Strategy(micro_batch=2), True),
        Case("UNet, amp-bf16, recomputed", _unet(), Strategy(micro_batch=2, precision="amp-bf16", recompute="full"), True),
    ]


def _mlp() -> Job:
    config = MlpConfig(features=256, hidden=(1024, 512), classes=10)
    return Job(model=lambda: Mlp(config), batch=partial(table_batch, features=256, classes=10), loss=class_loss)


def _language(model: Callable[[], nn.Module], batch: Callable[..., object], vocabulary: int = VOCABULARY) -> Job:
    return Job(model=model, batch=partial(batch, vocabulary=vocabulary, seq_len=SEQ_LEN), loss=token_loss)


def _bert(vocabulary: int = VOCABULARY) -> Job:
    config = BertConfig(vocabulary=vocabulary, width=256, layers=4, heads=4)
    return _language(lambda: Bert(config), masked_word_batch, vocabulary)


def _t5() -> Job:
    config = T5Config(vocabulary=MANY_WORDS, width=256, layers=2, heads=4, hidden=512)
    return _language(lambda: T5(config), translation_batch, MANY_WORDS)


def _gpt(vocabulary: int = VOCABULARY) -> Job:
    config = Gpt2Config(vocabulary=vocabulary, width=256, layers=4, heads=4)
    return _language(lambda: Gpt2(config), next_token_batch, vocabulary)


def _llama() -> Job:
    config = LlamaConfig(vocabulary=VOCABULARY, width=256, layers=4, heads=4, kv_heads=2, hidden=768)
    return _language(lambda: Llama(config), next_token_batch)


def _mixtral() -> Job:
    config = MixtralConfig(vocabulary=VOCABULARY, width=256, layers=2, heads=4, kv_heads=2, hidden=512, experts=4)
    return _language(lambda: Mixtral(config), next_token_batch)


class Lstm(nn.Module):
    """Tokens (n, seq) -> logits (n, seq, vocabulary) through two recurrent layers."""

    def __init__(self, width: int = 256):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.layers = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.words(tokens))[0])


def _lstm() -> Job:
    return _language(Lstm, next_token_batch)


class EncoderBlock(nn.Module):
    """Attention written out (eager), by PyTorch's function (sdpa), or by it with a mask of padding (masked)."""

    def __init__(self, attention: str, width: int, heads: int):
        super().__init__()
        self.attention, self.head_dim = attention, width // heads
        self.norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        h = self.norm(x)
        q, k, v = (split_heads(project(h), self.head_dim) for project in (self.q, self.k, self.v))
        if self.attention == "eager":
            scores = q @ k.transpose(-1, -2) * self.head_dim**-0.5
            scores = scores.masked_fill(~keep[:, None, None, :], torch.finfo(scores.dtype).min)
            y = scores.softmax(-1) @ v
        else:
            mask = keep[:, None, None, :] if self.attention == "masked" else None
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(merge_heads(y))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))


class Encoder(nn.Module):
    """Tokens (n, seq), zero where there is none -> logits (n, seq, vocabulary)."""

    def __init__(self, attention: str, width: int = 256, heads: int = 4, layers: int = 4):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(EncoderBlock(attention, width, heads) for _ in range(layers))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x, keep = self.words(tokens), tokens > 0
        for layer in self.layers:
            x = layer(x, keep)
        return self.head(x)


def _encoder(attention: str) -> Job:
    return _language(partial(Encoder, attention), masked_word_batch)


def _vit() -> Job:
    config = VitConfig(image_size=64, patch=16, width=256, layers=4, heads=4, hidden=1024, classes=100)
    return Job(model=lambda: Vit(config), batch=partial(image_batch, image_size=64, classes=100), loss=class_loss)


def _alexnet() -> Job:
    config = AlexNetConfig(classes=100, hidden=512)
    return Job(model=lambda: AlexNet(config), batch=partial(image_batch, image_size=96, classes=100), loss=class_loss)


def _resnet() -> Job:
    return Job(model=ResNet, batch=partial(image_batch, image_size=64), loss=class_loss)


def _unet() -> Job:
    config = UnetConfig(levels=(32, 64, 64), heads=2, context=64)
    return Job(model=lambda: Unet(config), batch=partial(diffusion_batch, latent_size=16, context=64), loss=diffusion_loss)
