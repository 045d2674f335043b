"""The members of the suite as jobs. Models have the sizes of their papers, or are smaller ones of the same architecture."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from torch import Tensor, nn

from gpuwise.job import Job
from gpuwise.job.models.alexnet import AlexNet
from gpuwise.job.models.bert import Bert, BertConfig
from gpuwise.job.models.digit_net import DigitNet, digit_batch
from gpuwise.job.models.dlrm import CRITEO_ROWS, Dlrm, DlrmConfig, click_batch, click_loss
from gpuwise.job.models.gpt2 import Gpt2, Gpt2Config
from gpuwise.job.models.language import masked_word_batch, next_token_batch, token_loss
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.job.models.lstm import Lstm, LstmConfig
from gpuwise.job.models.mixtral import Mixtral, MixtralConfig
from gpuwise.job.models.mlp import Mlp, MlpConfig, class_loss, image_batch, table_batch
from gpuwise.job.models.resnet import ResNet
from gpuwise.job.models.unet import Unet, UnetConfig, diffusion_batch, diffusion_loss
from gpuwise.job.models.vit import Vit, VitConfig
from gpuwise.job.presets import LATENT_PIXELS
from gpuwise.measure.suite import Member

VIT_S = VitConfig(width=384, heads=6, hidden=1536)  # Touvron et al. 2021 (DeiT), table 1
LLAMA = LlamaConfig(vocabulary=32_000, width=512, layers=8, heads=8, kv_heads=4, hidden=1408, rope_theta=10_000.0)
MOE = MixtralConfig(vocabulary=32_000, width=512, layers=4, heads=8, kv_heads=4, hidden=1024)
UNET = UnetConfig(levels=(128, 256, 512, 512))
DLRM = DlrmConfig(tables=tuple(min(rows, 100_000) for rows in CRITEO_ROWS))
MLP = MlpConfig()


class TokenBatch(Protocol):
    """A function that makes random token batches."""

    def __call__(self, n: int, *, vocabulary: int, seq_len: int) -> dict[str, Tensor]: ...


def suite_job(member: Member) -> Job:
    """The job of a member, with the member's name."""
    return _BUILDERS[member.name](member)


def _image(model: Callable[[], nn.Module], optimizer: str, rate: float, member: Member) -> Job:
    assert member.image_size is not None
    return Job(
        model,
        partial(image_batch, image_size=member.image_size),
        class_loss,
        optimizer,
        learning_rate=rate,
        name=member.name,
        sample_unit="image",
        image_size=member.image_size,
    )


def _words(model: Callable[[], nn.Module], vocabulary: int, batch: TokenBatch, member: Member) -> Job:
    assert member.seq_len is not None
    return Job(
        model,
        partial(batch, vocabulary=vocabulary, seq_len=member.seq_len),
        token_loss,
        learning_rate=1e-4,
        name=member.name,
        sample_unit="token",
        tokens_per_sample=member.seq_len,
        seq_len=member.seq_len,
    )


def _table(member: Member) -> Job:
    batch = partial(table_batch, features=MLP.features, classes=MLP.classes)
    return Job(partial(Mlp, MLP), batch, class_loss, name=member.name)


def _digits(member: Member) -> Job:
    return Job(DigitNet, digit_batch, class_loss, name=member.name, sample_unit="image", image_size=member.image_size)


def _unet(member: Member) -> Job:
    assert member.image_size is not None
    batch = partial(diffusion_batch, latent_size=member.image_size // LATENT_PIXELS, context=UNET.context)
    return Job(
        partial(Unet, UNET),
        batch,
        diffusion_loss,
        learning_rate=1e-4,
        name=member.name,
        sample_unit="image",
        image_size=member.image_size,
    )


def _dlrm(member: Member) -> Job:
    batch = partial(click_batch, dense=DLRM.dense, tables=DLRM.tables)
    return Job(partial(Dlrm, DLRM), batch, click_loss, name=member.name)


_BUILDERS: dict[str, Callable[[Member], Job]] = {
    "mlp": _table,
    "digits-cnn": _digits,
    "alexnet": partial(_image, AlexNet, "momentum", 1e-2),
    "resnet50": partial(_image, ResNet, "momentum", 1e-2),
    "vit": partial(_image, partial(Vit, VIT_S), "adamw", 3e-4),
    "bert": partial(_words, partial(Bert, BertConfig()), BertConfig.vocabulary, masked_word_batch),
    "gpt2": partial(_words, partial(Gpt2, Gpt2Config()), Gpt2Config.vocabulary, next_token_batch),
    "llama": partial(_words, partial(Llama, LLAMA), LLAMA.vocabulary, next_token_batch),
    "moe": partial(_words, partial(Mixtral, MOE), MOE.vocabulary, next_token_batch),
    "unet": _unet,
    "lstm": partial(_words, partial(Lstm, LstmConfig()), LstmConfig.vocabulary, next_token_batch),
    "dlrm": _dlrm,
}
