"""Exports weights as plain safetensors, for transformers, timm and other programs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from gpuwise.atomic import written_whole
from gpuwise.errors import InputError
from gpuwise.runtime.build.names import plain_name
from gpuwise.runtime.checkpoint.files import Files
from gpuwise.runtime.checkpoint.state import pack
from gpuwise.runtime.checkpoint.tensors_file import write_tensors

WEIGHTS = "model.safetensors"  # the name transformers and timm look for


def plain_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state dict with the names of the unwrapped model."""
    return {plain_name(name): tensor for name, tensor in weights.items()}


def export_weights(model: nn.Module, path: str | os.PathLike[str]) -> Path:
    """Writes the weights of a model as safetensors; a tensor shared by several names once.

    Arguments:
        path: a name that ends in .safetensors, or a folder, in which it is model.safetensors. Both may be new.

    For a model of transformers its config.json is written beside, so that `from_pretrained(folder)` works; timm takes
    `create_model(..., checkpoint_path=file)`. Each file is whole or not there, and what was there stays until then.
    Returns the file. Raises InputError where it cannot be written.
    """
    path = Path(path)
    target = path if path.suffix == ".safetensors" else path / WEIGHTS
    tensors = pack({"model": plain_weights(model.state_dict())}).tensors.get("model", {})
    config = _config(model)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _write(tensors, target)
        if config is not None:
            with written_whole(target.with_name("config.json")) as file:
                file.write(config.encode())
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror}.", ["choose another path"]) from error
    return target


def _write(tensors: Mapping[str, Tensor], target: Path) -> None:
    aside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        write_tensors(Files(), aside, tensors)
        os.replace(aside, target)
        Files().sync_folder(target.parent)
    finally:
        aside.unlink(missing_ok=True)


def _config(model: nn.Module) -> str | None:
    """config.json of a model of transformers, with what `save_pretrained` adds to it."""
    model = getattr(model, "_orig_mod", model)
    config: Any = deepcopy(getattr(model, "config", None))
    if not hasattr(config, "to_json_string") or not hasattr(model, "base_model_prefix"):
        return None
    config.architectures = [type(model).__name__]
    return str(config.to_json_string())
