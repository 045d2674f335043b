"""runs_on: which chips an engine runs on, as its documentation says."""

from __future__ import annotations

from gpuwise.hardware.types import Chip

# The oldest compute capability, and the architectures without one; None for any.
# vLLM (7.0, MI200 and newer, Radeon RX 7900 and newer): https://docs.vllm.ai/en/v0.14.0/getting_started/installation/gpu/
# llama.cpp: CUDA, ROCm, Metal or Vulkan; GPUs of the last ten years.
# SGLang (its default kernels, FlashInfer's, from 7.5 on; MI300 and newer): https://docs.sglang.io/get_started/install.html
# TensorRT-LLM (Ampere and newer): https://nvidia.github.io/TensorRT-LLM/supported-hardware.html
_VLLM = ((7, 0), ("CDNA 2.0", "CDNA 3.0", "CDNA 4.0", "RDNA 3.0", "RDNA 4.0"))
_RUNS_ON: dict[str, tuple[tuple[int, int], tuple[str, ...] | None]] = {
    "llama.cpp": ((5, 0), None),
    "llamafile": ((5, 0), None),
    "vllm": _VLLM,
    "vllm-2024": _VLLM,
    "vllm-2023": _VLLM,
    "tensorrt-llm": ((8, 0), ()),
    "sglang": ((7, 5), ("CDNA 3.0", "CDNA 4.0")),
}


def runs_on(engine: str, chip: Chip) -> bool:
    """Whether an engine runs on a chip. Of accelerators that are no GPUs none has figures.

    A GPU of the user's own whose architecture is not named is taken as one that it runs on.
    """
    capability, architectures = _RUNS_ON.get(engine, _VLLM)
    if chip.kind == "cpu":
        return architectures is None
    if not chip.kind.startswith("gpu"):
        return False
    if chip.compute_capability is not None:
        return chip.compute_capability >= capability
    return architectures is None or chip.architecture is None or chip.architecture in architectures
