"""NVIDIA's GPUs, through the Python package (nvidia-ml-py) of the driver's management library (NVML).

https://docs.nvidia.com/deploy/nvml-api: constants below are of its nvml.h.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import Any

from gpuwise.hardware.detect.files import ROOT, number
from gpuwise.hardware.detect.gpu import Gpu, GpuLoad, GpuPair, GpuSurvey, visible
from gpuwise.hardware.detect.memory import detect_memory

_SM, _MEMORY = 1, 2  # nvmlClockType_t
_CORE_SENSOR = 0  # nvmlTemperatureSensors_t
_PEER_READ, _PEER_NVLINK, _PEER_OK = 0, 2, 0  # nvmlGpuP2PCapsIndex_t, nvmlGpuP2PStatus_t
_MOST_NVLINKS = 36  # NVML_NVLINK_MAX_LINKS; devices have 18 at most so far
_VIOLATION_POLICIES = {"power": 0, "heat": 1}  # nvmlPerfPolicyType_t
# nvmlClocksEventReasons; the lowest bit, nothing to do, is left out.
_CLOCK_REASONS = {
    0x2: "its clocks are set by hand",
    0x4: "power limit",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "heat",
    0x40: "heat (hardware)",
    0x80: "power brake",
    0x100: "display clocks",
}
# nvmlGpuTopologyLevel_t
_PATHS = {
    0: "one board",
    10: "one PCIe switch",
    20: "several PCIe switches",
    30: "one PCIe host bridge",
    40: "one NUMA node",
    50: "PCIe across NUMA nodes",
}


def survey_gpus(root: Path = ROOT) -> GpuSurvey:
    """The NVIDIA GPUs of this machine that CUDA_VISIBLE_DEVICES leaves, what joins them and what they do; never fails."""
    return read_nvml(root) or GpuSurvey()


def detect_gpus() -> tuple[Gpu, ...]:
    """NVIDIA GPUs of this machine; none without their driver."""
    return survey_gpus().gpus


def read_nvml(root: Path = ROOT, library: object = None) -> GpuSurvey | None:
    """The GPUs as NVML tells; None where it cannot be asked.

    Arguments:
        library: what `import pynvml` gives, for a test to replace.
    """
    with _opened(root, library) as nvml:
        if nvml is None:
            return None
        handles = nvml.devices()
        handles = [handles[index] for index in visible([nvml.words("UUID", handle) for handle in handles])]
        gpus = tuple(_gpu(nvml, handle, root) for handle in handles)
        loads = tuple(_load(nvml, handle) for handle in handles)
        return GpuSurvey(gpus, tuple(_pairs(nvml, handles)), loads, "NVML" if gpus else "")


@contextmanager
def _opened(root: Path, library: object) -> Iterator[_Nvml | None]:
    if library is None:
        # Loading the package takes longer than all else here, so it is left alone where no driver can be (/dev/dxg: WSL).
        signs = ("proc/driver/nvidia", "dev/nvidiactl", "dev/nvmap", "dev/dxg")
        if sys.platform == "darwin" or (sys.platform == "linux" and not any((root / sign).exists() for sign in signs)):
            yield None
            return
        try:
            library = import_module("pynvml")
        except ImportError:
            yield None
            return
    try:
        library.nvmlInit()  # type: ignore[attr-defined]
    except Exception:  # of the package's own kinds, which differ by version; no library and no driver among them
        yield None
        return
    try:
        yield _Nvml(library)
    finally:
        with suppress(Exception):
            library.nvmlShutdown()  # type: ignore[attr-defined]


class _Nvml:
    """Questions that have None for an answer where device, driver or package do not know it."""

    def __init__(self, library: object):
        self._library = library

    def ask(self, what: str, *about: object) -> Any:
        """nvmlDeviceGet<what>(*about)"""
        return self.call(f"nvmlDeviceGet{what}", *about)

    def call(self, function: str, *about: object) -> Any:
        try:
            return getattr(self._library, function)(*about)
        except Exception:  # NVMLError of many kinds; AttributeError and TypeError from versions that differ
            return None

    def words(self, what: str, handle: object) -> str:
        answer = self.ask(what, handle)
        return answer.decode(errors="replace") if isinstance(answer, bytes) else answer or ""

    def scaled(self, factor: float, what: str, *about: object) -> float | None:
        value = self.ask(what, *about)
        return None if value is None else value * factor

    def devices(self) -> list[object]:
        """The devices programs see: of a GPU that is cut up (MIG) its parts."""
        handles = []
        for index in range(self.ask("Count") or 0):
            handle = self.ask("HandleByIndex", index)
            if handle is None:
                continue
            mig_mode = self.ask("MigMode", handle)
            parts = range((self.ask("MaxMigDeviceCount", handle) or 0) if mig_mode and mig_mode[0] else 0)
            handles += [part for n in parts if (part := self.ask("MigDeviceHandleByIndex", handle, n))] or [handle]
        return handles

    def nvlinks(self, handle: object) -> list[int]:
        """The links that are up."""
        active = []
        for link in range(_MOST_NVLINKS):
            state = self.ask("NvLinkState", handle, link)
            if state is None:  # beyond the last one
                break
            active += [link] if state == 1 else []
        return active

    def bus_id(self, handle: object) -> str:
        """The PCI address as in /sys, e.g. 0000:3b:00.0; NVML's domain has eight digits."""
        return _as_in_sys(getattr(self.ask("PciInfo", handle), "busId", ""))


