"""What was detected of a machine, in a line a part. Takes the plain types of its to_dict, as measurements keep them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gpuwise.units import format_bytes


def detected_words(detected: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Label and words of each part of which something is known."""
    parts = [
        ("processor", _processor(detected.get("cpu") or {})),
        ("memory", _memory(detected.get("memory") or {})),
        ("container", _container(detected.get("container") or {})),
        ("GPUs", "; ".join(dict.fromkeys(_gpu(gpu) for gpu in _many(detected.get("gpus"))))),
        ("disks", "; ".join(dict.fromkeys(_disk(disk) for disk in _many(detected.get("disks"))))),
        ("system", _system(detected.get("system") or {})),
    ]
    return [(label, words) for label, words in parts if words]


def joined_words(interconnect: Mapping[str, Any]) -> str:
    """'2 sockets, 4 NUMA nodes, NVLink (6 pairs of GPUs)': what is not as in every machine, else nothing."""
    sockets, nodes = interconnect.get("sockets") or 0, len(interconnect.get("numa_nodes") or ())
    paths = Counter(pair["path"] for pair in _many(interconnect.get("gpu_pairs")))
    return _listed(
        _counted(sockets, "socket") if sockets > 1 else None,
        _counted(nodes, "NUMA node") if nodes > 1 else None,
        *(f"{path} ({_counted(pairs, 'pair')} of GPUs)" for path, pairs in paths.items()),
    )


def _many(found: Any) -> Sequence[Mapping[str, Any]]:
    return found if isinstance(found, list | tuple) else ()


def _processor(cpu: Mapping[str, Any]) -> str:
    """'AMD EPYC 9R14, 2 cores, 4 threads, avx512, L1 32 KiB, L2 1 MiB'"""
    clock = cpu.get("clock_hz")
    caches = [f"{level} {format_bytes(size)}" for level, size in sorted((cpu.get("cache_bytes") or {}).items())]
    return _listed(
        cpu.get("name"),
        _counted(cpu.get("cores"), "core"),
        _counted(cpu.get("threads"), "thread"),
        clock and f"{clock / 1e9:.3g} GHz",
        *(cpu.get("flags") or ()),
        *caches,
    )


def _memory(memory: Mapping[str, Any]) -> str:
    total, available = memory.get("total_bytes"), memory.get("available_bytes")
    return _listed(
        total and format_bytes(total),
        available and f"{format_bytes(available)} of it available",
        memory.get("kind"),
        _counted(memory.get("channels"), "channel"),
    )


def _container(container: Mapping[str, Any]) -> str:
    cpus, memory = container.get("cpus"), container.get("memory_bytes")
    return _listed(cpus and f"limited to {cpus:.3g} processors", memory and f"limited to {format_bytes(memory)}")


def _gpu(gpu: Mapping[str, Any]) -> str:
    memory, power, usual = gpu.get("memory_bytes"), gpu.get("power_limit_w"), gpu.get("default_power_limit_w")
    limit = power and f"power limit {power:.0f} W" + (f" (default {usual:.0f} W)" if usual and usual != power else "")
    driver = gpu.get("driver") and f"driver {gpu['driver']}"
    return _listed(gpu.get("name"), memory and format_bytes(memory), limit, driver)


def _system(system: Mapping[str, Any]) -> str:
    return _listed(system.get("name"), "a virtual machine" if system.get("hypervisor") else None, system.get("product"))


def _disk(disk: Mapping[str, Any]) -> str:
    free, turning = disk.get("free_bytes"), disk.get("rotational")
    kind = None if turning is None else "hard disk" if turning else "solid state"
    name = disk.get("model") or disk.get("device")
    return _listed(name, disk.get("file_system"), kind, free and f"{format_bytes(free)} free")


def _counted(count: int | None, noun: str) -> str | None:
    return f"{count:,} {noun}{'' if count == 1 else 's'}" if count else None


def _listed(*words: str | None) -> str:
    return ", ".join(word for word in words if word)
