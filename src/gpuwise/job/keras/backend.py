"""Keras on its PyTorch backend, and the device on which it makes tensors."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType

from gpuwise.errors import UnsupportedError
from gpuwise.job.dependencies import require

_BACKEND = "KERAS_BACKEND"  # which Keras reads once, when it is imported


def choose_backend() -> None:
    """Lets a coming `import keras` take the PyTorch backend, unless the user has chosen one."""
    os.environ.setdefault(_BACKEND, "torch")


def import_keras(*, purpose: str) -> ModuleType:
    """Keras on its PyTorch backend.

    Arguments:
        purpose: what it is needed for, completing "... is needed to".

    Raises MissingDependencyError without Keras, UnsupportedError where it runs on another backend.
    """
    choose_backend()
    if "keras" not in sys.modules and (chosen := os.environ[_BACKEND]) != "torch":
        raise _other_backend(chosen)  # whose package may not even be installed
    keras = require("keras", purpose=purpose)
    if not hasattr(keras, "backend") or not hasattr(keras, "KerasTensor"):
        raise UnsupportedError("gpuwise runs Keras 3; this is an older Keras.", ['pip install "gpuwise[keras]"'])
    if (running := keras.backend.backend()) != "torch":
        raise _other_backend(running)
    return keras


def _other_backend(backend: str) -> UnsupportedError:
    return UnsupportedError(
        f"Keras runs on its {backend} backend here, and gpuwise forecasts and trains PyTorch programs.",
        [f"leave {_BACKEND} unset, or set {_BACKEND}=torch, before keras is imported"],
    )


def loaded_keras() -> ModuleType | None:
    """Keras, if this process has imported it on its PyTorch backend."""
    keras = sys.modules.get("keras")
    backend = getattr(getattr(keras, "backend", None), "backend", None)
    return keras if backend is not None and backend() == "torch" else None


def is_keras_model(value: object) -> bool:
    """Whether an object is a keras.Model on the PyTorch backend."""
    keras = loaded_keras()
    return keras is not None and isinstance(value, keras.Model)


def on_device(device: str) -> AbstractContextManager[object]:
    """Inside, Keras makes tensors on a device, such as "cuda:0"; without Keras, nothing happens.

    Keras asks neither `torch.device(...)` contexts nor its inputs: a device scope of its own decides, and where there is
    none the first accelerator of the machine.
    """
    keras = loaded_keras()
    return nullcontext() if keras is None else keras.device(device)


def device_of_new_tensors() -> str:
    """The device on which PyTorch makes tensors here: `meta` inside `torch.device("meta")`."""
    import torch

    return str(torch.empty(0).device)


@contextmanager
def model_without_memory() -> Iterator[None]:
    """Inside, Keras makes models on `meta`, but keeps the numbers of optimizers: learning rates are variables, too."""
    import torch
    from keras.optimizers import Optimizer

    make = Optimizer.__init__

    def made_on_cpu(self: object, *arguments: object, **keywords: object) -> None:
        with torch.device("cpu"), on_device("cpu"):
            make(self, *arguments, **keywords)

    Optimizer.__init__ = made_on_cpu
    try:
        with torch.device("meta"), on_device("meta"):
            yield
    finally:
        Optimizer.__init__ = make
