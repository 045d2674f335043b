"""The memory of this machine: how much, and over how many channels as far as the system tells (EDAC, the firmware's tables)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from gpuwise.hardware.detect.container import Container, detect_container
from gpuwise.hardware.detect.files import ROOT, folders, number, read

# SMBIOS (DMTF DSP0134, 7.18.2): the kinds of memory that machines for this work have.
_KINDS = {0x18: "DDR3", 0x1A: "DDR4", 0x1E: "LPDDR4", 0x20: "HBM", 0x21: "HBM2", 0x22: "DDR5", 0x23: "LPDDR5", 0x24: "HBM3"}
_MEMORY_DEVICE, _END = 17, 127
# "P0 CHANNEL A", "Controller0-ChannelA-DIMM0", "P0_Node0_Channel0_Dimm0"; "DIMM_A1", "P1-DIMMA1", whose letter is the channel.
_CHANNEL = re.compile(r".*?channel[ _]?[A-Z0-9]|.*?DIMM_?[A-Z](?=\d)", re.IGNORECASE)


@dataclass(frozen=True)
class Memory:
    """total_bytes: the machine's. available_bytes: what a program can have now without swapping, no more than its container
    leaves. channels, modules: with memory in them. kind: DDR4, DDR5, ... transfers_per_s: of a channel, 8 bytes each."""

    total_bytes: int | None = None
    available_bytes: int | None = None
    channels: int | None = None
    modules: int | None = None
    kind: str | None = None
    transfers_per_s: float | None = None


def detect_memory(root: Path = ROOT, limits: Container | None = None) -> Memory:
    """The facts in /proc/meminfo, which do not include the channels (see detect_channels)."""
    limits = limits or detect_container(root)
    info = read(root / "proc/meminfo")
    total, available = (re.search(rf"^{key}:\s*(\d+) kB", info, re.MULTILINE) for key in ("MemTotal", "MemAvailable"))
    left = [int(available[1]) * 1024] if available else []
    if limits.memory_bytes is not None:
        left.append(max(0, limits.memory_bytes - (limits.memory_used_bytes or 0)))
    return Memory(int(total[1]) * 1024 if total else None, min(left, default=None))


def detect_channels(memory: Memory, root: Path = ROOT) -> Memory:
    """The memory with its channels: by the kernel's EDAC counters, else by the firmware's tables (root alone reads them)."""
    return _by_firmware(_by_edac(memory, root), root)


def _by_edac(memory: Memory, root: Path) -> Memory:
    channels, kinds, modules = set(), set(), 0
    for controller in folders(root / "sys/devices/system/edac/mc", "mc"):
        for module in folders(controller, "dimm") + folders(controller, "rank"):
            if not number(module / "size"):
                continue
            modules += module.name.startswith("dimm")
            if location := re.search(r"channel (\d+)", read(module / "dimm_location")):
                channels.add((controller.name, location[1]))
            if kind := re.search(r"(?:LP)?DDR\d|HBM\d?", read(module / "dimm_mem_type")):
                kinds.add(kind[0])
    kind_of_all = kinds.pop() if len(kinds) == 1 else None
    return replace(memory, channels=len(channels) or None, modules=modules or None, kind=kind_of_all)


def _by_firmware(memory: Memory, root: Path) -> Memory:
    """Fills in what is not known yet."""
    try:
        table = (root / "sys/firmware/dmi/tables/DMI").read_bytes()
    except OSError:
        return memory
    devices = [
        (fields, strings)
        for kind, fields, strings in _structures(table)
        if kind == _MEMORY_DEVICE and len(fields) > 0x16 and _word(fields, 0x0C)
    ]
    if not devices:
        return memory
    channels = []
    for fields, strings in devices:
        labels = (strings[fields[at] - 1] if 0 < fields[at] <= len(strings) else "" for at in (0x11, 0x10))  # bank, slot
        channels.append(next((match[0].upper() for name in labels if (match := _CHANNEL.match(name))), None))
    kinds = {_KINDS.get(fields[0x12]) for fields, _ in devices}
    speeds = {_word(fields, 0x20) or _word(fields, 0x15) for fields, _ in devices} - {0, 0xFFFF}
    return replace(
        memory,
        channels=memory.channels or (len(set(channels)) if None not in channels else None),
        modules=memory.modules or len(devices),
        kind=memory.kind or (kinds.pop() if len(kinds) == 1 else None),
        transfers_per_s=min(speeds) * 1e6 if speeds else None,
    )


def _structures(table: bytes) -> Iterator[tuple[int, bytes, list[str]]]:
    """Kind, fields and strings of each structure (DSP0134, section 6): strings end in a zero byte, a structure in two."""
    at = 0
    while at + 4 <= len(table) and (length := table[at + 1]) >= 4 and table[at] != _END:
        end = table.find(b"\0\0", at + length)
        if end < 0:
            return
        strings = table[at + length : end].decode("latin-1").split("\0")
        yield table[at], table[at : at + length], [text.strip() for text in strings]
        at = end + 2


def _word(fields: bytes, at: int) -> int:
    return int.from_bytes(fields[at : at + 2], "little") if len(fields) >= at + 2 else 0
