"""Hugging Face models from their config alone: no weights are read, nothing from the model's repository is executed."""

from __future__ import annotations

from collections.abc import Container
from functools import partial
from inspect import signature
from types import ModuleType
from typing import Protocol

import torch
from torch import Tensor, nn

from gpuwise.errors import InputError, JobError
from gpuwise.job.dependencies import require
from gpuwise.job.hf_config import HfConfig, quantized, read_config
from gpuwise.job.job import Job
from gpuwise.job.models.language import masked_word_batch, next_token_batch, translation_batch
from gpuwise.job.torchvision_cpu import make_importable
from gpuwise.notes import job as notes

DEFAULT_SEQ_LEN = 1024

# Position tables of these start after the padding index: two of their positions are never used.
_OFFSET_POSITIONS = ("roberta", "xlm-roberta", "camembert", "longformer")

# What a class name of config.architectures ends in, transformers' Auto class, and the kind of example batch.
_MULTIMODAL = "AutoModelForImageTextToText"
_TASKS = (
    ("ForCausalLM", "AutoModelForCausalLM", "next-token"),
    ("LMHeadModel", "AutoModelForCausalLM", "next-token"),
    ("ForMaskedLM", "AutoModelForMaskedLM", "masked-word"),
    ("ForPreTraining", "AutoModelForMaskedLM", "masked-word"),
    ("ForConditionalGeneration", "AutoModelForSeq2SeqLM", "translation"),
    ("ForConditionalGeneration", _MULTIMODAL, "next-token"),  # Gemma 3, Qwen2.5-VL, Llama 4: their text is served and trained
    ("ForSequenceClassification", "AutoModelForSequenceClassification", "text-class"),
    ("ForImageClassification", "AutoModelForImageClassification", "image-class"),
)


class AutoClass(Protocol):
    """A class such as transformers.AutoModelForCausalLM, which chooses a model's class by its config."""

    _model_mapping: Container[type]

    def from_config(self, config: HfConfig, *, dtype: torch.dtype, attn_implementation: str | None = None) -> nn.Module: ...


def hf_job(reference: str, *, seq_len: int | None = None, image_size: int | None = None) -> Job:
    """The job of a Hugging Face config, with the task that its `architectures` name.

    Arguments:
        reference: a folder with a config.json, or a hub id such as "openai-community/gpt2".
        seq_len, image_size: of the example batch.

    Raises MissingDependencyError, JobError (no config, a task that is not known), InputError (a size it cannot take).
    """
    make_importable()  # transformers imports torchvision where it is installed
    transformers = require("transformers", purpose=f"read hf:{reference}")
    config = read_config(transformers, reference)
    auto_class, kind, named = _task(transformers, config, reference)
    multimodal = auto_class is getattr(transformers, _MULTIMODAL, None)
    make = partial(_build_for_text if multimodal else _build, auto_class, config, reference)
    name = f"hf:{reference}"
    optimizer = notes.assumed_optimizer(optimizer="adamw")
    if kind == "image-class":
        if seq_len is not None:
            raise InputError(f"{name} has no sequence length.", ["leave out --seq-len"])
        size = image_size or _edge(config) or 224
        guess = notes.assumed_image_size(pixels=size)
        batch = partial(_image_batch, size=size, channels=getattr(config, "num_channels", 3), labels=config.num_labels)
        return Job(
            make,
            batch,
            model_loss,
            name=name,
            sample_unit="image",
            image_size=size,
            forward=model_forward,
            assumptions=(*((guess,) if image_size is None else ()), optimizer),
        )
    if image_size is not None:
        raise InputError(f"{name} has no image size.", ["leave out --image-size"])
    text = config.get_text_config()
    length = _seq_len(text, seq_len, name)
    guess = notes.assumed_sequence_length(length=length)
    headless = bool(config.architectures) and not named  # such as BertModel
    model = ", ".join(config.architectures or [config.model_type])
    head = () if named else (notes.assumed_head(model=model, task=kind, served=not headless),)
    narrow = quantized(config)
    kept = (notes.quantized_config(method=narrow[0], weights=narrow[1]),) if narrow else ()
    alone = (notes.text_of_multimodal(model=config.model_type),) if multimodal else ()
    guesses = (*((guess,) if seq_len is None else ()), *head, *kept, *alone, notes.assumed_full_sequences(), optimizer)
    batch = partial(_text_batch, kind, vocabulary=text.vocab_size, seq_len=length, labels=config.num_labels)
    return Job(
        make,
        batch,
        model_loss,
        name=name,
        sample_unit="token",
        tokens_per_sample=length,
        seq_len=length,
        learning_rate=1e-4,
        assumptions=guesses,
        generate=model_generate if kind == "next-token" and not headless else None,
        context_length=_context_length(text),
        forward=None if kind == "translation" else model_embeddings if headless else model_forward,
    )


