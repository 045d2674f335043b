"""Networks that stand for what people train: small, of random sizes with a fixed seed, so that every class of kernels is seen
at many sizes among its usual neighbours. None of them is a job of the suite that forecasts are validated on."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gpuwise.job import Job
from gpuwise.job.models.bert import Bert, BertConfig
from gpuwise.job.models.dlrm import Dlrm, DlrmConfig, click_batch, click_loss
from gpuwise.job.models.gpt2 import Gpt2, Gpt2Config
from gpuwise.job.models.language import masked_word_batch, next_token_batch, token_loss
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.job.models.mixtral import Mixtral, MixtralConfig
from gpuwise.job.models.mlp import Mlp, MlpConfig, class_loss, image_batch, table_batch
from gpuwise.job.models.unet import Unet, UnetConfig, diffusion_batch, diffusion_loss
from gpuwise.job.models.vit import Vit, VitConfig

CLASSES = 100
ACTIVATIONS = (nn.ReLU, nn.ReLU, nn.SiLU, nn.GELU)


class Residual(nn.Module):
    """x + inner(x)."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.inner(x)
        return y


class Weighed(nn.Module):
    """Channels times weights that follow from their means, as squeeze and excitation does."""

    def __init__(self, width: int, narrow: int):
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(width, narrow, 1), nn.ReLU(), nn.Conv2d(narrow, width, 1), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x * self.inner(x.mean((2, 3), keepdim=True))
        return y


