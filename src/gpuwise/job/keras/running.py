"""What a forward pass of Keras layers needs around it: a device, and in recomputed parts what the whole model's call set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, NoReturn

from gpuwise.errors import UnsupportedError
from gpuwise.job.keras.backend import on_device

if TYPE_CHECKING:
    import keras

_GLOBAL_SEEDS = "global_seed_generator"
_CALL = "current_call_ctx"


class _NoGlobalSeeds:
    """In place of Keras's seed generator of the process, whose state no checkpoint of a model has."""

    def next(self, ordered: bool = True) -> NoReturn:
        raise UnsupportedError(
            "a layer draws random numbers from the seeds of the process, whose state a checkpoint of the model does not have.",
            ["self.seeds = keras.random.SeedGenerator() in the layer, and seed=self.seeds where it draws"],
        )


@contextmanager
def running(device: str) -> Iterator[None]:
    """Inside, Keras computes on a device and draws from the seed generators of layers alone."""
    from keras.src.backend.common.global_state import get_global_attribute, set_global_attribute

    seeds = get_global_attribute(_GLOBAL_SEEDS)
    set_global_attribute(_GLOBAL_SEEDS, _NoGlobalSeeds())
    try:
        with on_device(device):
            yield
    finally:
        set_global_attribute(_GLOBAL_SEEDS, seeds)


def keep_context(layer: keras.Layer) -> None:
    """Lets a layer's forward run by itself, too, as recompute does in the middle of backward.

    Keras's layers learn from the call of the outermost one whether they train and in which type they compute.
    """
    vars(layer)["forward"] = partial(_forward, layer, layer.forward)


def _forward(layer: keras.Layer, forward: Callable[..., object], *arguments: object, **keywords: object) -> object:
    from keras.src.backend.common.global_state import get_global_attribute, set_global_attribute
    from keras.src.backend.common.variables import AutocastScope
    from keras.src.layers.layer import CallContext

    if get_global_attribute(_CALL) is not None:
        return forward(*arguments, **keywords)
    call = CallContext(entry_layer=layer)
    call.set_value("training", layer.training)
    set_global_attribute(_CALL, call)
    mixed = layer.compute_dtype != layer.variable_dtype
    try:
        with running(str(next(layer.parameters()).device)), AutocastScope(layer.compute_dtype if mixed else None):
            return forward(*arguments, **keywords)
    finally:
        set_global_attribute(_CALL, None)


@cache
def free_inputs_at_once() -> None:
    """Lets layers that are called with several tensors free them when they return, from now on.

    Keras sorts the dicts in what a layer is called with by functions that refer to themselves, and thereby hold the tensors
    until Python collects cycles: up to a fifth of a step's memory, by chance.
    """
    from keras.src.tree import torchtree_impl
    from torch.utils import _pytree as torch_tree

    sort = torchtree_impl._dict_to_ordered_dict

    def sorted_dicts(structure: object) -> object:
        kind = type(structure)
        if kind is dict:
            return {key: structure[key] for key in sorted(structure)}  # type: ignore[index, call-overload]
        if kind in (list, tuple):
            return kind([sorted_dicts(part) for part in structure])  # type: ignore[attr-defined]
        return sort(structure) if torch_tree._get_node_type(structure) in torch_tree.SUPPORTED_NODES else structure

    torchtree_impl._dict_to_ordered_dict = sorted_dicts
