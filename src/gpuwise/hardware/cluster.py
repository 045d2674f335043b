"""Cluster: the devices that run one job together, and the links that join them."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwise.errors import InputError
from gpuwise.hardware.types import Chip, Link


@dataclass(frozen=True)
class Cluster:
    """Equal machines of equal devices.

    Attributes:
        chip: every device, or the slice of one that an offer sells.
        devices_per_machine: devices of one machine, 1 by default.
        machines: 1 by default.
        inside: the link among the devices of a machine; None (default) for a single device, or where it is not known.
        between: the link from machine to machine; None (default) for a single machine, or where it is not known.
        between_serves: whose bandwidth `between` has: "machine" (default), all devices of one together, or "device".
        memory_bytes: what programs can use on one device where that is not the chip's own, as of a CPU, whose memory is
            its machine's; None (default) takes the chip's.
        shared_cores: cores of the CPU that the devices are ranks of, where those are fewer: a rank that waits leaves its core
            to the others. None (default): no device has what another leaves.

    Raises InputError for counts below 1, and for an unknown `between_serves`.
    """

    chip: Chip
    devices_per_machine: int = 1
    machines: int = 1
    inside: Link | None = None
    between: Link | None = None
    between_serves: str = "machine"
    memory_bytes: int | None = None
    shared_cores: int | None = None

    def __post_init__(self) -> None:
        if self.devices_per_machine < 1 or self.machines < 1:
            raise InputError(f"devices and machines must be at least 1, got {self.devices_per_machine} and {self.machines}.")
        if self.between_serves not in ("machine", "device"):
            raise InputError(f"a link between machines serves a machine or a device, not {self.between_serves!r}.")

    def __hash__(self) -> int:
        """Of what tells most clusters apart: collectives look theirs up thousands of times."""
        return hash((self.chip.id, self.devices_per_machine, self.machines))

    @property
    def devices(self) -> int:
        """The total number of devices."""
        return self.devices_per_machine * self.machines

    @property
    def capacity_bytes(self) -> int | None:
        """Bytes that programs can use on one device; None where that is not known."""
        return self.chip.usable_memory_bytes if self.memory_bytes is None else self.memory_bytes

    @property
    def lines_per_machine(self) -> int:
        """How many times a machine has the bandwidth of `between`: once, or once a device."""
        return self.devices_per_machine if self.between_serves == "device" else 1

    @property
    def name(self) -> str:
        """The cluster as on the command line: 'rtx-4090', 'h100-80gb-sxm:8', 'h100-80gb-sxm:8x4'."""
        if self.machines > 1:
            return f"{self.chip.id}:{self.devices_per_machine}x{self.machines}"
        return f"{self.chip.id}:{self.devices_per_machine}" if self.devices_per_machine > 1 else self.chip.id
