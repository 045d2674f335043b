"""Dtype policies of Keras, and the precisions in which gpuwise runs models with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwise.errors import PrecisionError, UnsupportedError

if TYPE_CHECKING:
    import keras
    from torch import nn

# Layers with a policy other than float32 cast by themselves, so that one precision is theirs.
PRECISION_OF = {"mixed_bfloat16": "amp-bf16", "mixed_float16": "amp-fp16", "bfloat16": "bf16", "float16": "fp16"}
PURE = ("bf16", "fp16")  # precisions that change the dtype of parameters, of which a float32 layer takes no notice


def policy_of(model: keras.Model) -> str:
    """The policy of a model's layers: the one beside float32, which single layers may keep in a mixed model.

    Raises UnsupportedError for several, and for quantized and 64-bit ones.
    """
    policies = {layer.dtype_policy.name for layer in model._flatten_layers() if layer.variables}
    others = sorted(policies - {"float32"})
    if not others:
        return "float32"
    if len(others) > 1:
        raise UnsupportedError(
            f"the layers of {model.name} have several dtype policies: {', '.join(others)}.",
            ["one policy beside float32: keras.config.set_dtype_policy(...) before the model is made"],
        )
    if others[0] not in PRECISION_OF:
        raise UnsupportedError(
            f"the dtype policy {others[0]} of {model.name} has no precision here.", [f"float32, {', '.join(PRECISION_OF)}"]
        )
    return others[0]


def check_policy(model: nn.Module, precision: str) -> None:
    """Raises PrecisionError for a Keras model whose layers compute otherwise than in a precision."""
    policy = getattr(model, "dtype_policy", None)
    if not isinstance(policy, str) or "keras_model" not in vars(model):
        return
    expected = PRECISION_OF.get(policy)
    if expected is None and precision not in PURE:
        return
    if expected == precision:
        return
    if expected is None:
        pure = {"bf16": "bfloat16", "fp16": "float16"}[precision]
        raise PrecisionError(
            f"the Keras layers have the dtype policy float32, and cast what they compute to it, so {precision} is not theirs.",
            [f'keras.config.set_dtype_policy("{pure}") in the file', f"--precision amp-{precision}"],
        )
    raise PrecisionError(
        f"the Keras layers have the dtype policy {policy}, which is {expected}, not {precision}.",
        [f"--precision {expected}", 'keras.config.set_dtype_policy("float32"), which leaves the precision to gpuwise'],
    )
