"""The detected parts of a machine, one a line. The input is the plain types of its to_dict, as measurements store them."""

from __future__ import annotations

from collections import Counter

from gpuwise.report.plain import Record, number, part, parts, text, texts
from gpuwise.units import counted, format_bytes


def detected_words(detected: Record) -> list[tuple[str, str]]:
    """Label and words of each part of which something is known."""
    rows = [
        ("processor", _processor(part(detected, "cpu"))),
        ("memory", _memory(part(detected, "memory"))),
        ("container", _container(part(detected, "container"))),
        ("GPUs", "; ".join(dict.fromkeys(map(_gpu, parts(detected, "gpus"))))),
        ("disks", "; ".join(dict.fromkeys(map(_disk, parts(detected, "disks"))))),
        ("system", _system(part(detected, "system"))),
    ]
    return [(label, words) for label, words in rows if words]


def joined_words(interconnect: Record) -> str:
    """'2 sockets, 4 NUMA nodes, NVLink (6 pairs of GPUs)': what is not as in every machine, else nothing."""
    sockets, nodes = number(interconnect, "sockets") or 0, len(parts(interconnect, "numa_nodes"))
    paths = Counter(text(pair, "path") for pair in parts(interconnect, "gpu_pairs"))
    return _listed(
        counted(sockets, "socket") if sockets > 1 else "",
        counted(nodes, "NUMA node") if nodes > 1 else "",
        *(f"{path} ({counted(pairs, 'pair')} of GPUs)" for path, pairs in paths.items()),
    )


def _processor(cpu: Record) -> str:
    """'AMD EPYC 9R14, 2 cores, 4 threads, avx512, L1 32 KiB, L2 1 MiB'"""
    clock, caches = number(cpu, "clock_hz"), part(cpu, "cache_bytes")
    return _listed(
        text(cpu, "name"),
        _counted(number(cpu, "cores"), "core"),
        _counted(number(cpu, "threads"), "thread"),
        f"{clock / 1e9:.3g} GHz" if clock else "",
        *texts(cpu, "flags"),
        *(f"{level} {_bytes(caches, level)}" for level in sorted(caches)),
    )


def _memory(memory: Record) -> str:
    return _listed(
        _bytes(memory, "total_bytes"),
        _bytes(memory, "available_bytes", " of it available"),
        text(memory, "kind"),
        _counted(number(memory, "channels"), "channel"),
    )


def _container(container: Record) -> str:
    cpus, memory = number(container, "cpus"), _bytes(container, "memory_bytes")
    return _listed(f"limited to {cpus:.3g} processors" if cpus else "", f"limited to {memory}" if memory else "")


def _gpu(gpu: Record) -> str:
    power, usual = number(gpu, "power_limit_w"), number(gpu, "default_power_limit_w")
    limit = f"power limit {power:.0f} W" if power else ""
    if limit and usual and usual != power:
        limit += f" (default {usual:.0f} W)"
    driver = text(gpu, "driver")
    return _listed(text(gpu, "name"), _bytes(gpu, "memory_bytes"), limit, f"driver {driver}" if driver else "")


def _system(system: Record) -> str:
    return _listed(text(system, "name"), "a virtual machine" if system.get("hypervisor") else "", text(system, "product"))


def _disk(disk: Record) -> str:
    rotational = disk.get("rotational")
    kind = "" if rotational is None else "hard disk" if rotational else "solid state"
    name = text(disk, "model") or text(disk, "device")
    return _listed(name, text(disk, "file_system"), kind, _bytes(disk, "free_bytes", " free"))


def _bytes(record: Record, name: str, ending: str = "") -> str:
    value = number(record, name)
    return f"{format_bytes(value)}{ending}" if value else ""


def _counted(count: float | None, noun: str) -> str:
    return counted(count, noun) if count else ""


def _listed(*words: str) -> str:
    return ", ".join(word for word in words if word)
