"""Hugging Face models from their config alone: no weights are read, nothing from the model's repository is executed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from inspect import signature

import torch
from torch import Tensor, nn
from torch.nn.functional import ctc_loss

from gpuwise.errors import JobError
from gpuwise.job.dependencies import require
from gpuwise.job.hf_batches import LABELS, Sizes, context_length, example_of
from gpuwise.job.hf_config import HfConfig, leave_out_random_parts, quantized, random_parts, read_config
from gpuwise.job.hf_tasks import MULTIMODAL, NOT_TRAINED, OF_ENCODER_DECODERS, AutoClass, HfTask, task_of
from gpuwise.job.job import Job
from gpuwise.job.torchvision_cpu import make_importable
from gpuwise.notes import Note
from gpuwise.notes import job as notes

_HEAD = re.compile("For[A-Z]")  # in the name of a class with a head


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
    task, named = task_of(transformers, config, reference)
    name = f"hf:{reference}"
    example = example_of(task.kind, config, name, Sizes(seq_len, image_size))
    headless = bool(config.architectures) and not named  # such as BertModel
    embeds, generates = headless and example.sample_unit == "token", task.kind == "next-token" and not headless
    make = _build_for_text if task.auto_class == MULTIMODAL else _build
    answers = model_embeddings if embeds else model_forward
    return Job(
        partial(make, getattr(transformers, task.auto_class), config, reference),
        example.batch,
        _loss(task.kind, config, reference),
        name=name,
        sample_unit=example.sample_unit,
        tokens_per_sample=example.tokens_per_sample,
        seq_len=example.seq_len,
        image_size=example.image_size,
        learning_rate=1e-3 if example.sample_unit == "image" else 1e-4,
        assumptions=(
            *example.assumptions,
            *(() if named else _notes_on_head(config, task, embeds=embeds)),
            *_notes_on(config, task, generates=generates),
        ),
        generate=model_generate if generates else None,
        context_length=context_length(config) if example.sample_unit == "token" else None,
        forward=None if task.kind in OF_ENCODER_DECODERS else answers,
    )


def _notes_on_head(config: HfConfig, task: HfTask, *, embeds: bool) -> Iterator[Note]:
    """That a model has a head which its config does not name. embeds: whether a forward pass ends before it."""
    model = ", ".join(config.architectures or [config.model_type])
    if _HEAD.search(model):
        yield notes.another_head(model=model, task=task.kind)
    elif task.kind != "image-class":  # a classifier is what such a model is
        yield notes.assumed_head(model=model, task=task.kind, served=not embeds)


def _notes_on(config: HfConfig, task: HfTask, *, generates: bool) -> Iterator[Note]:
    """What is assumed of a model beside its head and its batches."""
    if narrow := quantized(config):
        method, weights = narrow
        yield notes.quantized_config(method=method, weights=weights if generates else "")
    if task.auto_class == MULTIMODAL:
        yield notes.text_of_multimodal(model=config.model_type)
    if parts := random_parts(config):
        yield notes.random_parts_left_out(parts=" and ".join(parts))
    yield notes.assumed_optimizer(optimizer="adamw")


def _loss(kind: str, config: HfConfig, reference: str) -> Callable[[nn.Module, dict[str, Tensor]], Tensor]:
    if kind in NOT_TRAINED:
        return partial(no_loss, reference)
    if kind == "image-text":
        return contrastive_loss
    if kind == "transcript":
        blank, reduction, zero_infinity = (
            getattr(config, key) for key in ("pad_token_id", "ctc_loss_reduction", "ctc_zero_infinity")
        )
        return partial(transcript_loss, blank=blank, reduction=reduction, zero_infinity=zero_infinity)
    return model_loss


def model_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The loss that a Hugging Face model computes itself when it is given labels."""
    return model(**batch).loss


def contrastive_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """The loss of images and texts that belong together, among those of the batch."""
    return model(**batch, return_loss=True).loss


def transcript_loss(model: nn.Module, batch: dict[str, Tensor], *, blank: int, reduction: str, zero_infinity: bool) -> Tensor:
    """Connectionist temporal classification of transcripts that are all as long, as the model computes it.

    The model's own packs the labels, which makes a shape of their values. Further arguments as for
    torch.nn.functional.ctc_loss, from the config.
    """
    scores = _logits(model, batch).log_softmax(-1, dtype=torch.float32).transpose(0, 1)
    frames, n = scores.shape[:2]
    labels = batch["labels"]
    lengths = torch.full((n,), frames), torch.full((n,), labels.shape[1])
    return ctc_loss(scores, labels, *lengths, blank=blank, reduction=reduction, zero_infinity=zero_infinity)


def no_loss(reference: str, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Stands for a loss that needs targets which gpuwise does not make, such as the boxes of objects."""
    raise JobError(
        f"hf:{reference} is trained on targets that gpuwise does not make, such as the boxes of objects.",
        ["--mode infer, or gpuwise serve-plan", "write a Job with your own batch and loss: path/to/file.py:job"],
    )


def model_forward(model: nn.Module, batch: dict[str, Tensor]) -> object:
    """The output of a Hugging Face model for a batch, without a loss."""
    return model(**_inputs(batch))


def _logits(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return model(**_inputs(batch)).logits


def model_embeddings(model: nn.Module, batch: dict[str, Tensor]) -> object:
    """The last hidden state of a Hugging Face model, without its head."""
    encoder = model.base_model
    assert isinstance(encoder, nn.Module)
    return encoder(**_inputs(batch))


def _inputs(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in batch.items() if name not in LABELS}


def model_generate(model: nn.Module, tokens: Tensor, cache: object) -> tuple[Tensor, object]:
    """One pass over new tokens, with the cache that the model makes itself."""
    name = "cache" if "cache" in signature(type(model).forward).parameters else "past_key_values"  # before transformers 5.24
    output = model(input_ids=tokens, use_cache=True, logits_to_keep=1, **{name: cache})
    return output.logits, getattr(output, name)


def _build(auto_class: AutoClass, config: HfConfig, reference: str) -> nn.Module:
    config.use_cache = False  # a cache of keys and values belongs to generation
    leave_out_random_parts(config)
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
