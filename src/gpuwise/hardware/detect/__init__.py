"""Detects this machine without PyTorch. It only reads, needs no rights and never fails; unknown facts are None or empty."""

from gpuwise.hardware.detect.container import Container, detect_container
from gpuwise.hardware.detect.cpu import Cache, Cpu, detect_cpu
from gpuwise.hardware.detect.disk import Disk
from gpuwise.hardware.detect.gpu import Gpu, GpuLoad, GpuPair
from gpuwise.hardware.detect.machine import (
    DetectedMachine,
    Interconnect,
    NumaNode,
    System,
    detect,
    detect_machine,
    machine_key,
    machine_of,
)
from gpuwise.hardware.detect.match import chip_of_gpu, local_cpu_chip, match_cpu, match_gpu, most_like_this, unknown_gpu
from gpuwise.hardware.detect.memory import Memory, detect_memory
from gpuwise.hardware.detect.nvml import detect_gpus

__all__ = [
    "Cache",
    "Container",
    "Cpu",
    "DetectedMachine",
    "Disk",
    "Gpu",
    "GpuLoad",
    "GpuPair",
    "Interconnect",
    "Memory",
    "NumaNode",
    "System",
    "chip_of_gpu",
    "detect",
    "detect_container",
    "detect_cpu",
    "detect_gpus",
    "detect_machine",
    "detect_memory",
    "local_cpu_chip",
    "machine_key",
    "machine_of",
    "match_cpu",
    "match_gpu",
    "most_like_this",
    "unknown_gpu",
]
