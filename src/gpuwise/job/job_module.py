"""The module of a job, whichever library made it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwise.job.keras.backend import device_of_new_tensors, is_keras_model, loaded_keras, on_device

if TYPE_CHECKING:
    from torch import nn

    from gpuwise.job.job import Job


def module_of_job(job: Job) -> nn.Module:
    """What the job's model function makes, where PyTorch makes tensors; a Keras model as a plain module."""
    if loaded_keras() is None:
        model = job.model()
    else:
        with on_device(device_of_new_tensors()):
            model = job.model()
    if is_keras_model(model):
        from gpuwise.job.keras.module import module_of

        return module_of(model)  # type: ignore[arg-type]
    return model
