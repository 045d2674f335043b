"""The networks whose steps `measure` observes: small variants of common models.

Their sizes are random with a fixed seed, so that every class of kernels runs at many sizes. None of them is a job of the
suite.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, Protocol

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
from gpuwise.measure.window_network import WindowNet
from gpuwise.runtime.devices import backend_of

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


class SqueezeExcite(nn.Module):
    """Squeeze and excitation: channels times weights computed from their means."""

    def __init__(self, width: int, narrow: int):
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(width, narrow, 1), nn.ReLU(), nn.Conv2d(narrow, width, 1), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x * self.inner(x.mean((2, 3), keepdim=True))
        return y


class ConvNextBlock(nn.Module):
    """ConvNeXt's block: a depthwise convolution, then a perceptron over channels, with a residual connection.

    The sum lies in memory as its first operand does: in channels-last, as in timm and torchvision.
    """

    def __init__(self, width: int, kernel: int):
        super().__init__()
        self.spatial = nn.Conv2d(width, width, kernel, padding=kernel // 2, groups=width)
        self.inner = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(self.spatial(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2) + x
        return y


class LstmLanguageModel(nn.Module):
    """Tokens (n, seq) -> logits (n, seq, vocabulary), by an LSTM."""

    def __init__(self, vocabulary: int, width: int, hidden: int, layers: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.lstm(self.embedding(tokens))[0])
        return logits


class MakesStage(Protocol):
    """Makes the layers of one level of a convolution_net, from `inside` to `outside` channels."""

    def __call__(self, draw: random.Random, inside: int, outside: int, kernel: int, *, stride: int) -> Iterator[nn.Module]: ...


def convolution_net(seed: int, *, width: int, kernels: Sequence[int], stage: MakesStage) -> nn.Module:
    """Four levels; each halves the image and about doubles the channels. `seed` draws its sizes."""
    draw = random.Random(seed)
    stem = draw.choice((3, 7, 11))
    layers: list[nn.Module] = [nn.Conv2d(3, width, stem, stride=2, padding=stem // 2, bias=False)]
    channels = width
    for level in range(4):
        wider = 8 * round(width * 2**level * draw.choice((1, 1.5, 2)) / 8)
        pooled = draw.random() < 0.4
        layers += [draw.choice((nn.MaxPool2d(3, 2, padding=1), nn.MaxPool2d(2)))] if pooled else []
        layers += stage(draw, channels, wider, draw.choice(kernels), stride=1 if pooled else 2)
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


def _conv_norm(inside: int, outside: int, kernel: int, *, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inside, outside, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outside))


def resnet_stage(draw: random.Random, inside: int, outside: int, kernel: int, *, stride: int) -> Iterator[nn.Module]:
    """ResNet: a strided convolution, a residual block with groups, and a bottleneck."""
    act, narrow = draw.choice(ACTIVATIONS), max(16, outside // 4)
    groups = draw.choice((1, 1, 4, 8))
    yield from (*_conv_norm(inside, outside, kernel, stride=stride), act())
    yield Residual(nn.Sequential(_conv_norm(outside, outside, 3, groups=groups), act(), _conv_norm(outside, outside, 1)))
    yield act()
    yield Residual(
        nn.Sequential(
            _conv_norm(outside, narrow, 1), act(), _conv_norm(narrow, narrow, kernel), act(), _conv_norm(narrow, outside, 1)
        )
    )
    yield act()


def vgg_stage(draw: random.Random, inside: int, outside: int, kernel: int, *, stride: int) -> Iterator[nn.Module]:
    """VGG: two wide convolutions without a norm."""
    yield from (nn.Conv2d(inside, outside, kernel, stride=stride, padding=kernel // 2), nn.ReLU())
    yield from (nn.Conv2d(outside, outside, kernel, padding=kernel // 2), nn.ReLU())


def mbconv_stage(draw: random.Random, inside: int, outside: int, kernel: int, *, stride: int) -> Iterator[nn.Module]:
    """MobileNet and EfficientNet: depthwise convolutions between pointwise ones, with squeeze and excitation."""
    act, wide = draw.choice((nn.SiLU, nn.Hardswish, nn.ReLU)), outside * draw.choice((2, 3, 4))
    yield from (_conv_norm(inside, wide, 1), act(), _conv_norm(wide, wide, kernel, stride=stride, groups=wide), act())
    yield from (SqueezeExcite(wide, max(8, wide // 16)), _conv_norm(wide, outside, 1))
    spatial = _conv_norm(outside, outside, draw.choice((3, 7)), groups=outside)
    yield Residual(nn.Sequential(spatial, _conv_norm(outside, wide, 1), act(), _conv_norm(wide, outside, 1)))


def resnext_stage(draw: random.Random, inside: int, outside: int, kernel: int, *, stride: int) -> Iterator[nn.Module]:
    """ResNeXt: grouped convolutions between pointwise ones."""
    width = draw.choice((8, 16, 24))
    wide = width * max(1, outside // width)
    for first in (inside, outside):
        step = stride if first == inside else 1
        yield from (_conv_norm(first, wide, 1), nn.ReLU())
        yield from (_conv_norm(wide, wide, kernel, stride=step, groups=wide // width), nn.ReLU(), _conv_norm(wide, outside, 1))


def convnext_stage(draw: random.Random, inside: int, outside: int, kernel: int, *, stride: int) -> Iterator[nn.Module]:
    """ConvNeXt: a strided convolution that downsamples, and two of its blocks."""
    yield nn.Conv2d(inside, outside, stride, stride=stride)
    yield from (ConvNextBlock(outside, kernel), ConvNextBlock(outside, draw.choice((3, 7))))


def language_job(model: Callable[[], nn.Module], vocabulary: int, seq_len: int) -> Job:
    batch = partial(next_token_batch, vocabulary=vocabulary, seq_len=seq_len)
    return Job(model, batch, token_loss, sample_unit="token", tokens_per_sample=seq_len)


def convolution_job(seed: int, size: int, *, width: int, kernels: Sequence[int], stage: MakesStage) -> Job:
    model = partial(convolution_net, seed, width=width, kernels=kernels, stage=stage)
    return Job(model, partial(image_batch, image_size=size, classes=CLASSES), class_loss)


def mlp_job(features: int, *hidden: int) -> Job:
    config = MlpConfig(features, hidden, 10)
    return Job(partial(Mlp, config), partial(table_batch, features=features, classes=10), class_loss)


def _dlrm(*tables: int, width: int) -> Job:
    config = DlrmConfig(tables=tables, width=width, bottom=(256, width), top=(256, 128, 1))
    return Job(partial(Dlrm, config), partial(click_batch, dense=config.dense, tables=config.tables), click_loss)


def _unet() -> Job:
    config = UnetConfig(levels=(64, 128, 192), blocks_per_level=1, heads=4, context=256)
    return Job(partial(Unet, config), partial(diffusion_batch, latent_size=24, context=config.context), diffusion_loss)


def bert_job(config: BertConfig, seq_len: int) -> Job:
    batch = partial(masked_word_batch, vocabulary=config.vocabulary, seq_len=seq_len)
    return Job(partial(Bert, config), batch, token_loss, sample_unit="token", tokens_per_sample=seq_len)


def vit_job(config: VitConfig) -> Job:
    return Job(partial(Vit, config), partial(image_batch, image_size=config.image_size, classes=config.classes), class_loss)


def window_job(size: int, *, width: int, heads: int, windows: tuple[int, int]) -> Job:
    model = partial(WindowNet, width=width, heads=heads, windows=windows, classes=CLASSES)
    return Job(model, partial(image_batch, image_size=size, classes=CLASSES), class_loss)


class ObservedNetwork(NamedTuple):
    """A network whose steps are observed.

    Attributes:
        name: name of the network.
        job: the job that trains it.
        samples: samples per step on a few cores.
    """

    name: str
    job: Job
    samples: int


# --quick observes the first QUICK networks.
NETWORKS: tuple[ObservedNetwork, ...] = (
    ObservedNetwork("MLP, tiny", mlp_job(30, 48, 24), 64),
    ObservedNetwork("MLP, small", mlp_job(12, 96, 96, 96), 256),
    ObservedNetwork("plain CNN, tiny images", convolution_job(13, 40, width=12, kernels=(3, 5), stage=vgg_stage), 16),
    ObservedNetwork("ResNet, 3 x 3", convolution_job(1, 160, width=40, kernels=(3,), stage=resnet_stage), 4),
    ObservedNetwork("GPT-2, width 512", language_job(partial(Gpt2, Gpt2Config(6_000, 256, 512, 2, 8)), 6_000, 192), 3),
    ObservedNetwork("depthwise convolution net", convolution_job(2, 128, width=24, kernels=(3, 5), stage=mbconv_stage), 6),
    ObservedNetwork("MLP, wide", mlp_job(784, 2048, 4096, 1024), 24),
    ObservedNetwork("Llama, width 320", language_job(partial(Llama, LlamaConfig(5_000, 320, 2, 5, 5, 896)), 5_000, 160), 3),
    ObservedNetwork("ViT", vit_job(VitConfig(160, 16, 448, 2, 7, 1792, CLASSES)), 4),
    ObservedNetwork("LSTM, width 192", language_job(partial(LstmLanguageModel, 3_000, 128, 192, 1), 3_000, 48), 16),
    ObservedNetwork("UNet, width 64", _unet(), 3),
    ObservedNetwork("DLRM", _dlrm(20_000, 5_000, 40_000, 300, 12_000, width=32), 512),
    ObservedNetwork("DLRM, a million rows", _dlrm(1_000_000, 250_000, 100, width=12), 1024),
    ObservedNetwork("windowed transformer", window_job(192, width=80, heads=4, windows=(6, 8)), 3),
    ObservedNetwork("MLP, one wide layer", mlp_job(6_000, 4096, 512), 6),
    ObservedNetwork("plain CNN, wide", convolution_job(6, 192, width=64, kernels=(3,), stage=vgg_stage), 1),
    ObservedNetwork("ResNeXt", convolution_job(9, 160, width=32, kernels=(3,), stage=resnext_stage), 4),
    ObservedNetwork("ConvNeXt", convolution_job(10, 160, width=32, kernels=(7, 5), stage=convnext_stage), 3),
    ObservedNetwork(
        "mixture of experts", language_job(partial(Mixtral, MixtralConfig(4_000, 192, 2, 6, 3, 384, experts=6)), 4_000, 128), 4
    ),
    ObservedNetwork("BERT, width 384", bert_job(BertConfig(3_000, 256, 2, 384, 2, 6, 1536), 160), 3),
    ObservedNetwork("ResNet, 5 x 5 and 7 x 7", convolution_job(3, 96, width=48, kernels=(5, 7, 3), stage=resnet_stage), 6),
    ObservedNetwork("ResNet, 1 x 1", convolution_job(4, 224, width=64, kernels=(1, 3), stage=resnet_stage), 2),
    ObservedNetwork(
        "depthwise convolution net, large images", convolution_job(7, 224, width=16, kernels=(3, 5, 7), stage=mbconv_stage), 2
    ),
    ObservedNetwork("GPT-2, width 960", language_job(partial(Gpt2, Gpt2Config(16_000, 128, 960, 1, 15)), 16_000, 96), 2),
    ObservedNetwork("LSTM, width 640", language_job(partial(LstmLanguageModel, 8_000, 256, 640, 2), 8_000, 24), 12),
    ObservedNetwork("LSTM, width 384", language_job(partial(LstmLanguageModel, 2_000, 384, 384, 1), 2_000, 30), 32),
    ObservedNetwork("Llama, width 768", language_job(partial(Llama, LlamaConfig(12_000, 768, 1, 12, 4, 2048)), 12_000, 256), 1),
    ObservedNetwork("GPT-2, width 256", language_job(partial(Gpt2, Gpt2Config(2_000, 512, 256, 3, 4)), 2_000, 384), 4),
    ObservedNetwork("BERT, width 1024", bert_job(BertConfig(20_000, 128, 2, 1024, 1, 16, 4096), 64), 3),
    ObservedNetwork("ResNet, small images", convolution_job(5, 48, width=24, kernels=(3, 3, 5), stage=resnet_stage), 32),
    ObservedNetwork("ResNeXt, small images", convolution_job(11, 80, width=64, kernels=(3, 5), stage=resnext_stage), 8),
    ObservedNetwork("ConvNeXt, small images", convolution_job(12, 96, width=48, kernels=(7, 3), stage=convnext_stage), 8),
    ObservedNetwork("windowed transformer, large windows", window_job(320, width=48, heads=3, windows=(10, 5)), 2),
    ObservedNetwork("windowed transformer, wide", window_job(128, width=192, heads=4, windows=(4, 16)), 3),
    ObservedNetwork("MLP, square", mlp_job(200, 256, 256, 256), 128),
    ObservedNetwork("plain CNN, large images", convolution_job(8, 192, width=32, kernels=(3, 5), stage=vgg_stage), 2),
)
QUICK = 19


def scaled(samples: int, device: torch.device) -> int:
    """Samples per step on this device, which keep it as busy as `samples` keep a few cores."""
    backend = backend_of(device)
    if backend.is_host:
        return samples * max(1, torch.get_num_threads() // 4)
    return samples * max(4, (backend.multiprocessors or 0) // 4)
