"""The whole machine: the device `here`, the facts that `doctor` and `measure` show, and its name in files."""

from __future__ import annotations

import hashlib
import platform
import re
from dataclasses import asdict, dataclass, replace
from math import ceil, floor, log2
from pathlib import Path

from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.detect.container import Container, detect_container
from gpuwise.hardware.detect.cpu import Cpu, detect_cpu
from gpuwise.hardware.detect.disk import Disk, detect_disk
from gpuwise.hardware.detect.files import ROOT, folders, read, value_of
from gpuwise.hardware.detect.gpu import Gpu, GpuLoad, GpuPair
from gpuwise.hardware.detect.match import chip_of_gpu, local_cpu_chip
from gpuwise.hardware.detect.memory import Memory, detect_channels, detect_memory
from gpuwise.hardware.detect.nvml import detect_gpus, survey_gpus
from gpuwise.hardware.detect.pytorch import ACCELERATOR, DISPLAY, OTHER_VENDORS, gpus_of_pytorch
from gpuwise.hardware.links import link_inside
from gpuwise.hardware.measured_chip import any_calibration, with_measurements
from gpuwise.hardware.toml_cache import cache_home
from gpuwise.hardware.types import Machine


@dataclass(frozen=True)
class NumaNode:
    """Processors and memory that lie together. cpus: as in '0-31'. distances: to each node, 10 for itself (ACPI SLIT)."""

    index: int
    cpus: str
    memory_bytes: int | None = None
    distances: tuple[int, ...] = ()


@dataclass(frozen=True)
class Interconnect:
    """What lies between the devices here: sockets and NUMA nodes of the CPUs, and what joins each pair of GPUs."""

    sockets: int = 1
    numa_nodes: tuple[NumaNode, ...] = ()
    gpu_pairs: tuple[GpuPair, ...] = ()


@dataclass(frozen=True)
class System:
    """name: of the operating system and its release. hypervisor: whether the machine is a virtual one; None where not told.
    product: of the machine by its maker, "Amazon EC2 g5.xlarge"; "" where not told."""

    name: str
    hypervisor: bool | None = None
    product: str = ""


@dataclass(frozen=True)
class DetectedMachine:
    """This machine as far as it tells a program without special rights. gpus: NVIDIA's; gpus_told_by: "NVML", or "" without.
    pci_gpus: vendor and device of those of AMD and Intel ("0x1002:0x74a1"), of which PyTorch knows more."""

    cpu: Cpu
    memory: Memory
    container: Container
    disks: tuple[Disk, ...]
    gpus: tuple[Gpu, ...]
    gpu_loads: tuple[GpuLoad, ...]
    interconnect: Interconnect
    system: System
    pci_gpus: tuple[str, ...] = ()
    gpus_told_by: str = ""

    def to_dict(self) -> dict[str, object]:
        """Plain types, by the names of the fields."""
        return asdict(self)


def detect(root: Path = ROOT) -> DetectedMachine:
    """Looks at this machine: reads only, needs no rights and no PyTorch, and never fails."""
    cpu, limits, survey = detect_cpu(root), detect_container(root), survey_gpus(root)
    return DetectedMachine(
        cpu=cpu,
        memory=detect_channels(detect_memory(root, limits), root),
        container=limits,
        disks=(detect_disk("working folder", Path.cwd(), root), detect_disk("cache", cache_home(), root)),
        gpus=survey.gpus,
        gpu_loads=survey.loads,
        interconnect=Interconnect(cpu.sockets, _numa_nodes(root), survey.pairs),
        system=_system(root),
        pci_gpus=_pci_gpus(root),
        gpus_told_by=survey.source,
    )


def detect_machine(catalog: Catalog, *, measured: bool = True) -> Machine:
    """This machine: its GPUs when there are any (of the first one's kind), else its CPU. What DEVICE `here` means.

    NVML tells of NVIDIA's GPUs; PyTorch, where it is installed, of all others.

    measured: with what `gpuwise measure` found of it, if it has.
    """
    if not (measured and any_calibration()):
        return machine_of(detect_cpu(), detect_gpus() or gpus_of_pytorch(), catalog)
    detected = detect()
    machine = machine_of(detected.cpu, detected.gpus or gpus_of_pytorch(), catalog)
    return replace(machine, chip=with_measurements(machine.chip, machine_key(detected)))


