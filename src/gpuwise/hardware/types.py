"""What the world offers, as frozen values. Units are in the names; unknown is None, never 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property

from gpuwise.printed import Printed

PEAKS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8")
CHIP_KINDS = ("gpu-consumer", "gpu-workstation", "gpu-datacenter", "tpu", "npu", "asic", "fpga", "cpu", "neuromorphic")
LINK_KINDS = ("scale-up", "scale-out", "host")
TERMS = ("on-demand", "spot", "reserved-1y", "reserved-3y", "owned", "free")

# What PyTorch's total_memory shows is less than the marketed GiB. Two deductions:
# inline ECC of GDDR5/6 cards takes 1/16 (Tesla T4: nvidia-smi shows 15360 of 16384 MiB; A40 and L40S 46068 of 49152);
_ECC_SHARE = 1 / 16
# and the driver keeps about 1.2 % (total_memory in MiB as printed by public training logs: T4 15102 of 15360 left by
# ECC, RTX 3090 24268 and RTX 4090 24217 of 24576, A100 40536 of 40960 and 81251 of 81920).
_DRIVER_SHARE = 0.012
# Apple lets the GPU use about 75 % of unified memory (Metal's recommendedMaxWorkingSetSize on larger machines).
_UNIFIED_SHARE = 0.75


@dataclass(frozen=True)
class Source:
    """Where a figure comes from. as_of: a day, month, year or range of them. verified False: no source found yet."""

    text: str
    as_of: str
    verified: bool = True

    def __str__(self) -> str:
        return f"{self.text}, {self.as_of}" + ("" if self.verified else " (unverified)")


UNSTATED = Source("not stated", "", verified=False)


@dataclass(frozen=True)
class _Sourced:
    """Figures with their sources: `source` for the row, `sources` for the figures that differ, by field name."""

    source: Source = field(default=UNSTATED, kw_only=True)
    sources: Mapping[str, Source] = field(default_factory=dict, kw_only=True, hash=False)
    caveats: Mapping[str, str] = field(default_factory=dict, kw_only=True, hash=False)
    notes: str = field(default="", kw_only=True)

    def source_of(self, figure: str) -> Source:
        """The source of one figure, named as the field is (`tdp_w`); of peak rates by precision (`fp16`).

        Raises KeyError for a name that is no figure of this type.
        """
        if figure not in PEAKS and figure not in {f.name for f in fields(self)}:
            raise KeyError(figure)
        return self.sources.get(figure, self.source)

    @property
    def figures(self) -> dict[str, object]:
        """The known figures by name, peak rates spread out by precision."""
        skip = {"source", "sources", "caveats", "notes", "id", "name", "trains", "calibration", "achieved"}
        if getattr(self, "devices_per_package", 1) == 1:
            skip.add("devices_per_package")  # nothing is claimed
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in skip}
        values.update(values.pop("peak_flops_per_s", {}))
        return {name: value for name, value in values.items() if value not in (None, "")}

    @cached_property
    def unverified(self) -> tuple[str, ...]:
        """Names of the known figures that have no verified source; listings mark them."""
        return tuple(name for name in self.figures if not self.source_of(name).verified)

    def to_dict(self) -> dict[str, object]:
        """Plain types, known values only, with the names of unverified figures."""
        values = {key: value for key, value in asdict(self).items() if value not in (None, "", {})}
        return values | {"unverified": list(self.unverified)}


@dataclass(frozen=True)
class AchievedRates:
    """What `gpuwise measure` reached on the GPUs of this machine. None or missing: not measured.

    Attributes:
        peak_flops_per_s: the quickest matrix product, by precision.
        memory_bandwidth_bytes_per_s: of copies and triads.
        host_link_bytes_per_s: of a large copy from pinned memory, the slower direction.
        all_reduce_devices: devices that took part in collectives.
        all_reduce_busbw_bytes_per_s: bus bandwidth of the largest all-reduce.
        all_reduce_latency_s: time of the smallest all-reduce.
        host_link_error, all_reduce_error: half the distance of the 10th and 90th percentile, as a share of the median.
    """

    peak_flops_per_s: Mapping[str, float] = field(default_factory=dict, hash=False)
    memory_bandwidth_bytes_per_s: float | None = None
    host_link_bytes_per_s: float | None = None
    host_link_error: float = 0.0
    all_reduce_devices: int = 0
    all_reduce_busbw_bytes_per_s: float | None = None
    all_reduce_latency_s: float | None = None
    all_reduce_error: float = 0.0


@dataclass(frozen=True, repr=False)
class Chip(Printed, _Sourced):
    """A device as PyTorch sees it, of one product: form factor and memory size included ("H100" alone is several).

    package, devices_per_package: what is sold where that is several devices, such as a board of two GPUs; "" and 1 where
    the device is sold alone. All figures but the link's are of one device.
    peak_flops_per_s: DENSE rates with fp32 accumulate by precision (int8: operations); a missing key is unknown.
    link_bandwidth_bytes_per_s: one direction, of the whole package. memory_bytes: marketed; None for CPUs, whose memory is
    the machine's. sm_count: multiprocessors, compute units or CPU cores. trains: False where nothing trains on it, such
    as chips sold for inference alone. caveats: checks this chip fails, and why. calibration: path of the file that `measure`
    wrote, where this is the chip of this machine; never read from a catalog.
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
    def usable_memory_bytes(self) -> int | None:
        """About what PyTorch's total_memory shows on this chip; None where memory_bytes is."""
        if self.memory_bytes is None:
            return None
        kind = self.memory_type or ""
        if "unified" in kind or "shared" in kind:
            return round(self.memory_bytes * _UNIFIED_SHARE)
        if not self.kind.startswith("gpu-"):
            return self.memory_bytes
        # Workstation cards ship with ECC off; GDDR7 and HBM carry ECC without taking from the size.
        inline_ecc = self.ecc and self.kind == "gpu-datacenter" and kind.startswith(("GDDR5", "GDDR6"))
        left = self.memory_bytes * (1 - _ECC_SHARE) if inline_ecc else self.memory_bytes
        return round(left * (1 - _DRIVER_SHARE))


@dataclass(frozen=True)
class Link(_Sourced):
    """A connection. Bandwidths are one direction: of a whole package (scale-up), of a slot (host), of a port, or of a
    node as `notes` says (scale-out). domain_devices: how many devices it joins at most.
    allreduce_busbw_bytes_per_s: measured bus bandwidth under allreduce_condition."""

    id: str
    name: str
    kind: str
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


@dataclass(frozen=True)
class Machine:
    """`count` chips in one host (for CPUs: sockets), the link among them and the link to other machines."""

    chip: Chip
    count: float
    link: Link | None = None
    link_between: Link | None = None
    host_cores: int | None = None
    host_memory_bytes: int | None = None
    name: str = ""


@dataclass(frozen=True, repr=False)
class Offer(Printed, _Sourced):
    """One way to get a machine at a price: a row of a price list under one kind of terms.

    count: devices; below 1 a slice of one; 0 means that the host CPU (`chip_id`) is the device.
    usd_per_hour: of the whole row. max_session_hours, hours_per_week: None when unlimited.
    stale: the price is over a year older than the newest price that gpuwise ships.
    caveats: why this price is out of line, by kind of terms; show it wherever the price is shown.
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
