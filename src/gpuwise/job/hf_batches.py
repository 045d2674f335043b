"""Example batches of Hugging Face models: random inputs and labels of the task's shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from gpuwise.errors import InputError, JobError
from gpuwise.job.hf_config import HfConfig
from gpuwise.job.hf_tasks import NOT_TRAINED
from gpuwise.job.models.language import masked_word_batch, next_token_batch, translation_batch
from gpuwise.notes import Note
from gpuwise.notes import job as notes

LABELS = ("labels", "start_positions", "end_positions")  # what only the loss reads
DEFAULT_SEQ_LEN = 1024
CHOICES = 4  # of a question of SWAG, on which models of this task are tuned
SOUND_S, SOUND_HZ = 10, 16_000
TRANSCRIPT_TOKENS = 150  # of so much sound, an assumption: 15 characters a second

# Position tables of these start after the padding index: two of their positions are never used.
_OFFSET_POSITIONS = ("roberta", "xlm-roberta", "camembert", "longformer")
# Pixels of an edge where the config has none: of ImageNet's crops, of ADE20K's (SegFormer), of RT-DETR's and DPT's own.
_USUAL_SIZES = {"image-class": 224, "image-text": 224, "pixel-class": 512, "boxes": 640, "depth": 384}

Tensors: TypeAlias = dict[str, Tensor]


@dataclass(frozen=True)
class Sizes:
    """The sizes that a user names; None for those of the model."""

    seq_len: int | None
    image_size: int | None


@dataclass(frozen=True)
class Example:
    """What samples of a task are.

    Attributes:
        batch: n -> tensors by the names of the model's arguments.
        sample_unit: what throughput counts.
        tokens_per_sample, seq_len, image_size: as of a Job; None where there are none.
        assumptions: guesses behind the sizes.
    """

    batch: Callable[[int], Tensors]
    sample_unit: str
    tokens_per_sample: int | None = None
    seq_len: int | None = None
    image_size: int | None = None
    assumptions: tuple[Note, ...] = ()


class _ExampleOf(Protocol):
    def __call__(self, kind: str, config: HfConfig, name: str, sizes: Sizes, /) -> Example: ...


def example_of(kind: str, config: HfConfig, name: str, sizes: Sizes) -> Example:
    """The samples of a kind of task. name: of the job, for errors.

    Raises InputError for a size that the model does not take, JobError for sound in a form that is not known.
    """
    return KINDS[kind](kind, config, name, sizes)


def context_length(config: HfConfig) -> int | None:
    """Most positions of a sequence of text; None where any length runs."""
    text = config.get_text_config()
    # T5 has n_positions as a habit of training: its biases are relative and any length runs.
    longest: int | None = getattr(text, "max_position_embeddings", None)
    if longest and text.model_type in _OFFSET_POSITIONS:
        longest -= 2
    return longest


def _of_text(kind: str, config: HfConfig, name: str, sizes: Sizes) -> Example:
    _refuse_image_size(name, sizes)
    text = config.get_text_config()
    usual = getattr(text, "n_positions", None)
    length, guesses = _length(name, sizes, longest=context_length(config), usual=usual)
    choices = CHOICES if kind == "choice" else 1
    if kind == "choice":
        guesses = (*guesses, notes.assumed_choices(choices=CHOICES))
    batch = partial(_text_batch, kind, vocabulary=text.vocab_size, seq_len=length, labels=config.num_labels)
    assumed = (*guesses, notes.assumed_full_sequences())
    return Example(batch, "token", tokens_per_sample=choices * length, seq_len=length, assumptions=assumed)


def _of_images(kind: str, config: HfConfig, name: str, sizes: Sizes) -> Example:
    _refuse_seq_len(name, sizes)
    height, width, guesses = _shape(config, sizes, _USUAL_SIZES[kind])
    channels = getattr(config, "num_channels", 3)
    batch = partial(_image_batch, kind, shape=(channels, height, width), labels=config.num_labels)
    return Example(batch, "image", image_size=height if height == width else None, assumptions=guesses)


def _of_pairs(kind: str, config: HfConfig, name: str, sizes: Sizes) -> Example:
    """Images, each with a text."""
    vision, text = _vision_config(config), config.get_text_config()
    height, width, guesses = _shape(vision, sizes, _USUAL_SIZES[kind])
    shape = (getattr(vision, "num_channels", 3), height, width)
    length, more = _length(name, sizes, longest=context_length(config), usual=None)
    batch = partial(_pair_batch, shape=shape, vocabulary=text.vocab_size, seq_len=length)
    size = height if height == width else None
    assumed = (*guesses, *more, notes.pairs_of_micro_batch())
    return Example(batch, "image", seq_len=length, image_size=size, assumptions=assumed)


def _of_sound(kind: str, config: HfConfig, name: str, sizes: Sizes) -> Example:
    _refuse_image_size(name, sizes)
    input_name, shape, guesses = _sound(config, name)
    if kind == "sound-class":
        _refuse_seq_len(name, sizes)
        batch = partial(_sound_batch, input_name, shape, labels=config.num_labels)
        return Example(batch, "sample", assumptions=guesses)
    if kind == "speech":
        length, more = _length(name, sizes, longest=getattr(config, "max_target_positions", None), usual=None)
    else:  # a frame is one token, or none
        length, more = _length(name, sizes, longest=_frames(config, shape), usual=TRANSCRIPT_TOKENS)
    batch = partial(_sound_batch, input_name, shape, labels=config.vocab_size, seq_len=length)
    return Example(batch, "sample", seq_len=length, assumptions=(*guesses, *more))


_TEXT = ("next-token", "masked-word", "translation", "text-class", "token-class", "answer-span", "choice")
KINDS: dict[str, _ExampleOf] = {
    **dict.fromkeys(_TEXT, _of_text),
    **dict.fromkeys(("image-class", "pixel-class", *NOT_TRAINED), _of_images),
    "image-text": _of_pairs,
    **dict.fromkeys(("speech", "transcript", "sound-class"), _of_sound),
}


def _length(name: str, sizes: Sizes, *, longest: int | None, usual: int | None) -> tuple[int, tuple[Note, ...]]:
    """Tokens of a sequence, with a note where they are assumed.

    longest: that the model takes; None for any. usual: of the task; None for DEFAULT_SEQ_LEN, which is the most assumed.
    """
    if sizes.seq_len is None:
        length = min(DEFAULT_SEQ_LEN, usual or DEFAULT_SEQ_LEN, longest or DEFAULT_SEQ_LEN)
        return length, (notes.assumed_sequence_length(length=length),)
    if longest and sizes.seq_len > longest:
        raise InputError(
            f"{name} takes sequences of up to {longest:,} tokens (its config), got {sizes.seq_len}.", [f"--seq-len {longest}"]
        )
    return sizes.seq_len, ()


def _shape(config: HfConfig, sizes: Sizes, usual: int) -> tuple[int, int, tuple[Note, ...]]:
    """Height and width of images, with a note where they are assumed."""
    if sizes.image_size is not None:
        return sizes.image_size, sizes.image_size, ()
    size = getattr(config, "image_size", None) or usual
    if isinstance(size, list | tuple):
        height, width = (*size, size[-1])[:2]
        if height != width:
            return height, width, (notes.assumed_image_shape(height=height, width=width),)
        size = height
    return size, size, (notes.assumed_image_size(pixels=size),)


def _sound(config: HfConfig, name: str) -> tuple[str, tuple[int, ...], tuple[Note, ...]]:
    """What a model calls the sound that it reads, and the shape of a sample of it."""
    if hasattr(config, "conv_stride"):  # Wav2Vec2, HuBERT, WavLM: they read the wave
        return "input_values", (SOUND_S * SOUND_HZ,), (notes.assumed_sound(seconds=SOUND_S, rate_hz=SOUND_HZ),)
    if config.model_type == "whisper":  # two frames become one position
        channels, positions = _whole(config, "num_mel_bins"), _whole(config, "max_source_positions")
        return "input_features", (channels, 2 * positions), ()
    if config.model_type == "audio-spectrogram-transformer":
        return "input_values", (_whole(config, "max_length"), _whole(config, "num_mel_bins")), ()
    raise JobError(
        f"{name} is a {config.model_type}, and gpuwise does not know in which form that reads sound.",
        ["write a Job with your own batch and loss: path/to/file.py:job"],
    )


def _vision_config(config: HfConfig) -> HfConfig:
    vision: HfConfig = getattr(config, "vision_config", config)
    return vision


def _whole(config: HfConfig, key: str) -> int:
    value: int = getattr(config, key)
    return value


def _frames(config: HfConfig, shape: tuple[int, ...]) -> int | None:
    """Positions that the layers at the front make of a wave; None of what is no wave."""
    if len(shape) != 1:
        return None
    frames = shape[0]
    kernels: Sequence[int] = getattr(config, "conv_kernel", ())
    strides: Sequence[int] = getattr(config, "conv_stride", ())
    for kernel, stride in zip(kernels, strides, strict=False):
        frames = (frames - kernel) // stride + 1
    return frames


def _refuse_seq_len(name: str, sizes: Sizes) -> None:
    if sizes.seq_len is not None:
        raise InputError(f"{name} has no sequence length.", ["leave out --seq-len"])


def _refuse_image_size(name: str, sizes: Sizes) -> None:
    if sizes.image_size is not None:
        raise InputError(f"{name} has no image size.", ["leave out --image-size"])


def _text_batch(kind: str, n: int, *, vocabulary: int, seq_len: int, labels: int) -> Tensors:
    if kind == "translation":
        batch = translation_batch(n, vocabulary=vocabulary, seq_len=seq_len)
        return {"input_ids": batch["tokens"], "labels": batch["labels"]}  # the model moves the labels itself
    if kind == "masked-word":
        batch = masked_word_batch(n, vocabulary=vocabulary, seq_len=seq_len)
        return {"input_ids": batch["tokens"], "labels": batch["labels"]}
    if kind == "next-token":
        batch = next_token_batch(n, vocabulary=vocabulary, seq_len=seq_len)
        return {"input_ids": batch["tokens"], "labels": batch["tokens"]}  # the model moves the labels itself
    if kind == "choice":
        tokens = torch.randint(0, vocabulary, (n, CHOICES, seq_len))
        return {"input_ids": tokens, "labels": torch.randint(0, CHOICES, (n,))}
    tokens = torch.randint(0, vocabulary, (n, seq_len))
    if kind == "answer-span":
        start, end = torch.randint(0, seq_len, (2, n)).unbind()
        return {"input_ids": tokens, "start_positions": start, "end_positions": end}
    shape = (n, seq_len) if kind == "token-class" else (n,)
    return {"input_ids": tokens, "labels": torch.randint(0, labels, shape)}


def _image_batch(kind: str, n: int, *, shape: tuple[int, int, int], labels: int) -> Tensors:
    images = {"pixel_values": torch.randn(n, *shape)}
    if kind in NOT_TRAINED:
        return images
    return {**images, "labels": torch.randint(0, labels, (n, *shape[1:]) if kind == "pixel-class" else (n,))}


def _pair_batch(n: int, *, shape: tuple[int, int, int], vocabulary: int, seq_len: int) -> Tensors:
    return {"input_ids": torch.randint(0, vocabulary, (n, seq_len)), "pixel_values": torch.randn(n, *shape)}


def _sound_batch(input_name: str, shape: tuple[int, ...], n: int, *, labels: int, seq_len: int | None = None) -> Tensors:
    sound = {input_name: torch.randn(n, *shape)}
    if seq_len is None:
        return {**sound, "labels": torch.randint(0, labels, (n,))}
    return {**sound, "labels": torch.randint(1, labels, (n, seq_len))}  # 0 is mostly what CTC reads as a pause
