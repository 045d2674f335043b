"""The presets as jobs: `trace/presets/table.py` lists them, `job/models` builds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

from torch import nn

from gpuwise.errors import unknown_name
from gpuwise.job.job import Job
from gpuwise.job.models.alexnet import AlexNet
from gpuwise.job.models.bert import BERT_SIZES, Bert, encode
from gpuwise.job.models.dlrm import Dlrm, DlrmConfig, click_batch, click_loss
from gpuwise.job.models.generation import generate
from gpuwise.job.models.gpt2 import GPT2_SIZES, Gpt2
from gpuwise.job.models.language import masked_word_batch, next_token_batch, token_loss, translation_batch
from gpuwise.job.models.llama import LLAMA_SIZES, Llama
from gpuwise.job.models.mixtral import Mixtral, MixtralConfig
from gpuwise.job.models.mlp import Mlp, MlpConfig, class_loss, image_batch, table_batch
from gpuwise.job.models.resnet import ResNet
from gpuwise.job.models.t5 import T5, T5Config
from gpuwise.job.models.unet import Unet, UnetConfig, diffusion_batch, diffusion_loss
from gpuwise.job.models.vit import Vit, VitConfig
from gpuwise.trace.presets.table import PRESETS, PresetInfo

LATENT_PIXELS = 8  # pixels an edge of one latent of the Stable Diffusion autoencoder


def preset_job(name: str, *, seq_len: int | None = None, image_size: int | None = None) -> Job:
    """The job of a preset.

    Arguments:
        name: a key of `PRESETS`.
        seq_len, image_size: other than the preset's own.

    Raises UnknownNameError for a name that is none, InputError for a size that the model cannot take.
    """
    if name not in PRESETS:
        raise unknown_name("preset", name, list(PRESETS), listing="gpuwise forecast --help")
    info = PRESETS[name]
    sizes = {key: value for key, value in (("seq_len", seq_len), ("image_size", image_size)) if value is not None}
    info.check_sizes(sizes)
    job = _BUILDERS[info.architecture](info, seq_len or info.seq_len or image_size or info.image_size or 0)
    return replace(
        job,
        name=name,
        optimizer=info.optimizer,
        learning_rate=info.learning_rate,
        samples=info.samples,
        sample_unit=info.sample_unit,
        seq_len=seq_len or info.seq_len,
        image_size=image_size or info.image_size,
        tokens_per_sample=seq_len or info.seq_len,
        context_length=info.context_length or info.max_seq_len,
        assumptions=info.assumptions(sizes),
    )


class _LanguageConfig(Protocol):
    @property
    def vocabulary(self) -> int: ...


Config = TypeVar("Config", bound=_LanguageConfig)


def _table(info: PresetInfo, size: int) -> Job:
    config = MlpConfig()
    return Job(partial(Mlp, config), partial(table_batch, features=config.features, classes=config.classes), class_loss)


def _image(model: Callable[[], nn.Module], info: PresetInfo, image_size: int) -> Job:
    return Job(model, partial(image_batch, image_size=image_size), class_loss)


def _vit(info: PresetInfo, image_size: int) -> Job:
    return _image(partial(Vit, VitConfig(image_size=image_size)), info, image_size)


def _decoder(configs: Mapping[str, Config], model: Callable[[Config], nn.Module], info: PresetInfo, seq_len: int) -> Job:
    config = configs[info.name]
    batch = partial(next_token_batch, vocabulary=config.vocabulary, seq_len=seq_len)
    return Job(partial(model, config), batch, token_loss, generate=generate)


def _mixtral(info: PresetInfo, seq_len: int) -> Job:
    return _decoder({info.name: MixtralConfig()}, Mixtral, info, seq_len)


def _bert(info: PresetInfo, seq_len: int) -> Job:
    config = BERT_SIZES[info.name]
    batch = partial(masked_word_batch, vocabulary=config.vocabulary, seq_len=seq_len)
    return Job(partial(Bert, config), batch, token_loss, forward=encode)


def _t5(info: PresetInfo, seq_len: int) -> Job:
    config = T5Config()
    batch = partial(translation_batch, vocabulary=config.vocabulary, seq_len=seq_len)
    return Job(partial(T5, config), batch, token_loss)


def _unet(info: PresetInfo, image_size: int) -> Job:
    config = UnetConfig()
    batch = partial(diffusion_batch, latent_size=image_size // LATENT_PIXELS, context=config.context)
    return Job(partial(Unet, config), batch, diffusion_loss)


def _dlrm(info: PresetInfo, size: int) -> Job:
    config = DlrmConfig()
    return Job(partial(Dlrm, config), partial(click_batch, dense=config.dense, tables=config.tables), click_loss)


# Each takes the preset and its one size: a sequence length or an image size, 0 where it has neither.
_BUILDERS: dict[str, Callable[[PresetInfo, int], Job]] = {
    "mlp": _table,
    "alexnet": partial(_image, AlexNet),
    "resnet": partial(_image, ResNet),
    "vit": _vit,
    "bert": _bert,
    "t5": _t5,
    "gpt2": partial(_decoder, GPT2_SIZES, Gpt2),
    "llama": partial(_decoder, LLAMA_SIZES, Llama),
    "mixtral": _mixtral,
    "unet": _unet,
    "dlrm": _dlrm,
}
