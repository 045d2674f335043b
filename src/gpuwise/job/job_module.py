"""The module that a job's model function makes, whichever library it is of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gpuwise.errors import JobError
from gpuwise.job.keras.backend import device_of_new_tensors, is_keras_model, loaded_keras, on_device

if TYPE_CHECKING:
    from torch import nn


def job_module(make: Callable[[], nn.Module]) -> nn.Module:
    """What a job's model function makes, where PyTorch makes tensors; a Keras model as a plain module."""
    if loaded_keras() is None:
        model = make()
    else:
        with on_device(device_of_new_tensors()):
            model = make()
    if is_keras_model(model):
        from gpuwise.job.keras.module import module_of

        return module_of(model)
    _check_sizes_known(model)
    return model


def _check_sizes_known(model: object) -> None:
    """Raises JobError for a module with lazy layers, whose parameters have no shapes before a first batch."""
    from torch import nn
    from torch.nn.parameter import is_lazy

    if isinstance(model, nn.Module) and (lazy := [name for name, parameter in model.named_parameters() if is_lazy(parameter)]):
        raise JobError(
            f"the job's model has lazy layers, whose sizes are unknown before a first batch: {', '.join(lazy[:3])}.",
            ["pass an example batch through the model in the job's model function", "give the layers their sizes"],
        )
