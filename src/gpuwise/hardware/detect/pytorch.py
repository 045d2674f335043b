"""GPUs that NVML does not know, as PyTorch describes them: those of AMD, Intel and Apple, and accelerators of other packages.

PyTorch runs in a process of its own, so that a look at the machine does not load it.
"""

from __future__ import annotations

import importlib.util
import json
import platform
import subprocess
import sys
from functools import cache
from pathlib import Path

from gpuwise.hardware.detect.files import ROOT, read
from gpuwise.hardware.detect.gpu import Gpu

TELLER = "gpuwise.runtime.devices.chips"
TELLING_S = 120.0  # to load PyTorch from a slow disk
# PCI vendors of GPUs that PyTorch runs on and NVML does not know (pcisig.com): AMD and Intel.
OTHER_VENDORS = ("0x1002", "0x8086")
DISPLAY, ACCELERATOR = "0x03", "0x12"  # PCI base classes (PCI Code and ID Assignment, 1.1)


def may_have_others(root: Path = ROOT) -> bool:
    """Whether this machine may have a GPU or an accelerator beside NVIDIA's: an Apple chip, or what PCI lists."""
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        return True
    try:
        devices = list((root / "sys/bus/pci/devices").iterdir())
    except OSError:
        return False
    for device in devices:
        kind = read(device / "class")[:4]
        if kind == ACCELERATOR or (kind == DISPLAY and read(device / "vendor") in OTHER_VENDORS):
            return True
    return False


@cache
def gpus_of_pytorch() -> tuple[Gpu, ...]:
    """The accelerators that PyTorch sees, where the machine may have some that NVML does not know; never fails."""
    if not may_have_others() or importlib.util.find_spec("torch") is None:
        return ()
    try:
        run = subprocess.run(
            [sys.executable, "-m", TELLER],
            capture_output=True,
            text=True,
            timeout=TELLING_S,
            check=True,
            stdin=subprocess.DEVNULL,
        )
        return tuple(_gpu(row) for row in json.loads(run.stdout.splitlines()[-1]))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError, TypeError, AttributeError):
        return ()


def _gpu(row: dict[str, object]) -> Gpu:
    capability = row.get("compute_capability")
    return Gpu(**{**row, "compute_capability": tuple(capability) if isinstance(capability, list) else None})  # type: ignore[arg-type]
