"""The optimizer that a Keras model was compiled with, as one of PyTorch's that makes the same updates."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

import torch
from torch.nn import Parameter
from torch.optim import Optimizer

from gpuwise.errors import UnsupportedError
from gpuwise.job.keras.backend import on_device
from gpuwise.job.keras.updates import RMSpropOfKeras, SGDOfKeras, adam_of_keras

if TYPE_CHECKING:
    import keras

OptimizerFunction = Callable[[Iterable[Parameter]], Optimizer]
Settings = Mapping[str, float]
Schedule = Callable[[int, int], float]


@dataclass(frozen=True)
class CompiledOptimizer:
    """What a Keras optimizer is here.

    Attributes:
        make: makes the optimizer of the parameters.
        learning_rate: its learning rate; 1 under a schedule, whose factors are then learning rates.
        schedule: "constant", or the Keras schedule.
        clip_norm: the largest norm of all gradients together; None for no limit.
    """

    make: OptimizerFunction
    learning_rate: float
    schedule: str | Schedule
    clip_norm: float | None


def compiled_optimizer(model: keras.Model) -> CompiledOptimizer:
    """The optimizer of a compiled model. Raises UnsupportedError, by name, for what would train otherwise here."""
    import keras

    optimizer = model.optimizer
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):  # gpuwise scales losses in fp16 by itself
        optimizer = optimizer.inner_optimizer
    kind = type(optimizer).__name__
    make = _MAKERS.get(kind)
    if make is None or not type(optimizer).__module__.startswith("keras."):
        raise UnsupportedError(
            f"{model.name} is compiled with {kind}, which has no equal in PyTorch.",
            [f"compile it with one of {', '.join(_MAKERS)}", "--optimizer adamw, or a Job with an optimizer of its own"],
        )
    for setting, way in _REFUSED.items():
        if getattr(optimizer, setting, None) not in (None, False):
            raise UnsupportedError(f"{kind}({setting}=...) of {model.name} is not taken over.", [way])
    if getattr(optimizer, "_exclude_from_weight_decay", None):
        raise UnsupportedError(
            f"{kind}.exclude_from_weight_decay of {model.name} is not taken over.", ["a Job with an optimizer of its own"]
        )
    rate = optimizer._learning_rate
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        learning_rate, schedule = 1.0, cast("str | Schedule", partial(_scheduled, rate))
    elif isinstance(rate, keras.Variable):
        learning_rate, schedule = float(rate), "constant"
    else:
        raise UnsupportedError(
            f"the learning rate of {kind} is a function of its own.", ["a number", "a keras.optimizers.schedules schedule"]
        )
    settings = {name: getattr(optimizer, name) for name in inspect.signature(make).parameters if hasattr(optimizer, name)}
    settings["scheduled"] = not isinstance(schedule, str)
    taken = inspect.signature(make).parameters
    if optimizer.weight_decay and "weight_decay" not in taken:
        raise UnsupportedError(
            f"{kind}(weight_decay=...) of {model.name} decays weights apart from the gradient, as PyTorch's {kind} does not.",
            ["AdamW, Adam, SGD or RMSprop, whose decay is taken over"],
        )
    settings["weight_decay"] = optimizer.weight_decay or 0.0
    make = partial(make, lr=learning_rate, **{name: value for name, value in settings.items() if name in taken})
    return CompiledOptimizer(make, learning_rate, schedule, optimizer.global_clipnorm)


def _scheduled(rate: keras.optimizers.schedules.LearningRateSchedule, step: int, steps: int) -> float:
    """The learning rate of a step, which Keras computes in tensors."""
    with on_device("cpu"):
        return float(rate(step))


# Settings of any Keras optimizer, and what to do instead.
_REFUSED = {
    "clipnorm": "global_clipnorm=..., the norm of all gradients together",
    "clipvalue": "global_clipnorm=...",
    "use_ema": "Job(ema_decay=...), of which evaluate and --export take the average",
    "gradient_accumulation_steps": "--accumulate N",
    "loss_scale_factor": "--precision amp-fp16, which scales losses",
}


def _sgd(
    parameters: Iterable[Parameter], *, lr: float, momentum: float, nesterov: bool, weight_decay: float, scheduled: bool
) -> Optimizer:
    if weight_decay or (momentum and scheduled):
        return SGDOfKeras(parameters, lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay)
    return torch.optim.SGD(parameters, lr=lr, momentum=momentum, nesterov=nesterov, foreach=True)


def _adam(
    parameters: Iterable[Parameter],
    *,
    lr: float,
    beta_1: float,
    beta_2: float,
    epsilon: float,
    amsgrad: bool,
    weight_decay: float,
) -> Optimizer:
    settings = {"lr": lr, "betas": (beta_1, beta_2), "weight_decay": weight_decay, "amsgrad": amsgrad, "fused": True}
    return adam_of_keras(parameters, epsilon=epsilon, **settings)


def _adagrad(parameters: Iterable[Parameter], *, lr: float, initial_accumulator_value: float, epsilon: float) -> Optimizer:
    # Keras takes the root of the sum and epsilon; in the sum from the start, epsilon is there in every step.
    return torch.optim.Adagrad(
        parameters, lr=lr, initial_accumulator_value=initial_accumulator_value + epsilon, eps=0.0, foreach=True
    )


def _adadelta(parameters: Iterable[Parameter], *, lr: float, rho: float, epsilon: float) -> Optimizer:
    return torch.optim.Adadelta(parameters, lr=lr, rho=rho, eps=epsilon, foreach=True)


def _nadam(parameters: Iterable[Parameter], *, lr: float, beta_1: float, beta_2: float, epsilon: float) -> Optimizer:
    # Keras lets the momentum rise by 0.96^t, PyTorch by 0.96^(t momentum_decay).
    return torch.optim.NAdam(parameters, lr=lr, betas=(beta_1, beta_2), eps=epsilon, momentum_decay=1.0, foreach=True)


def _adafactor(
    parameters: Iterable[Parameter],
    *,
    lr: float,
    beta_2_decay: float,
    epsilon_1: float,
    epsilon_2: float,
    clip_threshold: float,
) -> Optimizer:
    epsilons = (epsilon_1, epsilon_2)
    return torch.optim.Adafactor(parameters, lr=lr, beta2_decay=beta_2_decay, eps=epsilons, d=clip_threshold, foreach=True)


_MAKERS: dict[str, Callable[..., Optimizer]] = {
    "SGD": _sgd,
    "Adam": _adam,
    "AdamW": _adam,
    "RMSprop": RMSpropOfKeras,
    "Adagrad": _adagrad,
    "Adadelta": _adadelta,
    "Nadam": _nadam,
    "Adafactor": _adafactor,
}
