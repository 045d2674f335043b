"""runs_on, has_kernels: which chips an engine runs on, and with which formats of weights, as its documentation says."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwise.cost.rates import multiplies
from gpuwise.hardware.types import Chip
from gpuwise.serving.formats import Format, formats

Capability = tuple[int, int]


@dataclass(frozen=True)
class GpuRange:
    """GPUs of a table of support.

    Attributes:
        oldest: least compute capability.
        architectures: of those without a compute capability; None for any.
        before: compute capability from which on no GPU belongs; None (default) for none.
    """

    oldest: Capability
    architectures: tuple[str, ...] | None
    before: Capability | None = None

    def has(self, chip: Chip) -> bool:
        """Whether a GPU belongs; one whose architecture is not named does."""
        if (capability := chip.compute_capability) is not None:
            return capability >= self.oldest and (self.before is None or capability < self.before)
        return self.architectures is None or chip.architecture is None or chip.architecture in self.architectures


# vLLM (7.0, MI200 and newer, Radeon RX 7900 and newer): https://docs.vllm.ai/en/v0.14.0/getting_started/installation/gpu/
# llama.cpp: CUDA, ROCm, Metal or Vulkan; GPUs of the last ten years.
# SGLang (its default kernels, FlashInfer's, from 7.5 on; MI300 and newer): https://docs.sglang.io/get_started/install.html
# TensorRT-LLM (Ampere and newer): https://nvidia.github.io/TensorRT-LLM/supported-hardware.html
_VLLM = GpuRange((7, 0), ("CDNA 2.0", "CDNA 3.0", "CDNA 4.0", "RDNA 3.0", "RDNA 4.0"))
_RUNS_ON: dict[str, GpuRange] = {
    "llama.cpp": GpuRange((5, 0), None),
    "llamafile": GpuRange((5, 0), None),
    "vllm": _VLLM,
    "vllm-2024": _VLLM,
    "vllm-2023": _VLLM,
    "tensorrt-llm": GpuRange((8, 0), ()),
    "sglang": GpuRange((7, 5), ("CDNA 3.0", "CDNA 4.0")),
}

# Formats that the engine has kernels for on some of its GPUs alone; all others run wherever the engine does. An older GPU
# reads fp8 and fp4 as weights alone where kernels for that exist (Marlin).
# vLLM: https://docs.vllm.ai/en/latest/features/quantization/ and the pages of fp8 and int8 there
# TensorRT-LLM: https://nvidia.github.io/TensorRT-LLM/features/quantization.html (hardware support matrix); mxfp4 on Hopper:
#   https://nvidia.github.io/TensorRT-LLM/deployment-guide/deployment-guide-for-gpt-oss-on-trtllm.html
# SGLang: https://docs.sglang.io/advanced_features/quantization.html, of fp8 and mxfp4 its quantization/*.py, get_min_capability
_FP8_AMD = ("CDNA 3.0", "CDNA 4.0", "RDNA 4.0")
_HAS_KERNELS: dict[str, dict[str, GpuRange]] = {
    "vllm": {
        "fp8": GpuRange((7, 5), _FP8_AMD),
        "fp8-block": GpuRange((7, 5), _FP8_AMD),
        "int8": GpuRange((7, 5), (), before=(10, 0)),
        "mxfp4": GpuRange((8, 0), None),
        "nvfp4": GpuRange((7, 5), ()),
    },
    "tensorrt-llm": {
        "fp8": GpuRange((8, 9), ()),
        "fp8-block": GpuRange((9, 0), (), before=(12, 0)),
        "int4": GpuRange((8, 0), (), before=(10, 0)),
        "mxfp4": GpuRange((9, 0), ()),
        "nvfp4": GpuRange((10, 0), ()),
    },
    "sglang": {
        "fp8": GpuRange((8, 0), _FP8_AMD),
        "fp8-block": GpuRange((8, 0), _FP8_AMD),
        "mxfp4": GpuRange((8, 0), ("CDNA 3.0", "CDNA 4.0")),
        "nvfp4": GpuRange((10, 0), ("CDNA 3.0",)),
    },
}


def runs_on(engine: str, chip: Chip) -> bool:
    """Whether an engine runs on a chip. Of accelerators that are no GPUs none has figures.

    A GPU of the user's own whose architecture is not named is taken as one that it runs on.
    """
    range_ = _RUNS_ON.get(engine, _VLLM)
    if chip.kind == "cpu":
        return range_.architectures is None
    return chip.kind.startswith("gpu") and range_.has(chip)


def has_kernels(engine: str, weights: str, chip: Chip) -> bool:
    """Whether an engine has kernels for weights in a format on a chip of the kind that it runs on.

    weights: name of the format; "" for the type of the activations.
    """
    range_ = _HAS_KERNELS.get(engine, {}).get(weights)
    return range_ is None or (chip.kind.startswith("gpu") and range_.has(chip))


def formats_on(engine: str, chip: Chip) -> list[Format]:
    """Formats that an engine reads, and has kernels for on a chip."""
    return [each for each in formats().values() if engine in each.engines and has_kernels(engine, each.name, chip)]


def fast_formats(engine: str, chip: Chip) -> list[Format]:
    """Those of `formats_on` in which the chip multiplies, or that are for weights alone."""
    return [each for each in formats_on(engine, chip) if not each.arithmetic or multiplies(chip, each.arithmetic)]


def nearest_formats(engine: str, weights: str, chip: Chip) -> list[str]:
    """Formats that the engine has kernels for on the chip, those of about as many bits first."""
    bits = formats()[weights].bits
    return [each.name for each in sorted(formats_on(engine, chip), key=lambda each: abs(each.bits - bits))]