class Channelwise(nn.Module):
    """x and a block on it that mixes positions channel by channel and channels position by position, as ConvNeXt does."""

    def __init__(self, width: int, kernel: int):
        super().__init__()
        self.spatial = nn.Conv2d(width, width, kernel, padding=kernel // 2, groups=width)
        self.inner = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.inner(self.spatial(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return y


class Recurrent(nn.Module):
    """Tokens (n, seq) -> logits (n, seq, vocabulary), by an LSTM."""

    def __init__(self, vocabulary: int, width: int, hidden: int, layers: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.lstm(self.embedding(tokens))[0])
        return logits


def pyramid(seed: int, *, width: int, kernels: Sequence[int], block: Callable[..., Iterator[nn.Module]]) -> nn.Module:
    """Four levels of halving images and about doubling channels, of blocks. seed: of its sizes."""
    draw = random.Random(seed)
    stem = draw.choice((3, 7, 11))
    layers: list[nn.Module] = [nn.Conv2d(3, width, stem, stride=2, padding=stem // 2, bias=False)]
    channels = width
    for level in range(4):
        wider = 8 * round(width * 2**level * draw.choice((1, 1.5, 2)) / 8)
        pooled = draw.random() < 0.4
        layers += [draw.choice((nn.MaxPool2d(3, 2, padding=1), nn.MaxPool2d(2)))] if pooled else []
        layers += block(draw, channels, wider, draw.choice(kernels), stride=1 if pooled else 2)
        channels = wider
    return nn.Sequential(
        *layers,
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * channels, 512),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(512, CLASSES),
    )


def _normed(inside: int, outside: int, kernel: int, **more: Any) -> nn.Sequential:
    conv = nn.Conv2d(inside, outside, kernel, padding=kernel // 2, bias=False, **more)
    return nn.Sequential(conv, nn.BatchNorm2d(outside))


def dense(draw: random.Random, inside: int, outside: int, kernel: int, *, stride: int) -> Iterator[nn.Module]:
    """Ordinary convolutions: one at full width, and residual ones at full width, in groups, and through fewer channels."""
    act, narrow = draw.choice(ACTIVATIONS), max(16, outside // 4)
    groups = draw.choice((1, 1, 4, 8))
    yield from (*_normed(inside, outside, kernel, stride=stride), act())
    yield Residual(nn.Sequential(_normed(outside, outside, 3, groups=groups), act(), _normed(outside, outside, 1)))
    yield act()
    yield Residual(
        nn.Sequential(_normed(outside, narrow, 1), act(), _normed(narrow, narrow, kernel), act(), _normed(narrow, outside, 1))
    )
    yield act()


def plain(draw: random.Random, inside: int, outside: int, kernel: int, *, stride: int) -> Iterator[nn.Module]:
    """Wide convolutions without a norm, one after the other."""
    yield from (nn.Conv2d(inside, outside, kernel, stride=stride, padding=kernel // 2), nn.ReLU())
    yield from (nn.Conv2d(outside, outside, kernel, padding=kernel // 2), nn.ReLU())


def mobile(draw: random.Random, inside: int, outside: int, kernel: int, *, stride: int) -> Iterator[nn.Module]:
    """Convolutions channel by channel between those of 1 x 1, with channels weighed by their means."""
    act, wide = draw.choice((nn.SiLU, nn.Hardswish, nn.ReLU)), outside * draw.choice((2, 3, 4))
    yield from (_normed(inside, wide, 1), act(), _normed(wide, wide, kernel, stride=stride, groups=wide), act())
    yield from (Weighed(wide, max(8, wide // 16)), _normed(wide, outside, 1))
    spatial = _normed(outside, outside, draw.choice((3, 7)), groups=outside)
    yield Residual(nn.Sequential(spatial, _normed(outside, wide, 1), act(), _normed(wide, outside, 1)))


def grouped(draw: random.Random, inside: int, outside: int, kernel: int, *, stride: int) -> Iterator[nn.Module]:
    """Convolutions in groups between those of 1 x 1, as ResNeXt has."""
    width = draw.choice((8, 16, 24))
    wide = width * max(1, outside // width)
    for first in (inside, outside):
        step = stride if first == inside else 1
        yield from (_normed(first, wide, 1), nn.ReLU())
        yield from (_normed(wide, wide, kernel, stride=step, groups=wide // width), nn.ReLU(), _normed(wide, outside, 1))


def channelwise(draw: random.Random, inside: int, outside: int, kernel: int, *, stride: int) -> Iterator[nn.Module]:
    """Patches of the level before, and two blocks channel by channel."""
    yield nn.Conv2d(inside, outside, stride, stride=stride)
    yield from (Channelwise(outside, kernel), Channelwise(outside, draw.choice((3, 7))))


def _language(model: Callable[[], nn.Module], vocabulary: int, seq_len: int) -> Job:
    batch = partial(next_token_batch, vocabulary=vocabulary, seq_len=seq_len)
    return Job(model, batch, token_loss, sample_unit="token", tokens_per_sample=seq_len)


def _images(seed: int, size: int, **shape: Any) -> Job:
    return Job(partial(pyramid, seed, **shape), partial(image_batch, image_size=size, classes=CLASSES), class_loss)


def _tables(features: int, *hidden: int) -> Job:
    config = MlpConfig(features, hidden, 10)
    return Job(partial(Mlp, config), partial(table_batch, features=features, classes=10), class_loss)


def _clicks() -> Job:
    config = DlrmConfig(tables=(20_000, 5_000, 40_000, 300, 12_000), width=32, bottom=(256, 32), top=(256, 128, 1))
    return Job(partial(Dlrm, config), partial(click_batch, dense=config.dense, tables=config.tables), click_loss)


def _diffusion() -> Job:
    config = UnetConfig(levels=(64, 128, 192), blocks_per_level=1, heads=4, context=256)
    return Job(partial(Unet, config), partial(diffusion_batch, latent_size=24, context=config.context), diffusion_loss)


def _encoder(config: BertConfig, seq_len: int) -> Job:
    batch = partial(masked_word_batch, vocabulary=config.vocabulary, seq_len=seq_len)
    return Job(partial(Bert, config), batch, token_loss, sample_unit="token", tokens_per_sample=seq_len)


def _patches(config: VitConfig) -> Job:
    return Job(partial(Vit, config), partial(image_batch, image_size=config.image_size, classes=config.classes), class_loss)


# Name, job, samples a step on a few cores. The first QUICK of them are those of --quick.
NETWORKS: tuple[tuple[str, Job, int], ...] = (
    ("perceptron, tiny", _tables(30, 48, 24), 64),
    ("perceptron, small", _tables(12, 96, 96, 96), 256),
    ("convolutions, tiny images", _images(13, 40, width=12, kernels=(3, 5), block=plain), 16),
    ("convolutions 3 x 3", _images(1, 160, width=40, kernels=(3,), block=dense), 4),
    ("gpt of width 512", _language(partial(Gpt2, Gpt2Config(6_000, 256, 512, 2, 8)), 6_000, 192), 3),
    ("convolutions by channel", _images(2, 128, width=24, kernels=(3, 5), block=mobile), 6),
    ("perceptron, wide", _tables(784, 2048, 4096, 1024), 24),
    ("llama of width 320", _language(partial(Llama, LlamaConfig(5_000, 320, 2, 5, 5, 896)), 5_000, 160), 3),
    ("patches", _patches(VitConfig(160, 16, 448, 2, 7, 1792, CLASSES)), 4),
    ("lstm of width 192", _language(partial(Recurrent, 3_000, 128, 192, 1), 3_000, 48), 16),
    ("unet of width 64", _diffusion(), 3),
    ("clicks", _clicks(), 512),
    ("perceptron, flat", _tables(6_000, 4096, 512), 6),
    ("wide convolutions", _images(6, 192, width=64, kernels=(3,), block=plain), 1),
    ("convolutions in groups", _images(9, 160, width=32, kernels=(3,), block=grouped), 4),
    ("patches, channel by channel", _images(10, 160, width=32, kernels=(7, 5), block=channelwise), 3),
    ("experts", _language(partial(Mixtral, MixtralConfig(4_000, 192, 2, 6, 3, 384, experts=6)), 4_000, 128), 4),
    ("encoder of width 384", _encoder(BertConfig(3_000, 256, 2, 384, 2, 6, 1536), 160), 3),
    ("convolutions 5 x 5 and 7 x 7", _images(3, 96, width=48, kernels=(5, 7, 3), block=dense), 6),
    ("convolutions 1 x 1", _images(4, 224, width=64, kernels=(1, 3), block=dense), 2),
    ("convolutions by channel, large images", _images(7, 224, width=16, kernels=(3, 5, 7), block=mobile), 2),
    ("gpt of width 960", _language(partial(Gpt2, Gpt2Config(16_000, 128, 960, 1, 15)), 16_000, 96), 2),
    ("lstm of width 640", _language(partial(Recurrent, 8_000, 256, 640, 2), 8_000, 24), 12),
    ("lstm of width 384", _language(partial(Recurrent, 2_000, 384, 384, 1), 2_000, 30), 32),
    ("llama of width 768", _language(partial(Llama, LlamaConfig(12_000, 768, 1, 12, 4, 2048)), 12_000, 256), 1),
    ("gpt of width 256", _language(partial(Gpt2, Gpt2Config(2_000, 512, 256, 3, 4)), 2_000, 384), 4),
    ("encoder of width 1024", _encoder(BertConfig(20_000, 128, 2, 1024, 1, 16, 4096), 64), 3),
    ("convolutions, small images", _images(5, 48, width=24, kernels=(3, 3, 5), block=dense), 32),
    ("convolutions in groups, small images", _images(11, 80, width=64, kernels=(3, 5), block=grouped), 8),
    ("patches of small images", _images(12, 96, width=48, kernels=(7, 3), block=channelwise), 8),
    ("perceptron, square", _tables(200, 256, 256, 256), 128),
    ("wide convolutions, large images", _images(8, 192, width=32, kernels=(3, 5), block=plain), 2),
)
QUICK = 17


def scaled(samples: int, device: torch.device) -> int:
    """Samples a step of a network on this device: as many more as keep a larger one as busy as a few cores."""
    if device.type != "cuda":
        return samples * max(1, torch.get_num_threads() // 4)
    return samples * max(4, torch.cuda.get_device_properties(device).multi_processor_count // 4)
