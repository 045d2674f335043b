"""Detection of this machine, on made-up /proc and /sys trees and a made-up driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuwise.hardware.detect import (
    Cache,
    Container,
    Cpu,
    Gpu,
    GpuPair,
    detect,
    detect_container,
    detect_cpu,
    files,
    gpu,
    machine_key,
)
from gpuwise.hardware.detect.container import throttled_s
from gpuwise.hardware.detect.cpu import core_processors
from gpuwise.hardware.detect.disk import detect_disk
from gpuwise.hardware.detect.memory import Memory, detect_channels, detect_memory
from gpuwise.hardware.detect.nvml import read_nvml

FLAGS = "fpu avx2 avx512f avx512_bf16 amx_tile amx_bf16 hypervisor"
CPU = "sys/devices/system/cpu"


def tree(root: Path, contents: dict[str, str | bytes]) -> Path:
    """A folder with these files."""
    for name, content in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def cpuinfo(
    processors: int, *, threads_per_core: int = 1, per_socket: int | None = None, name: str = "Some CPU", mhz: float = 1234.5
) -> str:
    """As x86 writes it; siblings follow each other."""
    per_socket = per_socket or processors
    return "\n".join(
        f"processor\t: {n}\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel name\t: {name}\ncpu MHz\t\t: {mhz}\n"
        f"physical id\t: {n // per_socket}\ncore id\t\t: {n % per_socket // threads_per_core}\nflags\t\t: {FLAGS}\n"
        for n in range(processors)
    )


def allowed(processors: str) -> dict[str, str]:
    return {"proc/self/status": f"Name:\tpython\nCpus_allowed_list:\t{processors}\n"}


def cache(cpu: int, index: int, level: int, size: str, shared: str, kind: str = "Unified") -> dict[str, str]:
    folder = f"{CPU}/cpu{cpu}/cache/index{index}"
    return {
        f"{folder}/level": f"{level}\n",
        f"{folder}/size": f"{size}\n",
        f"{folder}/type": f"{kind}\n",
        f"{folder}/shared_cpu_list": f"{shared}\n",
    }


def test_cores_threads_sockets_and_caches(tmp_path: Path):
    root = tree(tmp_path, {"proc/cpuinfo": cpuinfo(8, threads_per_core=2, per_socket=4), **allowed("0-7")})
    for n in range(8):
        pair, socket = f"{n // 2 * 2}-{n // 2 * 2 + 1}", f"{n // 4 * 4}-{n // 4 * 4 + 3}"
        tree(root, cache(n, 0, 1, "48K", pair, "Data") | cache(n, 1, 1, "32K", pair, "Instruction"))
        tree(root, cache(n, 2, 2, "2048K", pair) | cache(n, 10, 3, "32768K", socket))
    cpu = detect_cpu(root)
    assert (cpu.cores, cpu.threads, cpu.sockets, cpu.vendor, cpu.name) == (4, 8, 2, "Intel", "Some CPU")
    assert cpu.caches == (
        Cache(1, 48 * 2**10, ("0-1", "2-3", "4-5", "6-7")),
        Cache(2, 2 * 2**20, ("0-1", "2-3", "4-5", "6-7")),
        Cache(3, 32 * 2**20, ("0-3", "4-7")),
    )
    assert cpu.cache_bytes == {"L1": 48 * 2**10, "L2": 2 * 2**20, "L3": 32 * 2**20}
    assert cpu.flags == ("avx2", "avx512", "avx512-bf16", "amx", "amx-bf16")


def test_of_cores_of_two_kinds_the_larger_caches_count(tmp_path: Path):
    root = tree(tmp_path, {"proc/cpuinfo": cpuinfo(2), **allowed("0-1")})
    tree(root, cache(0, 0, 2, "1280K", "0") | cache(1, 0, 2, "2048K", "1"))
    cpu = detect_cpu(root)
    assert [cache.size_bytes >> 10 for cache in cpu.caches] == [1280, 2048]
    assert cpu.cache_bytes == {"L2": 2048 << 10}


@pytest.mark.parametrize(
    ("processors", "cores", "threads"),
    [
        ("0-7", [0, 2, 4, 6], 8),
        ("0,1", [0], 2),
        ("0,2,4-5", [0, 2, 4], 4),
        ("5", [5], 1),
        ("12", [0, 2, 4, 6], 8),
    ],
)
def test_only_what_the_affinity_allows_counts(tmp_path: Path, processors: str, cores: list[int], threads: int):
    root = tree(tmp_path, {"proc/cpuinfo": cpuinfo(8, threads_per_core=2), **allowed(processors)})
    assert (detect_cpu(root).cores, detect_cpu(root).threads) == (len(cores), threads)
    assert core_processors(root) == cores


def test_where_cores_are_not_told_each_processor_is_one(tmp_path: Path):
    root = tree(tmp_path, {"proc/cpuinfo": "processor\t: 0\n\nprocessor\t: 1\n", **allowed("0-1")})
    assert core_processors(root) == [0, 1]
    assert core_processors(tmp_path / "nothing") == [0]


def test_arm_has_its_cores_in_sys_and_no_name(tmp_path: Path):
    info = "".join(
        f"processor\t: {n}\nFeatures\t: fp asimd sve bf16\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n\n" for n in range(4)
    )
    root = tree(tmp_path, {"proc/cpuinfo": info, **allowed("0-3")})
    for n in range(4):
        tree(root, {f"{CPU}/cpu{n}/topology/physical_package_id": "0", f"{CPU}/cpu{n}/topology/core_id": f"{n}"})
    cpu = detect_cpu(root)
    assert (cpu.name, cpu.cores, cpu.flags) == ("Arm Neoverse-V2", 4, ("neon", "sve", "bf16"))


@pytest.mark.parametrize(
    ("name", "khz", "ghz"),
    [
        ("Some CPU", "3500000\n", 3.5),
        ("Xeon(R) CPU @ 2.60GHz", "", 2.6),
        ("Some CPU", "", 1.2345),
        ("CPU @ 2.6GHz", "4000000", 4.0),
    ],
)
def test_the_clock_is_one_that_does_not_wobble_where_there_is_one(tmp_path: Path, name: str, khz: str, ghz: float):
    root = tree(tmp_path, {"proc/cpuinfo": cpuinfo(1, name=name), f"{CPU}/cpu0/cpufreq/cpuinfo_max_freq": khz})
    assert detect_cpu(root).clock_hz == pytest.approx(ghz * 1e9)


GROUPS = "sys/fs/cgroup"
V1 = f"{GROUPS}/memory/docker/abc"
CONTAINERS = {
    "none": ({}, Container()),
    "v2": (
        {
            "proc/self/cgroup": "0::/a/b\n",
            f"{GROUPS}/a/b/cpu.max": "150000 100000\n",
            f"{GROUPS}/a/cpu.max": "max 100000\n",
            f"{GROUPS}/a/memory.max": f"{4 << 30}\n",
            f"{GROUPS}/a/memory.current": f"{2 << 30}\n",
            f"{GROUPS}/a/memory.stat": f"anon 5\ninactive_file {1 << 30}\n",
            f"{GROUPS}/a/b/memory.max": "max\n",
        },
        Container(1.5, 4 << 30, 1 << 30),
    ),
    "v2 with its own view": ({"proc/self/cgroup": "0::/\n", f"{GROUPS}/cpu.max": "400000 100000\n"}, Container(4.0)),
    "v2 from outside": ({"proc/self/cgroup": "0::/../../x\n", f"{GROUPS}/memory.max": "1000\n"}, Container(None, 1000)),
    "v1": (
        {
            "proc/self/cgroup": "9:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/x\n0::/\n",
            f"{GROUPS}/cpu,cpuacct/cpu.cfs_quota_us": "50000\n",
            f"{GROUPS}/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            f"{V1}/memory.limit_in_bytes": "2000\n",
            f"{V1}/memory.usage_in_bytes": "1500\n",
            f"{V1}/memory.stat": "total_inactive_file 700\n",
        },
        Container(0.5, 2000, 800),
    ),
    "v1 without limits": (
        {
            "proc/self/cgroup": "9:memory:/\n3:cpu:/\n",
            f"{GROUPS}/cpu/cpu.cfs_quota_us": "-1\n",
            f"{GROUPS}/cpu/cpu.cfs_period_us": "100000\n",
            f"{GROUPS}/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
        Container(),
    ),
    "nonsense": ({"proc/self/cgroup": "what\n0:\n", f"{GROUPS}/cpu.max": "x y\n", f"{GROUPS}/memory.max": "lots"}, Container()),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_limits_of_containers(tmp_path: Path, name: str):
    contents, expected = CONTAINERS[name]
    assert detect_container(tree(tmp_path, contents)) == expected


@pytest.mark.parametrize(
    ("quota", "cores", "threads"), [("200000", 2, 2), ("150000", 1, 2), ("50000", 1, 1), ("6400000", 4, 8)]
)
def test_a_quota_of_time_limits_the_cores(tmp_path: Path, quota: str, cores: int, threads: int):
    root = tree(
        tmp_path, {"proc/cpuinfo": cpuinfo(8, threads_per_core=2), **allowed("0-7"), "sys/fs/cgroup/cpu.max": f"{quota} 100000"}
    )
    assert (detect_cpu(root).cores, detect_cpu(root).threads) == (cores, threads)


def test_time_stopped_by_a_quota(tmp_path: Path):
    assert throttled_s(tmp_path) is None
    assert (
        throttled_s(tree(tmp_path, {"sys/fs/cgroup/cpu.stat": "usage_usec 9\nnr_throttled 3\nthrottled_usec 2500000\n"})) == 2.5
    )
    v1 = {"proc/self/cgroup": "3:cpu:/\n", "sys/fs/cgroup/cpu/cpu.stat": "nr_throttled 3\nthrottled_time 1500000000\n"}
    assert throttled_s(tree(tmp_path, v1)) == 1.5


def test_memory_is_the_machines_and_the_containers(tmp_path: Path):
    root = tree(
        tmp_path, {"proc/cpuinfo": cpuinfo(1), "proc/meminfo": "MemTotal:  1000 kB\nMemFree: 5 kB\nMemAvailable:   800 kB\n"}
    )
    assert detect_memory(root) == Memory(1000 * 1024, 800 * 1024)
    assert detect_cpu(root).memory_bytes == 1000 * 1024
    tree(root, {"sys/fs/cgroup/memory.max": "300000", "sys/fs/cgroup/memory.current": "100000"})
    assert detect_memory(root) == Memory(1000 * 1024, 200_000)
    assert detect_cpu(root).memory_bytes == 300_000


def test_channels_by_edac(tmp_path: Path):
    for controller, module in ((0, 0), (0, 1), (0, 2), (1, 0)):
        folder = f"sys/devices/system/edac/mc/mc{controller}/dimm{module}"
        place, size = f"channel {module} slot 0 \n", "0" if module == 2 else "32768"
        tree(
            tmp_path, {f"{folder}/size": size, f"{folder}/dimm_location": place, f"{folder}/dimm_mem_type": "Registered-DDR5\n"}
        )
    assert detect_channels(Memory(), tmp_path) == Memory(channels=3, modules=3, kind="DDR5")


def module(slot: str, bank: str, *, size: int = 16384, kind: int = 0x1A, speed: int = 3200) -> bytes:
    """A structure of kind 17 (SMBIOS 3.2, up to the configured speed)."""
    fields = bytearray(0x22)
    fields[0], fields[1] = 17, len(fields)
    fields[0x0C:0x0E], fields[0x10], fields[0x11], fields[0x12] = size.to_bytes(2, "little"), 1, 2, kind
    fields[0x15:0x17] = fields[0x20:0x22] = speed.to_bytes(2, "little")
    return bytes(fields) + f"{slot}\0{bank}\0\0".encode()


BIOS, END = bytes([0, 4, 0, 0]) + b"Maker\0Version\0\0", bytes([127, 4, 0, 0, 0, 0])


@pytest.mark.parametrize(
    ("slots", "channels"),
    [
        ([("DIMM 0", "P0 CHANNEL A"), ("DIMM 0", "P0 CHANNEL B"), ("DIMM 0", "P1 CHANNEL A")], 3),
        ([("DIMM_A1", "BANK 0"), ("DIMM_A2", "BANK 1"), ("DIMM_B1", "BANK 2")], 2),
        ([("Controller0-ChannelA-DIMM0", "BANK 0"), ("Controller1-ChannelA-DIMM0", "BANK 0")], 2),
        ([("A1", "Not Specified"), ("A2", "Not Specified")], None),
    ],
)
def test_channels_by_the_firmwares_tables(tmp_path: Path, slots: list[tuple[str, str]], channels: int | None):
    table = BIOS + b"".join(module(*slot) for slot in slots) + module("DIMM_Z1", "P9 CHANNEL Z", size=0) + END
    result = detect_channels(Memory(), tree(tmp_path, {"sys/firmware/dmi/tables/DMI": table}))
    assert result == Memory(channels=channels, modules=len(slots), kind="DDR4", transfers_per_s=3.2e9)


@pytest.mark.parametrize("table", [b"", b"\x11", b"\x11\x02\x00\x00", b"\x11\x22" + bytes(5), bytes(100), b"\xff" * 64])
def test_damaged_tables_tell_nothing(tmp_path: Path, table: bytes):
    assert detect_channels(Memory(), tree(tmp_path, {"sys/firmware/dmi/tables/DMI": table})) == Memory()


def block(root: Path, name: str, contents: dict[str, str], inside: str = "sys/devices/pci0") -> Path:
    tree(root, {f"{inside}/{name}/{file}": content for file, content in {"size": "1", **contents}.items()})
    link = root / "sys/class/block" / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(root / inside / name)
    return root / inside / name


def test_the_disk_of_a_folder(tmp_path: Path):
    root, home = tmp_path / "root", tmp_path / "a home"
    home.mkdir()
    drive = block(root, "nvme0n1", {"queue/rotational": "0\n", "device/model": "Fast SSD 1TB  \n"})
    block(root, "nvme0n1p2", {"partition": "2"}, "sys/devices/pci0/nvme0n1")
    mapped = block(root, "dm-0", {"queue/rotational": "1"}, "sys/devices/virtual")
    (mapped / "slaves").mkdir()
    (mapped / "slaves/nvme0n1p2").symlink_to(drive / "nvme0n1p2")
    numbers = root / "sys/dev/block"
    numbers.mkdir(parents=True)
    (numbers / "254:0").symlink_to(mapped)
    point = str(home).replace(" ", "\\040")
    mounts = [
        "22 1 8:1 / / rw - ext4 /dev/sdz rw",
        f"30 22 0:9 / {point} rw - tmpfs tmpfs rw",
        f"31 22 254:0 / {point} rw,relatime shared:1 - ext4 /dev/mapper/home rw",
        "broken",
    ]
    tree(root, {"proc/self/mountinfo": "\n".join(mounts)})
    disk = detect_disk("cache", home / "not/yet/there", root)
    assert (disk.file_system, disk.device, disk.model, disk.rotational) == ("ext4", "nvme0n1", "Fast SSD 1TB", False)
    assert disk.free_bytes is not None
    assert disk.total_bytes is not None
    assert 0 <= disk.free_bytes <= disk.total_bytes
    above = detect_disk("working folder", tmp_path, root)
    assert (above.file_system, above.device, above.rotational) == ("ext4", "", None)


@pytest.mark.parametrize(
    ("name", "model", "told"),
    [("sda", "WDC WD40", True), ("vda", "", None), ("sdb", "QEMU HARDDISK", None), ("xvda", "", None)],
)
def test_virtual_disks_do_not_know_what_turns(tmp_path: Path, name: str, model: str, told: bool | None):
    block(tmp_path, name, {"queue/rotational": "1", "device/model": model})
    tree(tmp_path, {"proc/self/mountinfo": f"22 1 0:44 / / rw - btrfs /dev/{name} rw\n"})
    disk = detect_disk("cache", tmp_path, tmp_path)
    assert (disk.device, disk.rotational) == (name, told)


class FakeNvml:
    """As the package answers on a machine of two H100 on a switch and one PCIe card; devices are their numbers."""

    NAMES = ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3", "NVIDIA L4")

    def __init__(self) -> None:
        self.open = 0

    def __getattr__(self, name: str):
        def unknown(*about):
            raise RuntimeError("Not Supported")

        if name.startswith("nvml"):
            return unknown
        raise AttributeError(name)

    def nvmlInit(self):  # noqa: N802
        self.open += 1

    def nvmlShutdown(self):  # noqa: N802
        self.open -= 1


def fake(**answers) -> FakeNvml:
    """answers: for nvmlDeviceGet<name>, functions of the device."""
    library = FakeNvml()
    usual = {
        "Count": lambda: 3,
        "HandleByIndex": lambda place: place,
        "UUID": lambda h: f"GPU-{h}abc",
        "Name": lambda h: library.NAMES[h].encode() if h else library.NAMES[h],
        "MemoryInfo": lambda h: SimpleNamespace(total=(80 if h < 2 else 23) << 30, used=h << 30),
        "CudaComputeCapability": lambda h: [9, 0] if h < 2 else [8, 9],
        "PowerManagementLimit": lambda h: 500_000,
        "PowerManagementDefaultLimit": lambda h: 700_000,
        "MaxClockInfo": lambda h, kind: {1: 1980, 2: 2619}[kind],
        "ClockInfo": lambda h, kind: 345,
        "MaxPcieLinkGeneration": lambda h: 5,
        "MaxPcieLinkWidth": lambda h: 16,
        "PciInfo": lambda h: SimpleNamespace(busId=f"00000000:{h}B:00.0".encode()),
        "NvLinkState": lambda h, link: 1 if h < 2 and link < 18 else 1 // 0,
        "P2PStatus": lambda a, b, what: 0 if what == 0 or {a, b} == {0, 1} else 5,
        "TopologyCommonAncestor": lambda a, b: 50,
        "UtilizationRates": lambda h: SimpleNamespace(gpu=45, memory=3),
        "ComputeRunningProcesses": lambda h: [SimpleNamespace(pid=77)] if h else [],
        "CurrentClocksThrottleReasons": lambda h: 0x1 | 0x4 | 0x40,
        "ViolationStatus": lambda h, policy: SimpleNamespace(referenceTime=1, violationTime=2_500_000_000),
        "Temperature": lambda h, sensor: 41,
    }
    for name, answer in {**usual, **answers}.items():
        setattr(library, f"nvmlDeviceGet{name}", answer)
    library.nvmlSystemGetDriverVersion = lambda: b"570.1"
    return library


def test_what_nvml_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    library = fake()
    tree(tmp_path, {"sys/bus/pci/devices/0000:0b:00.0/numa_node": "1\n", "sys/bus/pci/devices/0000:1b:00.0/numa_node": "-1\n"})
    result = read_nvml(tmp_path, library)
    assert result is not None
    assert library.open == 0
    assert result.source == "NVML"
    assert result.gpus[0] == Gpu(
        "NVIDIA H100 80GB HBM3", 80 << 30, "NVIDIA", "570.1", (9, 0), 500.0, 700.0, 1.98e9, 2.619e9, 5, 16, 18, 1
    )
    assert (result.gpus[1].numa_node, result.gpus[2].nvlinks, result.gpus[2].compute_capability) == (None, 0, (8, 9))
    assert result.pairs == (
        GpuPair(0, 1, "NVLink switch", 0, True),
        GpuPair(0, 2, "PCIe across NUMA nodes", 0, True),
        GpuPair(1, 2, "PCIe across NUMA nodes", 0, True),
    )
    load = result.loads[1]
    assert (load.busy, load.memory_used_bytes, load.processes, load.clock_hz, load.temperature_c) == (
        0.45,
        1 << 30,
        (77,),
        345e6,
        41,
    )
    assert (load.held_back, load.held_back_s) == (("power limit", "heat (hardware)"), {"power": 2.5, "heat": 2.5})


def test_direct_nvlinks_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    library = fake(
        Count=lambda: 2,
        NvLinkState=lambda h, link: (1 if link < 3 else 0) if link < 4 else 1 // 0,
        NvLinkRemotePciInfo=lambda h, link: SimpleNamespace(busId=f"00000000:{1 - h}B:00.0"),
    )
    result = read_nvml(tmp_path, library)
    assert result is not None
    assert result.pairs == (GpuPair(0, 1, "NVLink", 3, True),)
    assert result.gpus[0].nvlinks == 3


def test_a_driver_that_answers_nothing_more_than_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    library = FakeNvml()
    library.nvmlDeviceGetCount, library.nvmlDeviceGetHandleByIndex = lambda: 2, lambda place: place
    library.nvmlDeviceGetName = lambda h: "NVIDIA GB10"
    result = read_nvml(tree(tmp_path, {"proc/meminfo": "MemTotal: 1024 kB"}), library)
    assert result is not None
    assert result.gpus == (Gpu("NVIDIA GB10", 2**20, nvlinks=0),) * 2  # without memory of its own it has the machine's
    assert result.pairs == (GpuPair(0, 1, "unknown"),)
    assert result.loads[0].busy is None


def test_a_gpu_that_is_cut_up_is_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    library = fake(
        Count=lambda: 1,
        MigMode=lambda h: [1, 1],
        MaxMigDeviceCount=lambda h: 7,
        MigDeviceHandleByIndex=lambda h, n: 1 if n == 0 else 1 // 0,
    )
    library.NAMES = ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB MIG 1g.5gb")
    result = read_nvml(tmp_path, library)
    assert result is not None
    assert [gpu.name for gpu in result.gpus] == ["NVIDIA A100-SXM4-40GB MIG 1g.5gb"]


def test_without_driver_or_package_nvml_cannot_be_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    library = FakeNvml()
    library.nvmlInit = lambda: 1 // 0
    assert read_nvml(tmp_path, library) is None
    assert read_nvml(tmp_path) is None  # nothing of a driver under this root
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read_nvml(tree(tmp_path, {"dev/nvidiactl": ""})) is None


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("2,0", [2, 0]),
        ("0,7,1", [0]),
        ("GPU-1", [1]),
        ("GPU-2abc,GPU", [2]),
        ("1,1", [1]),
    ],
)
def test_gpus_that_are_hidden_do_not_count(monkeypatch: pytest.MonkeyPatch, text: str | None, left: list[int]):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if text is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    assert gpu.visible(["GPU-0abc", "GPU-1abc", "GPU-2abc"]) == left


@pytest.mark.parametrize("failure", [subprocess.TimeoutExpired("x", 1), OSError("x"), None])
def test_a_failing_tool_is_no_reading(monkeypatch: pytest.MonkeyPatch, failure: Exception | None):
    def run(*args, **kwargs):
        if failure:
            raise failure
        return subprocess.CompletedProcess(args, 9, "driver not loaded", "")

    monkeypatch.setattr(files.shutil, "which", lambda name: "/bin/" + name)
    monkeypatch.setattr(files.subprocess, "run", run)
    assert files.run(["nvidia-smi"]) == ""


def test_nodes_product_and_other_gpus(tmp_path: Path):
    root = tree(
        tmp_path,
        {
            "proc/cpuinfo": cpuinfo(2),
            "sys/class/dmi/id/sys_vendor": "Amazon EC2\n",
            "sys/class/dmi/id/product_name": "g5.xlarge\n",
        },
    )
    for n in (0, 10, 2):
        node = f"sys/devices/system/node/node{n}"
        tree(
            root,
            {
                f"{node}/cpulist": f"{n}\n",
                f"{node}/distance": "10 21 21\n",
                f"{node}/meminfo": f"Node {n} MemTotal:   2048 kB\n",
            },
        )
    for place, (kind, vendor) in enumerate(
        (("0x030000", "0x1002"), ("0x020000", "0x8086"), ("0x030000", "0x10de"), ("0x120000", "0x1002"))
    ):
        tree(
            root,
            {
                f"sys/bus/pci/devices/{place}/class": kind,
                f"sys/bus/pci/devices/{place}/vendor": vendor,
                f"sys/bus/pci/devices/{place}/device": "0x74a1",
            },
        )
    result = detect(root)
    assert [node.index for node in result.interconnect.numa_nodes] == [0, 2, 10]
    assert (result.interconnect.numa_nodes[0].memory_bytes, result.interconnect.numa_nodes[0].distances) == (
        2 << 20,
        (10, 21, 21),
    )
    assert (result.system.product, result.system.hypervisor) == ("Amazon EC2 g5.xlarge", True)
    assert result.pci_gpus == ("0x1002:0x74a1",) * 2


def test_nothing_to_read_is_nothing_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(files.shutil, "which", lambda name: None)
    result = detect(tmp_path)
    assert (result.memory, result.container, result.gpus, result.pci_gpus) == (Memory(), Container(), (), ())
    assert result.cpu.cores >= 1
    assert machine_key(result)


def test_this_machine():
    result = detect()
    assert json.loads(json.dumps(result.to_dict()))["cpu"]["cores"] == result.cpu.cores >= 1
    assert [disk.use for disk in result.disks] == ["working folder", "cache"]


MACHINE = replace(
    detect(Path(os.devnull) / "nowhere"),
    cpu=Cpu("Intel(R) Xeon(R) Platinum 8380 CPU @ 2.30GHz", "Intel", 40, 80, 3e9, memory_bytes=62 << 30),
    memory=Memory(62 << 30, 5),
    gpus=(),
    gpu_loads=(),
)


def test_the_key_names_the_hardware():
    assert machine_key(MACHINE) == "intel-xeon-platinum-8380-40c-" + machine_key(MACHINE)[-6:]
    assert machine_key(MACHINE) == machine_key(MACHINE)
    with_gpus = replace(MACHINE, gpus=(Gpu("NVIDIA L4", 23034 << 20),) * 2)
    assert machine_key(with_gpus).startswith("intel-xeon-platinum-8380-40c-nvidia-l4-x2-")
    assert machine_key(replace(MACHINE, cpu=replace(MACHINE.cpu, name="日本語 ®" * 50, cores=999_999))).isascii()
    code = "from gpuwise.hardware.detect import detect, machine_key; print(machine_key(detect()))"
    again = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert again.stdout.strip() == machine_key(detect())


@pytest.mark.parametrize(
    "changed",
    [
        replace(MACHINE, memory=replace(MACHINE.memory, total_bytes=61 << 30, available_bytes=1)),  # the kernel kept more
        replace(MACHINE, cpu=replace(MACHINE.cpu, clock_hz=1e9, memory_bytes=4 << 30, system="Linux 9", flags=("avx2",))),
        replace(MACHINE, container=Container(None, 4 << 30)),
        replace(MACHINE, disks=(), gpus_told_by="NVML"),
    ],
)
def test_what_wobbles_leaves_the_key_alone(changed):
    assert machine_key(changed) == machine_key(MACHINE)


@pytest.mark.parametrize(
    "changed",
    [
        replace(MACHINE, cpu=replace(MACHINE.cpu, name="Intel(R) Xeon(R) Platinum 8380H CPU @ 2.90GHz")),
        replace(MACHINE, cpu=replace(MACHINE.cpu, cores=20)),
        replace(MACHINE, memory=Memory(126 << 30)),
        replace(MACHINE, gpus=(Gpu("NVIDIA L4", 23034 << 20),)),
        replace(MACHINE, pci_gpus=("0x1002:0x74a1",)),
    ],
)
def test_other_hardware_has_another_key(changed):
    assert machine_key(changed) != machine_key(MACHINE)


def test_a_driver_keeping_more_memory_leaves_the_key_alone():
    keys = {machine_key(replace(MACHINE, gpus=(Gpu("NVIDIA H100 80GB HBM3", mib << 20),))) for mib in (81559, 81251, 80994)}
    assert len(keys) == 1
