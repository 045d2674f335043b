"""The job's model on its device, as a strategy requires it."""

from __future__ import annotations

import torch
from torch import nn

from gpuwise.errors import GpuwiseError, JobError, message_of
from gpuwise.job import Job
from gpuwise.runtime.build.adapters import adapted
from gpuwise.runtime.build.device_checks import explained_by_device
from gpuwise.runtime.build.placement import make_model, to_channels_last
from gpuwise.runtime.build.precision import parameter_dtype, with_fp8_products
from gpuwise.strategy import Strategy


def model_of(job: Job, strategy: Strategy, device: torch.device) -> nn.Module:
    """The job's whole model on its device, with adapters or fp8 products if the strategy requires them.

    Raises JobError when it cannot be built.
    """
    try:
        model = make_model(
            lambda: adapted(job.model(), strategy),
            device,
            parameter_dtype(strategy.precision),
            on_host=strategy.adapter == "qlora",
        )
        if strategy.precision == "fp8":
            model = with_fp8_products(model, device)
        if strategy.channels_last:
            to_channels_last(model, device)
    except GpuwiseError:
        raise
    except Exception as error:  # the user's own code may raise anything
        if lacking := explained_by_device(error, device):
            raise lacking from error
        raise JobError(
            f"the model of {job.name or 'the job'} cannot be built: {type(error).__name__}: {message_of(error)}."
        ) from error
    return model
