"""Chips, links, machines and offers as frozen values. Names carry the units; an unknown figure is None, never 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuwise.hardware.sourced import PEAKS as PEAKS
from gpuwise.hardware.sourced import UNSTATED as UNSTATED
from gpuwise.hardware.sourced import Source as Source
from gpuwise.hardware.sourced import SourcedFigures
from gpuwise.printed import Printed

CHIP_KINDS = (
    "gpu-consumer",
    "gpu-workstation",
    "gpu-datacenter",
    "gpu-edge",
    "tpu",
    "npu",
    "asic",
    "fpga",
    "cpu",
    "neuromorphic",
)
LINK_KINDS = ("scale-up", "scale-out", "host")
# How a link joins devices: all behind a switch | each to each | NVLink of eight GPUs without a switch (DGX-1) | modules of two
# devices | a torus with two or three axes | two devices alone | slots of one host | a network of machines.
FABRICS = ("switch", "mesh", "cube-mesh", "paired-modules", "torus-2d", "torus-3d", "pair", "bus", "network")
LINK_SERVES = ("device", "port", "machine")
TERMS = ("on-demand", "spot", "reserved-1y", "reserved-3y", "owned", "free")

# PyTorch's total_memory is less than the marketed GiB. Two deductions:
# inline ECC of GDDR5/6 cards takes 1/16 (Tesla T4: nvidia-smi shows 15360 of 16384 MiB; A40 and L40S 46068 of 49152);
_ECC_SHARE = 1 / 16
# and the driver keeps about 1.2 % (total_memory in MiB as printed by public training logs: T4 15102 of 15360 left by
# ECC, RTX 3090 24268 and RTX 4090 24217 of 24576, A100 40536 of 40960 and 81251 of 81920).
_DRIVER_SHARE = 0.012
# Apple lets the GPU use about 75 % of unified memory (Metal's recommendedMaxWorkingSetSize on larger machines), and AMD's
# driver for Windows 96 of 128 GB. A DGX Spark shows 121.6 of 128 GiB (llmfit's public benchmarks).
_UNIFIED_SHARE, _UNIFIED_SHARE_OF_NVIDIA = 0.75, 0.95


@dataclass(frozen=True)
class AchievedRates:
    """Rates that `gpuwise measure` reached on this machine: on its GPUs, and between processes on its CPU. None or a missing
    key: not measured.

    Attributes:
        peak_flops_per_s: rate of the fastest matrix product, by precision.
        memory_bandwidth_bytes_per_s: bandwidth of copies and triads.
        host_link_bytes_per_s: bandwidth of a large copy from pinned memory, in the slower direction.
        all_reduce_devices: number of devices, or processes on a CPU, in the measured collectives.
        all_reduce_busbw_bytes_per_s: bus bandwidth of the largest all-reduce.
        all_reduce_latency_s: time of the fastest all-reduce of any size.
        host_link_error: half the distance of the 10th and 90th percentile, as a share of the median.
        all_reduce_error: the same for all-reduces.
        collective_busbw_bytes_per_s: bus bandwidth of the largest call of each collective, by name.
        collective_spread: smallest 10th and largest 90th percentile of the calls of all sizes, relative to what these rates
            give; None: not measured.
        threads: threads of a CPU that its figures were measured with; 0 where unknown.
    """

    peak_flops_per_s: Mapping[str, float] = field(default_factory=dict, hash=False)
    memory_bandwidth_bytes_per_s: float | None = None
    host_link_bytes_per_s: float | None = None
    host_link_error: float = 0.0
    all_reduce_devices: int = 0
    all_reduce_busbw_bytes_per_s: float | None = None
    all_reduce_latency_s: float | None = None
    all_reduce_error: float = 0.0
    collective_busbw_bytes_per_s: Mapping[str, float] = field(default_factory=dict, hash=False)
    collective_spread: tuple[float, float] | None = None
    threads: int = 0


@dataclass(frozen=True, repr=False)
class Chip(Printed, SourcedFigures):
    """One device as PyTorch sees it, of one product with its form factor and memory size ("H100" alone is several products).

    Figures are per device; figures of links are per package. An unknown figure is None. Figures come from the makers'
    datasheets unless `source` or `sources` names another origin.

    Attributes:
        id: the chip's id in the catalog: lower-case letters, digits and hyphens.
        vendor: the maker.
        name: the product's name, as the maker writes it.
        kind: one of CHIP_KINDS.
        package: name of a product of several devices, such as a board of two GPUs; "" for a device that is sold alone.
        devices_per_package: number of devices in the package; 1 for a device that is sold alone.
        architecture: the maker's name for the design.
        compute_capability: NVIDIA's compute capability, major and minor.
        year: year of release.
        memory_bytes: marketed size; None for CPUs, whose memory is the machine's.
        memory_type: HBM3, GDDR6X, "unified LPDDR5", ...
        memory_bandwidth_bytes_per_s: bandwidth of the memory.
        ecc: whether the memory corrects errors.
        l2_bytes: size of the last cache that all units share.
        sm_count: number of multiprocessors, compute units or CPU cores.
        shared_memory_per_sm_bytes: shared memory of one multiprocessor.
        cuda_cores: total number of CUDA cores.
        tensor_cores: total number of tensor cores.
        boost_clock_hz: highest clock in the datasheet.
        peak_flops_per_s: DENSE rates with fp32 accumulation, by precision (int8: operations); a missing key is unknown.
        interconnect: the link in the datasheet's words.
        link_id: id of the link in the catalog.
        link_bandwidth_bytes_per_s: bandwidth in one direction, of the whole package.
        pcie_generation: PCIe generation of the slot.
        tdp_w: thermal design power in watts.
        msrp_usd: the maker's price.
        street_price_usd: the price in shops.
        trains: False for chips that nothing trains on, such as chips sold for inference alone.
        calibration: path of the file that `gpuwise measure` wrote for this machine's chip; "" in a catalog.
        achieved: rates that `gpuwise measure` reached on this machine; None in a catalog.
    """

    id: str
    vendor: str
    name: str
    kind: str
    package: str = ""
    devices_per_package: int = 1
    architecture: str | None = None
    compute_capability: tuple[int, int] | None = None
    year: int | None = None
    memory_bytes: int | None = None
    memory_type: str | None = None
    memory_bandwidth_bytes_per_s: float | None = None
    ecc: bool | None = None
    l2_bytes: int | None = None
    sm_count: int | None = None
    shared_memory_per_sm_bytes: int | None = None
    cuda_cores: int | None = None
    tensor_cores: int | None = None
    boost_clock_hz: float | None = None
    peak_flops_per_s: Mapping[str, float] = field(default_factory=dict, hash=False)
    interconnect: str | None = None
    link_id: str | None = None
    link_bandwidth_bytes_per_s: float | None = None
    pcie_generation: int | None = None
    tdp_w: float | None = None
    msrp_usd: float | None = None
    street_price_usd: float | None = None
    trains: bool = True
    calibration: str = ""
    achieved: AchievedRates | None = None

    @property
    def shares_host_memory(self) -> bool:
        """Whether device and host share one memory, as of Apple's chips."""
        kind = self.memory_type or ""
        return "unified" in kind or "shared" in kind

    @property
    def usable_memory_bytes(self) -> int | None:
        """Approximately PyTorch's total_memory on this chip; None where memory_bytes is None."""
        if self.memory_bytes is None:
            return None
        kind = self.memory_type or ""
        if self.shares_host_memory:
            return round(self.memory_bytes * (_UNIFIED_SHARE_OF_NVIDIA if self.vendor == "NVIDIA" else _UNIFIED_SHARE))
        if not self.kind.startswith("gpu-"):
            return self.memory_bytes
        # Workstation cards ship with ECC off; GDDR7 and HBM carry ECC without taking from the size.
        inline_ecc = self.ecc and self.kind == "gpu-datacenter" and kind.startswith(("GDDR5", "GDDR6"))
        left = self.memory_bytes * (1 - _ECC_SHARE) if inline_ecc else self.memory_bytes
        return round(left * (1 - _DRIVER_SHARE))


