"""Servers that share one processor: each is a process on its part of the cores, with that part of everything else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpuwise.api.devices import Device
from gpuwise.api.shared_cpu import share_of_cpu
from gpuwise.errors import InputError, UnsupportedError
from gpuwise.hardware.types import Chip
from gpuwise.plan.space.legal import slice_of
from gpuwise.serving.pass_times import sizes_up_to
from gpuwise.serving_settings import ServingSettings

AUTO = "auto"
MOST_SERVERS = 1024


def servers_of(requested: ServingSettings) -> int | None:
    """Servers of a processor; None where they are searched for. Raises InputError for what is no number of them."""
    text = requested.get("servers")
    if text is None:
        return 1
    if text.strip().lower() == AUTO:
        return None
    if not text.strip().isdecimal() or not 1 <= int(text) <= MOST_SERVERS:
        raise InputError(
            f"{text!r} is no number of servers on a processor.", [f"--servers {AUTO}", f"--servers 4 (1 to {MOST_SERVERS:,})"]
        )
    return int(text)


def check_servers_share(devices: Sequence[Device], servers: int | None) -> None:
    """Raises InputError where several servers are named, and none of the devices is a processor."""
    if servers != 1 and not any(device.chip.kind == "cpu" for device in devices):
        raise InputError(
            "--servers share the cores of a processor, and none of these devices is one.",
            ["leave out --servers: each device has a copy of the model", "--on here, or a processor such as ryzen-5950x"],
        )


def servers_considered(device: Device, servers: int | None) -> list[int]:
    """The numbers of servers on a device: those named, or 1, 2, 4 to its cores; 1 where it is no processor.

    Raises UnsupportedError for more servers than cores.
    """
    if device.chip.kind != "cpu":
        return [1]
    cores = device.chip.sm_count or 1
    if servers is None:
        return sizes_up_to(cores)
    if servers > cores:
        raise UnsupportedError(f"{servers:,} servers are more than the {cores:,} cores of {device.chip.id}")
    return [servers]


def threads_of(device: Device, servers: int) -> int:
    """Threads of each of several servers; 0 for one, which has all cores, and where their number is not known."""
    return (device.chip.sm_count or 0) // servers if servers > 1 else 0


def server_part(device: Device, servers: int) -> Device:
    """The device as one of several servers has it while all run: an equal part of its cores, rates, caches and memory."""
    if servers == 1:
        return device
    cluster = device.spec.cluster
    memory_bytes = None if cluster.memory_bytes is None else cluster.memory_bytes // servers
    part = replace(cluster, chip=_part_of_chip(cluster.chip, servers), memory_bytes=memory_bytes)
    return replace(device, spec=replace(device.spec, cluster=part))


def _part_of_chip(chip: Chip, servers: int) -> Chip:
    share = share_of_cpu(chip, servers)
    part = replace(slice_of(chip, share), l2_bytes=None if chip.l2_bytes is None else chip.l2_bytes // servers)
    if chip.achieved is None:
        return part
    bandwidth = chip.achieved.memory_bandwidth_bytes_per_s
    achieved = replace(
        chip.achieved,
        peak_flops_per_s={name: rate * share for name, rate in chip.achieved.peak_flops_per_s.items()},
        memory_bandwidth_bytes_per_s=None if bandwidth is None else bandwidth * share,
    )
    return replace(part, achieved=achieved)
