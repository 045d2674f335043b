"""Which strategies a Keras model goes with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwise.errors import UnsupportedError
from gpuwise.job.blocks import repeated_blocks
from gpuwise.job.keras.policy import check_policy
from gpuwise.strategy import Strategy

if TYPE_CHECKING:
    from torch import nn


def check_keras(model: nn.Module, strategy: Strategy) -> None:
    """Raises PrecisionError or UnsupportedError for a Keras model that cannot run under a strategy; others pass."""
    if "keras_model" not in vars(model):
        return
    check_policy(str(vars(model)["dtype_policy"]), strategy.precision)
    for axis in ("tp", "pp", "cp", "ep"):
        if getattr(strategy.mesh, axis) > 1:
            raise UnsupportedError(
                f"a mesh with {axis} splits PyTorch's own layers, not those of Keras.", ["--mesh dp=N, or dp_shard=N"]
            )
    if strategy.recompute != "none":
        for block in repeated_blocks(model):
            if changing := _changing_state(block):
                raise UnsupportedError(
                    f"recompute would run {type(block).__name__} twice, and each forward changes its {changing}.",
                    ["--recompute none", "dropout without a seed, LayerNormalization in place of BatchNormalization"],
                )


def _changing_state(block: nn.Module) -> str:
    """A state that a forward pass of a block changes; "" for none."""
    import keras

    for layer in block.modules():
        plain_dropout = type(layer) is keras.layers.Dropout and layer.seed is None and layer.noise_shape is None
        if not plain_dropout:  # whose seed PyTorch's dropout on this backend does not take
            for name in layer._buffers:
                return name.partition(":")[0]
    return ""
