"""Dtype policies of Keras, and the precisions in which gpuwise runs models with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuwise.errors import PrecisionError, UnsupportedError

if TYPE_CHECKING:
    import keras

# Layers with a policy other than float32 cast by themselves, so that these precisions are theirs, the usual one first. Pure
# ones keep parameters in 16 bits, too, as shards of a mixed precision do.
PRECISIONS_OF = {
    "mixed_bfloat16": ("amp-bf16", "bf16"),
    "mixed_float16": ("amp-fp16", "fp16"),
    "bfloat16": ("bf16",),
    "float16": ("fp16",),
}
PURE = ("bf16", "fp16")  # of which a layer of policy float32 takes no notice: it casts what it computes to float32


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
    if others[0] not in PRECISIONS_OF:
        raise UnsupportedError(
            f"the dtype policy {others[0]} of {model.name} has no precision here.", [f"float32, {', '.join(PRECISIONS_OF)}"]
        )
    return others[0]


def check_policy(policy: str, precision: str) -> None:
    """Raises PrecisionError for a precision in which layers of a policy do not compute."""
    fitting = PRECISIONS_OF.get(policy)
    if fitting is None and precision in PURE:
        pure, mixed = {"bf16": ("bfloat16", "mixed_bfloat16"), "fp16": ("float16", "mixed_float16")}[precision]
        raise PrecisionError(
            f"Keras layers of the dtype policy float32 compute in float32, also where parameters or shards are in {precision}.",
            [f'keras.config.set_dtype_policy("{mixed}"), or "{pure}", in the file', f"--precision amp-{precision}"],
        )
    if fitting is not None and precision not in fitting:
        raise PrecisionError(
            f"the Keras layers have the dtype policy {policy}, which is {fitting[0]}, not {precision}.",
            [f"--precision {fitting[0]}", 'keras.config.set_dtype_policy("float32"), which leaves the precision to gpuwise'],
        )