def model_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The loss that a Hugging Face model computes itself when it is given labels."""
    return model(**batch).loss


def model_forward(model: nn.Module, batch: dict[str, Tensor]) -> object:
    """The output of a Hugging Face model for a batch, without a loss."""
    return model(**_inputs(batch))


def model_embeddings(model: nn.Module, batch: dict[str, Tensor]) -> object:
    """The last hidden state of a Hugging Face model, without its head."""
    encoder = model.base_model
    assert isinstance(encoder, nn.Module)
    return encoder(**_inputs(batch))


def _inputs(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in batch.items() if name != "labels"}


def model_generate(model: nn.Module, tokens: Tensor, cache: object) -> tuple[Tensor, object]:
    """One pass over new tokens, with the cache that the model makes itself."""
    name = "cache" if "cache" in signature(type(model).forward).parameters else "past_key_values"  # before transformers 5.24
    output = model(input_ids=tokens, use_cache=True, logits_to_keep=1, **{name: cache})
    return output.logits, getattr(output, name)


def _task(transformers: ModuleType, config: HfConfig, reference: str) -> tuple[AutoClass, str, bool]:
    """The class that builds the model, the kind of its batches, and whether the config names the task."""
    encoder_decoder = bool(getattr(config, "is_encoder_decoder", False))
    for architecture in config.architectures or []:
        for ending, class_name, kind in _TASKS:
            if architecture.endswith(ending) and not (encoder_decoder and class_name == _MULTIMODAL):
                auto_class = getattr(transformers, class_name)
                if type(config) in auto_class._model_mapping:
                    return auto_class, kind, True
    # No head named (T5Model, BertModel): the head this family is pretrained with.
    for class_name, kind in dict.fromkeys((class_name, kind) for _, class_name, kind in _TASKS):
        auto_class = getattr(transformers, class_name)
        if encoder_decoder == (kind == "translation") and type(config) in auto_class._model_mapping:
            if kind == "next-token" and type(config) in transformers.AutoModelForMaskedLM._model_mapping:
                continue  # encoders such as BERT can be read as decoders too, but are not trained so
            return auto_class, kind, False
    tasks = ", ".join(dict.fromkeys(ending for ending, *_ in _TASKS))
    raise JobError(
        f"hf:{reference} is a {config.model_type} with architectures {config.architectures}, a task gpuwise cannot "
        f"make batches for (it can for {tasks}, of models that read text or images).",
        ["write a Job with your own batch and loss: path/to/file.py:job"],
    )


def _build(auto_class: AutoClass, config: HfConfig, reference: str) -> nn.Module:
    config.use_cache = False  # a cache of keys and values belongs to generation
    try:
        try:
            return auto_class.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
        except ValueError:  # a model without fused attention
            return auto_class.from_config(config, dtype=torch.float32, attn_implementation="eager")
    except Exception as error:
        raise JobError(
            f"hf:{reference} cannot be built from its config: {type(error).__name__}: {error}.",
            ["check that the config is complete", "try another version of transformers"],
        ) from error


def _build_for_text(auto_class: AutoClass, config: HfConfig, reference: str) -> nn.Module:
    """The model, of which what text does not reach is frozen: no gradient comes there, and replicas would wait for one."""
    model = _build(auto_class, config, reference)
    parts: list[nn.Module | None] = [
        getattr(model, name)() for name in ("get_decoder", "get_input_embeddings", "get_output_embeddings")
    ]
    reached = {id(parameter) for part in parts if part is not None for parameter in part.parameters()}
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in reached)
    return model


def _context_length(text: HfConfig) -> int | None:
    """Most positions of a sequence; None where any length runs."""
    # T5 has n_positions as a habit of training: its biases are relative and any length runs.
    longest: int | None = getattr(text, "max_position_embeddings", None)
    if longest and text.model_type in _OFFSET_POSITIONS:
        longest -= 2
    return longest


def _seq_len(text: HfConfig, requested: int | None, name: str) -> int:
    longest = _context_length(text)
    if requested is None:
        return min(DEFAULT_SEQ_LEN, longest or getattr(text, "n_positions", None) or DEFAULT_SEQ_LEN)
    if longest and requested > longest:
        raise InputError(
            f"{name} takes sequences of up to {longest:,} tokens (its config), got {requested}.", [f"--seq-len {longest}"]
        )
    return requested


def _edge(config: HfConfig) -> int | None:
    size = getattr(config, "image_size", None)
    return size[0] if isinstance(size, list | tuple) else size


def _text_batch(kind: str, n: int, *, vocabulary: int, seq_len: int, labels: int) -> dict[str, Tensor]:
    if kind == "text-class":
        return {"input_ids": torch.randint(0, vocabulary, (n, seq_len)), "labels": torch.randint(0, labels, (n,))}
    if kind == "translation":
        batch = translation_batch(n, vocabulary=vocabulary, seq_len=seq_len)
        return {"input_ids": batch["tokens"], "labels": batch["labels"]}  # the model moves the labels itself
    if kind == "masked-word":
        batch = masked_word_batch(n, vocabulary=vocabulary, seq_len=seq_len)
        return {"input_ids": batch["tokens"], "labels": batch["labels"]}
    batch = next_token_batch(n, vocabulary=vocabulary, seq_len=seq_len)
    return {"input_ids": batch["tokens"], "labels": batch["tokens"]}  # the model moves the labels itself


def _image_batch(n: int, *, size: int, channels: int, labels: int) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(n, channels, size, size), "labels": torch.randint(0, labels, (n,))}
