"""Optimizers, and the kernels that each one's update can run in."""

from __future__ import annotations

from gpuwise.errors import InputError, UnsupportedError
from gpuwise.strategy.checks import check_choice

OPTIMIZERS = ("sgd", "momentum", "adam", "adamw", "adafactor", "muon", "adamw-8bit", "adamw-4bit")
OPTIMIZER_KERNELS = ("for-loop", "foreach", "fused")
# What each optimizer's update can run in, the usual one first (see kernels_for). Adafactor's own default is the loop,
# because foreach holds intermediates of all tensors at once. torchao compiles its update into fused kernels.
KERNELS_OF = {
    **dict.fromkeys(("sgd", "momentum", "adam", "adamw"), ("fused", "foreach", "for-loop")),
    "adafactor": ("for-loop", "foreach"),
    "muon": ("for-loop",),
    **dict.fromkeys(("adamw-8bit", "adamw-4bit"), ("fused",)),
}


def nothing_for_muon(model: str) -> UnsupportedError:
    """The error for a model without matrices in repeated blocks. model: its name."""
    return UnsupportedError(
        f"{model} has no matrices in repeated blocks for muon to update.",
        ["--optimizer adamw", "group the layers in a torch.nn.ModuleList or Sequential"],
    )


def fused_sgd_fault(*, on_cpu: bool, in_16_bits: bool, scaled: bool) -> str | None:
    """Why PyTorch's fused SGD trains wrongly there; None where it is right.

    Arguments:
        on_cpu: the update runs in host memory.
        in_16_bits: some of the parameters are held in 16 bits.
        scaled: the gradients are scaled for fp16.

    Source: pytorch#191763 (PyTorch 2.13 and before), and for scaled gradients _fused_sgd in torch/optim/sgd.py: momentum
    is made with empty_like, the kernel writes nothing in a step that overflows, and the next step reads what is there.
    """
    if on_cpu and in_16_bits:
        return "PyTorch's fused SGD skips whole blocks of 16-bit parameters on a CPU (pytorch#191763): they would not train"
    if scaled:
        return "PyTorch's fused SGD starts from uninitialised momentum where the first step overflows in fp16"
    return None


def kernels_for(optimizer: str, *, on_cpu: bool = False, in_16_bits: bool = False, scaled: bool = False) -> tuple[str, ...]:
    """The kernels that an optimizer's update can run in, the usual one first. Arguments as fused_sgd_fault has them.

    The one place where this is decided: the runtime, the recorder, composed traces and `fit` all ask here. Raises
    InputError for an unknown optimizer.
    """
    check_choice("optimizer", optimizer, OPTIMIZERS)
    wrong = optimizer in ("sgd", "momentum") and fused_sgd_fault(on_cpu=on_cpu, in_16_bits=in_16_bits, scaled=scaled)
    return tuple(kernels for kernels in KERNELS_OF[optimizer] if not (wrong and kernels == "fused"))


def kernels_of(
    optimizer: str, kernels: str | None, *, on_cpu: bool = False, in_16_bits: bool = False, scaled: bool = False
) -> str:
    """The kernels of an update: those requested, else the first of kernels_for. Raises InputError for those it lacks."""
    able = kernels_for(optimizer, on_cpu=on_cpu, in_16_bits=in_16_bits, scaled=scaled)
    if kernels is None or kernels in able:
        return kernels or able[0]
    if kernels in KERNELS_OF[optimizer]:
        fault = fused_sgd_fault(on_cpu=on_cpu, in_16_bits=in_16_bits, scaled=scaled)
        raise InputError(
            f"{fault}.", [f"--optimizer-kernels {able[0]}, which {optimizer} takes by itself", "--precision amp-bf16 or fp32"]
        )
    raise InputError(f"{optimizer} has no {kernels} kernels.", [f"it has: {', '.join(able)}"])