def _as_in_sys(bus_id: str | bytes) -> str:
    text = bus_id.decode(errors="replace") if isinstance(bus_id, bytes) else bus_id
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest}" if rest else ""


def _gpu(nvml: _Nvml, handle: object, root: Path) -> Gpu:
    version = nvml.call("nvmlSystemGetDriverVersion")
    capability = nvml.ask("CudaComputeCapability", handle)
    node = number(root / "sys/bus/pci/devices" / (nvml.bus_id(handle) or "none") / "numa_node")
    memory_bytes = getattr(nvml.ask("MemoryInfo", handle), "total", None)
    return Gpu(
        name=nvml.words("Name", handle),
        memory_bytes=memory_bytes or detect_memory(root).total_bytes or 0,  # without its own it shares the host's
        driver=version.decode() if isinstance(version, bytes) else version,
        compute_capability=(capability[0], capability[1]) if capability else None,
        power_limit_w=nvml.scaled(1e-3, "PowerManagementLimit", handle),
        default_power_limit_w=nvml.scaled(1e-3, "PowerManagementDefaultLimit", handle),
        clock_hz=nvml.scaled(1e6, "MaxClockInfo", handle, _SM),
        memory_clock_hz=nvml.scaled(1e6, "MaxClockInfo", handle, _MEMORY),
        pcie_generation=nvml.ask("MaxPcieLinkGeneration", handle),
        pcie_width=nvml.ask("MaxPcieLinkWidth", handle),
        nvlinks=len(nvml.nvlinks(handle)),
        numa_node=None if node is None or node < 0 else node,
    )


def _load(nvml: _Nvml, handle: object) -> GpuLoad:
    memory, rates = nvml.ask("MemoryInfo", handle), nvml.ask("UtilizationRates", handle)
    reasons = nvml.ask("CurrentClocksEventReasons", handle)
    if reasons is None:
        reasons = nvml.ask("CurrentClocksThrottleReasons", handle) or 0  # its older name
    violations = {name: nvml.ask("ViolationStatus", handle, policy) for name, policy in _VIOLATION_POLICIES.items()}
    return GpuLoad(
        name=nvml.words("Name", handle),
        busy=None if rates is None else rates.gpu / 100,
        memory_bytes=getattr(memory, "total", None),
        memory_used_bytes=getattr(memory, "used", None),
        processes=tuple(process.pid for process in nvml.ask("ComputeRunningProcesses", handle) or ()),
        clock_hz=nvml.scaled(1e6, "ClockInfo", handle, _SM),
        temperature_c=nvml.ask("Temperature", handle, _CORE_SENSOR),
        power_limit_w=nvml.scaled(1e-3, "PowerManagementLimit", handle),
        default_power_limit_w=nvml.scaled(1e-3, "PowerManagementDefaultLimit", handle),
        held_back=tuple(words for bit, words in _CLOCK_REASONS.items() if reasons & bit),
        held_back_s={name: violation.violationTime / 1e9 for name, violation in violations.items() if violation is not None},
    )


def _pairs(nvml: _Nvml, handles: list[object]) -> Iterator[GpuPair]:
    """NVLink where it joins two, directly or through a switch; else where their PCIe paths meet."""
    bus_ids = [nvml.bus_id(handle) for handle in handles]
    peers = [
        [_as_in_sys(getattr(nvml.ask("NvLinkRemotePciInfo", handle, link), "busId", "")) for link in nvml.nvlinks(handle)]
        for handle in handles
    ]
    for (i, one), (j, other) in combinations(enumerate(handles), 2):
        links = peers[i].count(bus_ids[j]) if bus_ids[j] else 0
        joined = links > 0 or nvml.ask("P2PStatus", one, other, _PEER_NVLINK) == _PEER_OK
        read = nvml.ask("P2PStatus", one, other, _PEER_READ)
        path = _PATHS.get(nvml.ask("TopologyCommonAncestor", one, other), "unknown")
        if joined:
            path = "NVLink" if links else "NVLink switch"
        yield GpuPair(i, j, path, links, None if read is None else read == _PEER_OK)
