"""The job's model on its device, as a strategy requires it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from gpuwise.errors import GpuwiseError, JobError, message_of
from gpuwise.job import Job
from gpuwise.job.job_module import job_module
from gpuwise.job.keras.checks import check_keras
from gpuwise.notes import Note
from gpuwise.runtime.build.adapters import adapted
from gpuwise.runtime.build.deferred import DeferredModel, deferred_model, defers
from gpuwise.runtime.build.device_checks import explained_by_device
from gpuwise.runtime.build.placement import make_model, to_channels_last
from gpuwise.runtime.build.precision import parameter_dtype, with_fp8_products
from gpuwise.runtime.parallel.initial_weights import InitialWeights
from gpuwise.runtime.parallel.weights import same_weights
from gpuwise.runtime.parallel.world import World
from gpuwise.strategy import Strategy


@dataclass(frozen=True)
class JobModel:
    """A job's whole model, on all ranks alike.

    Attributes:
        model: on its device; its parameters are on the meta device if there are `weights`.
        weights: gives each rank's part of the model its values; None for a model that has them.
        notes: on how it was built.
    """

    model: nn.Module
    weights: InitialWeights | None = None
    notes: tuple[Note, ...] = ()


def model_of(job: Job, strategy: Strategy, device: torch.device, world: World | None) -> JobModel:
    """The job's whole model, with adapters or fp8 products if the strategy requires them.

    Ranks that keep parts of it build it without values, so that it need not fit in the memory of a device.

    Raises JobError when it cannot be built.
    """
    try:
        built = _built(job, strategy, device, world)
        model = built.model
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
    if world is not None and built.weights is None:
        same_weights(model, world)
    return JobModel(model, built.weights, built.notes)


def _built(job: Job, strategy: Strategy, device: torch.device, world: World | None) -> JobModel:
    def make() -> nn.Module:
        model = job_module(job.model)
        check_keras(model, strategy)
        return adapted(model, strategy)

    dtype, notes = parameter_dtype(strategy.precision), list[Note]()
    if world is not None and defers(world):
        deferred = deferred_model(make, device, dtype, world)
        if isinstance(deferred, DeferredModel):
            return JobModel(deferred.model, deferred.weights, deferred.notes)
        notes.append(deferred)
    return JobModel(make_model(make, device, dtype, on_host=strategy.adapter == "qlora"), notes=tuple(notes))