@dataclass(frozen=True)
class Link(SourcedFigures):
    """A connection between devices. Bandwidths are for one direction; an unknown figure is None.

    Figures come from the maker's pages unless `source` or `sources` names another origin.

    Attributes:
        id: the link's id in the catalog.
        name: the link's name in words.
        kind: one of LINK_KINDS.
        technology: name of the figures that price collectives over the link, see cost.network.figures; "" (default) takes
            those of its kind.
        fabric: one of FABRICS; "" (default) counts as a switch.
        serves: whose bandwidth `per_direction_bytes_per_s` is, one of LINK_SERVES: a device's (default), a port's, of which a
            machine may have several, or all of a machine's.
        reduces_in_switch: whether its switches add up what passes them. Default False.
        year: year of release.
        links_per_device: number of lanes or links of one device.
        per_link_bytes_per_s: bandwidth of one lane or link.
        per_direction_bytes_per_s: bandwidth of all lanes or links of a device.
        domain_devices: largest number of devices that the link joins.
        latency_s: latency of one message.
        allreduce_busbw_bytes_per_s: measured bus bandwidth of all-reduces.
        allreduce_condition: machine and method of that measurement.
        used_by: chips and machines with this link.
        achieved_bytes_per_s: bandwidth of copies, measured on this machine; None in a catalog.
        collective_busbw_bytes_per_s: measured bus bandwidth of collectives, by name; others have that of all-reduces.
        exchange_spread: low and high of real over forecast times of exchanges, with 90 % between them; None where they have
            the spread of other figures of datasheets.
    """

    id: str
    name: str
    kind: str
    technology: str = ""
    fabric: str = ""
    serves: str = "device"
    reduces_in_switch: bool = False
    year: int | None = None
    links_per_device: int | None = None
    per_link_bytes_per_s: float | None = None
    per_direction_bytes_per_s: float | None = None
    domain_devices: int | None = None
    latency_s: float | None = None
    allreduce_busbw_bytes_per_s: float | None = None
    allreduce_condition: str | None = None
    used_by: str | None = None
    achieved_bytes_per_s: float | None = None
    collective_busbw_bytes_per_s: Mapping[str, float] = field(default_factory=dict, hash=False)
    exchange_spread: tuple[float, float] | None = None


