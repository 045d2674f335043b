"""Image models of timm by name, never with weights."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import nn

from gpuwise.errors import InputError, JobError, MissingDependencyError, unknown_name
from gpuwise.job.dependencies import require
from gpuwise.job.job import Job
from gpuwise.job.models.mlp import class_loss, image_batch
from gpuwise.job.torchvision_cpu import make_importable
from gpuwise.notes import job as notes


def timm_job(name: str, *, seq_len: int | None = None, image_size: int | None = None) -> Job:
    """The job of a timm model: image classification at the size its own config names.

    Raises MissingDependencyError, UnknownNameError, InputError (a size the model cannot take), JobError.
    """
    if importlib.util.find_spec("timm") is not None:
        make_importable()  # timm imports torchvision
    try:
        timm = require("timm", purpose=f"build timm:{name}")
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"timm is installed, but it needs {error.name}, which is not.", ['pip install "gpuwise[timm]"']
        ) from error
    model_name = name.partition(".")[0]  # "vit_base_patch16_224.augreg_in21k": the part after the dot names weights
    if not timm.is_model(model_name):
        raise unknown_name(
            "timm model", model_name, timm.list_models(), listing="python -c 'import timm; print(*timm.list_models())'"
        )
    if seq_len is not None:
        raise InputError(f"timm:{name} has no sequence length.", ["leave out --seq-len"])
    channels, size, fixed, classes = _input(timm, model_name)
    other_size = image_size if image_size != size else None
    make = partial(_build, timm, model_name, {"img_size": other_size} if fixed and other_size is not None else {})
    if other_size is not None:
        _check_size(make, name, channels=channels, requested=other_size, own=size)
    edge = image_size or size
    guesses = () if image_size else (notes.assumed_image_size(pixels=edge),)
    if channels != 3:
        raise JobError(f"timm:{name} takes images of {channels} channels, not 3.", ["write a Job with your own batch"])
    if not classes:
        guesses = (*guesses, notes.no_classifier(model=f"timm:{model_name}"))
    return Job(
        make,
        partial(image_batch, image_size=edge, classes=classes or 1),
        class_loss if classes else _feature_loss,
        name=f"timm:{name}",
        sample_unit="image",
        image_size=edge,
        assumptions=(*guesses, notes.assumed_optimizer(optimizer="adamw")),
    )


def _feature_loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    features: torch.Tensor = model(batch["x"])
    return features.float().square().mean()


def _build(timm: ModuleType, model_name: str, options: dict[str, int]) -> nn.Module:
    try:
        model: nn.Module = timm.create_model(model_name, pretrained=False, **options)
        return model
    except Exception as error:
        raise JobError(
            f"timm:{model_name} cannot be built: {type(error).__name__}: {error}.", ["try another version of timm"]
        ) from error


def _input(timm: ModuleType, model_name: str) -> tuple[int, int, bool, int]:
    """Channels, edge in pixels, whether the edge is fixed at build, and classes."""
    with torch.device("meta"):
        model: Any = _build(timm, model_name, {})
    config = model.default_cfg
    channels, height, _ = config.get("input_size", (3, 224, 224))
    return channels, height, bool(config.get("fixed_input_size", False)), getattr(model, "num_classes", 1000)


def _check_size(make: Callable[[], nn.Module], name: str, *, channels: int, requested: int, own: int) -> None:
    """Runs two images through on `meta`, where it costs nothing. Raises InputError when the model cannot."""
    try:
        with torch.device("meta"):
            make()(torch.empty(2, channels, requested, requested))
    except Exception as error:  # whatever the model raises on a shape it does not expect
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"timm:{name} cannot take images of {requested}x{requested} pixels: {reason}", [f"--image-size {own}"]
        ) from error
