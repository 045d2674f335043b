"""A Keras model as a plain module: parameters and buffers that PyTorch may move, replace and shard, and Keras reads.

A layer of Keras keeps its variables' tensors twice, in the variables and in a ParameterDict of the outermost model, so a
tensor that PyTorch replaces in one is not replaced in the other. Here each layer registers its own, once, and its variables
read them from there.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Container, Iterator, MutableMapping
from functools import cache
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from gpuwise.errors import JobError, UnsupportedError
from gpuwise.job.blocks import LISTS_LAYERS
from gpuwise.job.keras.policy import policy_of
from gpuwise.job.keras.running import free_inputs_at_once, keep_context, running

if TYPE_CHECKING:
    import keras


class KerasModule(nn.Module):
    """A built Keras model, of which it takes over the layers.

    Attributes:
        keras_model: the model itself; it is no submodule, its layers are.
        dtype_policy: name of the policy by which the layers compute, "float32" or "mixed_bfloat16", say.
    """

    keras_model: keras.Model

    def __init__(self, model: keras.Model):
        super().__init__()
        free_inputs_at_once()
        vars(self)["keras_model"] = model
        self.dtype_policy = policy_of(model)
        _adopt(model, self)
        _check_all_taken(model, self)

    @property
    def device(self) -> str:
        """Where the model is, as Keras names it."""
        tensor = next(self.parameters(), None)
        return str(torch.get_default_device() if tensor is None else tensor.device)

    def forward(self, *arguments: object, **keywords: object) -> object:
        """The model's outputs, in training mode or not."""
        model = self.keras_model
        if model._call_has_training_arg:
            keywords.setdefault("training", self.training)
        with running(self.device):
            return model(*arguments, **keywords)

    def compute_loss(self, x: object, y: object, y_pred: object, sample_weight: object = None) -> Tensor:
        """The compiled loss and all losses that layers add, as `fit` computes them."""
        with running(self.device):
            loss: Tensor = self.keras_model._compute_loss(
                x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=self.training
            )
            return loss


def module_of(model: keras.Model) -> KerasModule:
    """The module of a Keras model. Raises JobError for one that is not built."""
    if not model.built:
        raise JobError(
            f"the Keras model {model.name} is not built: its layers have no weights yet.",
            ["begin it with keras.Input(...)", "call model.build(input_shape) where it is made"],
        )
    return KerasModule(model)


def _adopt(layer: keras.Layer, owner: nn.Module, done: set[int] | None = None) -> None:
    """Registers a layer's variables and sublayers in `owner`: the layer itself, or the module of the outermost model."""
    done = set() if done is None else done
    done.add(id(layer))
    for name in ("_torch_params", "_functional"):  # Keras's own ParameterDict, and what a Sequential runs inside
        if name in layer._modules:
            vars(layer)[name] = {} if name == "_torch_params" else layer._modules[name]
            del layer._modules[name]
    vars(layer).setdefault("_torch_params", {})  # Keras makes one wherever this attribute is missing
    _take_variables(layer, owner)
    named = dict(_named_sublayers(layer))
    if any(name not in layer._modules for name in named):
        vars(owner)[LISTS_LAYERS] = True
    for name, sublayer in named.items():
        owner._modules[name] = sublayer
        if vars(owner).get(LISTS_LAYERS) and sublayer._layers:
            keep_context(sublayer)
        if id(sublayer) not in done:
            _adopt(sublayer, sublayer, done)


def _take_variables(layer: keras.Layer, owner: nn.Module) -> None:
    """Makes parameters of the layer's trainable variables and buffers of the others, the states of its seeds included."""
    seeds = [generator.state for generator in layer._seed_generators]
    for kind, variables in (("trainable", layer._trainable_variables), ("other", [*layer._non_trainable_variables, *seeds])):
        tables = owner._parameters if kind == "trainable" else owner._buffers
        table = cast("MutableMapping[str, Tensor | None]", tables)
        for variable in variables:
            if _is_bound(variable):  # of a layer that two models share
                continue
            # A colon keeps the name apart from the layer's attribute, which is the variable, when PyTorch sets it.
            key = _free_name(f"{variable.name}:0".replace(".", "_"), table)
            value = variable._value
            table[key] = value if kind == "trainable" else value.detach()
            vars(variable).pop("_value")
            variable.__class__ = _bound_variable()
            variable.table, variable.key = table, key


@cache
def _bound_variable() -> type:
    """The class of variables whose tensor is the one in a table of a module."""
    from keras import Variable

    class BoundVariable(Variable):
        table: MutableMapping[str, Tensor]
        key: str

        @property
        def _value(self) -> Tensor:
            return self.table[self.key]

        @_value.setter
        def _value(self, value: Tensor) -> None:
            self.table[self.key] = value

    return BoundVariable


def _is_bound(variable: object) -> bool:
    return isinstance(variable, _bound_variable())


def _named_sublayers(layer: keras.Layer) -> Iterator[tuple[str, keras.Layer]]:
    """The direct sublayers by the attribute that holds them, or else by class, counted: `dense`, `dense_1`.

    Keras's own names count over a process, so that the second of two equal models has others.
    """
    attributes = {id(module): name for name, module in layer._modules.items()}
    taken = Counter(attributes.values())
    for sublayer in layer._layers:
        name = attributes.get(id(sublayer)) or _free_name(_snake_case(type(sublayer).__name__), taken)
        taken[name] += 1
        yield name, sublayer


def _snake_case(name: str) -> str:
    """`LayerNormalization` as `layer_normalization`, `Conv2D` as `conv2d`: as Keras names layers."""
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", re.sub(r"\W+", "", name))).lower()


def _free_name(name: str, taken: Container[str]) -> str:
    candidates = itertools.chain([name], (f"{name}_{count}" for count in itertools.count(1)))
    return next(each for each in candidates if each not in taken)


def _check_all_taken(model: keras.Model, module: nn.Module) -> None:
    """Raises UnsupportedError for variables that no layer owns, and for those that are not trained by gradients alone."""
    for variable in model.variables:
        if not _is_bound(variable):
            raise UnsupportedError(
                f"the variable {variable.path} of {model.name} belongs to none of its layers.",
                ["make it by add_weight in the layer that uses it"],
            )
        if variable.constraint is not None or variable.overwrite_with_gradient:
            kind = "a constraint" if variable.constraint is not None else "an update of its own"
            raise UnsupportedError(
                f"the variable {variable.path} of {model.name} has {kind}, which Keras applies after each update.",
                ["leave it out", "write a gpuwise.Job with a `step` that applies it (docs/jobs.md)"],
            )
