"""The machine a part runs on, as its driver and its system describe it; nothing here starts CUDA."""

from __future__ import annotations

import os
import platform
import subprocess
from contextlib import suppress
from typing import Any
from xml.etree import ElementTree

import gpuwise
from benchmarks.gpu_session import needs
from gpuwise.hardware.detect import detect_cpu, detect_memory

# What is kept of `nvidia-smi -q -x`, by the paths in its answer for one GPU; where a path has a newer name, both stand here.
SMI_PATHS = (
    "product_name",
    "product_architecture",
    "persistence_mode",
    "compute_mode",
    "mig_mode/current_mig",
    "performance_state",
    "vbios_version",
    "fb_memory_usage/total",
    "fb_memory_usage/used",
    "utilization/gpu_util",
    "temperature/gpu_temp",
    "temperature/memory_temp",
    "ecc_mode/current_ecc",
    "ecc_errors/volatile/dram_uncorrectable",
    "ecc_errors/aggregate/dram_uncorrectable",
    "gpu_power_readings/power_draw",
    "gpu_power_readings/average_power_draw",
    "gpu_power_readings/current_power_limit",
    "gpu_power_readings/default_power_limit",
    "power_readings/power_draw",
    "power_readings/power_limit",
    "clocks/sm_clock",
    "clocks/mem_clock",
    "max_clocks/sm_clock",
    "max_clocks/mem_clock",
    "clocks_event_reasons",
    "pci/pci_gpu_link_info/pcie_gen/current_link_gen",
    "pci/pci_gpu_link_info/link_widths/current_link_width",
)
# Variables of the environment that change what is measured.
SETTINGS = (
    "CUDA_VISIBLE_DEVICES",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
)


def state() -> dict[str, Any]:
    """Versions, host and GPUs, as they are now."""
    cpu, memory = detect_cpu(), detect_memory()
    return {
        "gpuwise": gpuwise.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "versions": needs.versions(),
        "cpu": {"name": cpu.name, "cores": cpu.cores, "threads": cpu.threads, "load": list(os.getloadavg())},
        "memory": {"total_bytes": memory.total_bytes, "available_bytes": memory.available_bytes},
        "environment": {name: os.environ[name] for name in SETTINGS if name in os.environ},
        **smi(),
    }


def smi() -> dict[str, Any]:
    """The driver's version and its GPUs with their processes; {} without nvidia-smi."""
    try:
        done = subprocess.run(["nvidia-smi", "-q", "-x"], capture_output=True, text=True, timeout=30, check=True)
        root = ElementTree.fromstring(done.stdout)
    except (OSError, subprocess.SubprocessError, ElementTree.ParseError):
        return {}
    gpus = []
    for gpu in root.findall("gpu"):
        results = {path: _text(gpu.find(path)) for path in SMI_PATHS}
        processes = [{child.tag: child.text for child in process} for process in gpu.findall("processes/process_info")]
        gpus.append({**{path: text for path, text in results.items() if text not in ("", "N/A")}, "processes": processes})
    return {"driver": _text(root.find("driver_version")), "cuda_driver": _text(root.find("cuda_version")), "gpus": gpus}


def used_bytes() -> int | None:
    """Device memory in use by everybody on the first GPU, as the driver counts it. Starts no context."""
    if needs.there("pynvml"):
        import pynvml

        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"]
        return int(subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout) * 2**20
    return None


def _text(element: ElementTree.Element | None) -> str:
    """Its own text, or its children that say "Active"."""
    if element is None:
        return ""
    active = [child.tag for child in element if child.text == "Active"]
    return ", ".join(active) if len(element) else (element.text or "").strip()


def _commit() -> str:
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()
    return ""