@dataclass(frozen=True)
class Machine:
    """One host with its devices.

    Attributes:
        chip: chip of every device.
        count: number of devices; below 1 for a slice of one; sockets for CPUs.
        link: link between the devices; None for a single device.
        link_between: link to other machines; None where unknown.
        host_cores: physical cores of the host.
        host_memory_bytes: memory of the host.
        name: name in words.
    """

    chip: Chip
    count: float
    link: Link | None = None
    link_between: Link | None = None
    host_cores: int | None = None
    host_memory_bytes: int | None = None
    name: str = ""


@dataclass(frozen=True, repr=False)
class Offer(Printed, SourcedFigures):
    """A machine at a price: a row of a price list under one kind of terms.

    Attributes:
        provider, instance, region: in the provider's words.
        chip_id: id of the chip in the catalog.
        count: number of devices; below 1 for a slice of one; 0 means that the host CPU (`chip_id`) is the device.
        terms: one of TERMS.
        usd_per_hour: price of the whole machine.
        vcpus: virtual CPUs of the host.
        host_memory_bytes, local_disk_bytes: memory and local disk of the host.
        interconnect: link between the devices, in the provider's words.
        network_bytes_per_s: network bandwidth of a node in one direction.
        network_link_id: id of the link between machines in the catalog.
        max_session_hours, hours_per_week: limits of a free tier; None where unlimited.
        stale: whether the price is over a year old.
    `caveats` say why this price is out of line, by kind of terms; they are shown wherever the price is.
    """

    provider: str
    instance: str
    region: str
    chip_id: str
    count: float
    terms: str
    usd_per_hour: float
    vcpus: int | None = None
    host_memory_bytes: int | None = None
    local_disk_bytes: int | None = None
    interconnect: str | None = None
    network_bytes_per_s: float | None = None
    network_link_id: str | None = None
    max_session_hours: float | None = None
    hours_per_week: float | None = None
    stale: bool = False

    def __post_init__(self) -> None:
        if self.count == int(self.count):
            object.__setattr__(self, "count", int(self.count))  # 8 devices, not 8.0

    @property
    def as_of(self) -> str:
        """The date of the price."""
        return self.source_of("usd_per_hour").as_of

    @property
    def devices(self) -> float:
        """Devices the price buys: `count`, and 1 for a CPU offer."""
        return self.count or 1

    @property
    def usd_per_device_hour(self) -> float:
        return self.usd_per_hour / self.devices
