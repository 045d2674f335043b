"""The NVIDIA GPUs of this machine: through NVML where its Python package is installed, else through nvidia-smi, else none."""

from __future__ import annotations

from pathlib import Path

from gpuwise.hardware.detect.files import ROOT
from gpuwise.hardware.detect.gpu import Gpu, GpuSurvey
from gpuwise.hardware.detect.nvidia_smi import read_nvidia_smi
from gpuwise.hardware.detect.nvml import read_nvml


def survey_gpus(root: Path = ROOT) -> GpuSurvey:
    """The NVIDIA GPUs of this machine that CUDA_VISIBLE_DEVICES leaves, what joins them and what they do; never fails."""
    survey = read_nvml(root)
    if survey is None and root == ROOT:
        survey = read_nvidia_smi()
    return survey or GpuSurvey()


def detect_gpus() -> tuple[Gpu, ...]:
    """NVIDIA GPUs of this machine; none when neither NVML nor nvidia-smi tells of any."""
    return survey_gpus().gpus