def machine_of(cpu: Cpu, gpus: tuple[Gpu, ...], catalog: Catalog) -> Machine:
    """The machine that has these."""
    memory = "" if cpu.memory_bytes is None else f", {cpu.memory_bytes / 2**30:.1f} GiB"
    if not gpus:
        chip = local_cpu_chip(cpu, catalog)
        return Machine(chip, 1, None, None, cpu.cores, cpu.memory_bytes, f"{cpu.name}, {cpu.cores} cores{memory}")
    same = [gpu for gpu in gpus if gpu.name == gpus[0].name]
    chip = chip_of_gpu(gpus[0], catalog.chips)
    return Machine(
        chip,
        len(same),
        link_inside(chip, len(same), catalog=catalog),
        None,
        cpu.cores,
        cpu.memory_bytes,
        f"{len(same)} × {gpus[0].name} with {cpu.name}{memory}",
    )


def machine_key(detected: DetectedMachine) -> str:
    """A short name of this machine's hardware for files, "amd-epyc-2c-9f3a1c": letters, digits and dashes, up to 60 of them.

    Another processor, number of cores in use, memory size or set of GPUs gives another; clocks, free memory, drivers, the
    kernel and a container's limit of memory do not. It holds no serial number and no host name.
    """
    cpu = detected.cpu
    gpus = sorted((gpu.name, _as_sold_gib(gpu.memory_bytes)) for gpu in detected.gpus)
    memory_gib = _as_sold_gib(detected.memory.total_bytes or cpu.memory_bytes or 0)
    hardware = (cpu.name, cpu.vendor, cpu.cores, cpu.threads, memory_gib, gpus, sorted(detected.pci_gpus))
    parts = [_short(cpu.name), f"{cpu.cores}c"]
    if gpus:
        parts += [_short(gpus[0][0]), f"x{len(gpus)}"]
    return "-".join([*parts, hashlib.sha256(repr(hardware).encode()).hexdigest()[:6]])


def _short(name: str) -> str:
    """'Intel(R) Xeon(R) Platinum 8380 CPU @ 2.30GHz' -> 'intel-xeon-platinum-8380'"""
    plain = re.sub(r"\((r|tm|c)\)|@.*|\b\d+-core\b|\b(cpu|processor|gpu)\b", " ", name.lower())
    return "-".join(re.findall(r"[a-z0-9]+", plain))[:24].strip("-") or "cpu"


def _as_sold_gib(size_bytes: int) -> int:
    """The size that was bought: firmware and kernel keep a few per cent for themselves, and not always the same."""
    gib = size_bytes / 2**30
    step = 2 ** max(0, floor(log2(gib)) - 4) if gib >= 1 else 1
    return step * ceil(gib / step)


def _numa_nodes(root: Path) -> tuple[NumaNode, ...]:
    nodes = []
    for folder in folders(root / "sys/devices/system/node", "node"):
        size = re.search(r"MemTotal:\s*(\d+) kB", read(folder / "meminfo"))
        distances = tuple(int(text) for text in read(folder / "distance").split() if text.isdecimal())
        memory_bytes = int(size[1]) * 1024 if size else None
        nodes.append(NumaNode(int(folder.name.removeprefix("node")), read(folder / "cpulist"), memory_bytes, distances))
    return tuple(nodes)


def _system(root: Path) -> System:
    info, firmware = read(root / "proc/cpuinfo"), root / "sys/class/dmi/id"
    flags = value_of(info, "flags").split()
    maker, product = read(firmware / "sys_vendor"), read(firmware / "product_name")
    return System(
        f"{platform.system()} {platform.release()}",
        ("hypervisor" in flags) if flags else None,
        product if product.startswith(maker) else f"{maker} {product}".strip(),
    )


def _pci_gpus(root: Path) -> tuple[str, ...]:
    identifiers = []
    try:
        devices = sorted((root / "sys/bus/pci/devices").iterdir())
    except OSError:
        return ()
    for device in devices:
        vendor = read(device / "vendor")
        if vendor in OTHER_VENDORS and read(device / "class")[:4] in (DISPLAY, ACCELERATOR):
            identifiers.append(f"{vendor}:{read(device / 'device')}")
    return tuple(identifiers)
