"""The presets as jobs: `trace/presets/table.py` says what they are, `job/models` builds them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from gpuwise.errors import InputError, unknown_name
from gpuwise.job.job import Job
from gpuwise.job.models.alexnet import AlexNet
from gpuwise.job.models.bert import BERT_SIZES, Bert
from gpuwise.job.models.dlrm import Dlrm, DlrmConfig, click_batch, click_loss
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

LONGEST_SEQUENCE = 1_048_576
"""Beyond any published model; an upper bound so that a slip of the keyboard is answered at once."""

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
    _check_sizes(info, seq_len=seq_len, image_size=image_size)
    job = _BUILDERS[info.family](info, seq_len or info.seq_len, image_size or info.image_size)
    return replace(
        job, name=name, optimizer=info.optimizer, learning_rate=info.learning_rate, samples=info.samples,
        sample_unit=info.sample_unit, seq_len=seq_len or info.seq_len, image_size=image_size or info.image_size,
        tokens_per_sample=seq_len or info.seq_len,
        assumptions=_size_assumptions(info, seq_len, image_size) + job.assumptions,
    )  # fmt: skip


def _check_sizes(info: PresetInfo, *, seq_len: int | None, image_size: int | None) -> None:
    if seq_len is not None:
        if info.seq_len is None:
            raise InputError(f"{info.name} has no sequence length.", ["leave out --seq-len"])
        longest = info.max_seq_len or LONGEST_SEQUENCE
        if not 1 <= seq_len <= longest:
            raise InputError(f"{info.name} takes sequences of 1 to {longest:,} tokens, got {seq_len}.",
                             [f"--seq-len {info.seq_len}"])  # fmt: skip
    if image_size is not None:
        if info.image_size is None:
            raise InputError(f"{info.name} has no image size.", ["leave out --image-size"])
        if not info.min_image_size <= image_size <= 16_384 or image_size % info.image_multiple:
            multiple = f" in multiples of {info.image_multiple}" if info.image_multiple > 1 else ""
            raise InputError(f"{info.name} takes images of {info.min_image_size} to 16,384 pixels an edge{multiple}, "
                             f"got {image_size}.", [f"--image-size {info.image_size}"])  # fmt: skip


def _size_assumptions(info: PresetInfo, seq_len: int | None, image_size: int | None) -> tuple[str, ...]:
    guesses = []
    if info.seq_len is not None and seq_len is None:
        guesses.append(f"assumed sequence length {info.seq_len}; --seq-len changes it")
    if info.image_size is not None and image_size is None:
        guesses.append(f"assumed images of {info.image_size}x{info.image_size} pixels; --image-size changes it")
    if info.samples is not None:
        guesses.append(f"assumed {info.samples:,} samples an epoch ({info.data_set}); --samples changes it")
    guesses.append(f"assumed the {info.optimizer} optimizer; --optimizer changes it")
    return tuple(guesses)


def _table(info: PresetInfo, seq_len: Any, image_size: Any) -> Job:
    config = MlpConfig()
    return Job(partial(Mlp, config), partial(table_batch, features=config.features, classes=config.classes), class_loss)


def _image(model: Any, info: PresetInfo, seq_len: Any, image_size: int) -> Job:
    return Job(model, partial(image_batch, image_size=image_size), class_loss)


def _vit(info: PresetInfo, seq_len: Any, image_size: int) -> Job:
    return _image(partial(Vit, VitConfig(image_size=image_size)), info, seq_len, image_size)


def _decoder(sizes: dict[str, Any], model: Any, info: PresetInfo, seq_len: int, image_size: Any) -> Job:
    config = sizes[info.name]
    batch = partial(next_token_batch, vocabulary=config.vocabulary, seq_len=seq_len)
    return Job(partial(model, config), batch, token_loss)


def _mixtral(info: PresetInfo, seq_len: int, image_size: Any) -> Job:
    job = _decoder({info.name: MixtralConfig()}, Mixtral, info, seq_len, image_size)
    guess = "assumed balanced routing: every expert processes tokens x 2 / 8; an uneven router takes longer"
    return replace(job, assumptions=(guess,))


def _bert(info: PresetInfo, seq_len: int, image_size: Any) -> Job:
    config = BERT_SIZES[info.name]
    batch = partial(masked_word_batch, vocabulary=config.vocabulary, seq_len=seq_len)
    guess = "assumed full sequences: padding would count as work"
    return Job(partial(Bert, config), batch, token_loss, assumptions=(guess,))


def _t5(info: PresetInfo, seq_len: int, image_size: Any) -> Job:
    config = T5Config()
    batch = partial(translation_batch, vocabulary=config.vocabulary, seq_len=seq_len)
    guesses = ("assumed a decoder as long as the encoder; --seq-len changes both",
               "tokens count the encoder's input, not the decoder's")  # fmt: skip
    return Job(partial(T5, config), batch, token_loss, assumptions=guesses)


def _unet(info: PresetInfo, seq_len: Any, image_size: int) -> Job:
    config = UnetConfig()
    batch = partial(diffusion_batch, latent_size=image_size // LATENT_PIXELS, context=config.context)
    guess = "assumed latents and text embeddings are prepared beforehand: only the UNet runs"
    return Job(partial(Unet, config), batch, diffusion_loss, assumptions=(guess,))


def _dlrm(info: PresetInfo, seq_len: Any, image_size: Any) -> Job:
    config = DlrmConfig()
    guesses = ("assumed tables of at most 1,000,000 rows of 64 numbers (1.43 GB in fp32)",
               "assumed dense gradients for the embedding tables")  # fmt: skip
    return Job(partial(Dlrm, config), partial(click_batch, dense=config.dense, tables=config.tables), click_loss,
               assumptions=guesses)  # fmt: skip


_BUILDERS: dict[str, Callable[[PresetInfo, Any, Any], Job]] = {
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
