"""Matches this machine's hardware with chips of the catalog, by name, or makes local entries with their sources."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import date

from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.detect.cpu import Cpu, detect_cpu
from gpuwise.hardware.detect.gpu import Gpu
from gpuwise.hardware.names import words
from gpuwise.hardware.package import whole_package
from gpuwise.hardware.types import Chip, Source

_FORM_WORDS = {"sxm", "sxm2", "pcie", "nvl", "die", "board", "gpu"}  # in ids; drivers name them differently or not at all
_PART_WORDS = {
    "laptop",
    "max",
}  # in drivers' names of slower parts than the board of that name: "Laptop GPU", "with Max-Q Design"


def match_gpu(gpu: Gpu, chips: Mapping[str, Chip]) -> Chip | None:
    """The catalog chip behind a driver's name: all naming words of the id occur in it and the memory agrees.

    A driver that shows a package of several devices as one has the memory of all of them: their sum is the chip then. Names
    that fit two chips ("MI250X / MI250") are told apart by their multiprocessors. A GPU in a processor has what memory the
    machine has, so sizes tell nothing there; Apple's names are beginnings of each other, so the words must be the same.
    """
    name_words = set(words(gpu.name))
    form = "pcie" if "pcie" in name_words else "nvl" if "nvl" in name_words else "sxm"
    best: tuple[tuple[int, bool, bool], Chip] | None = None
    for id_, chip in chips.items():
        if chip.vendor != gpu.vendor or not chip.kind.startswith("gpu-") or not chip.memory_bytes:
            continue
        naming = {word for word in words(id_) if word not in _FORM_WORDS and not re.fullmatch(r"\d+gb", word)}
        fitting = chip if chip.shares_host_memory else _of_size(chip, gpu.memory_bytes)
        part = naming >= name_words & _PART_WORDS
        if fitting is None or not (naming == name_words if gpu.vendor == "Apple" else naming <= name_words and part):
            continue
        same_units = gpu.multiprocessors is not None and gpu.multiprocessors == fitting.sm_count
        score = (len(naming), any(word.startswith(form) for word in words(id_)), same_units)
        best = (score, fitting) if best is None or score > best[0] else best
    return best[1] if best else None


def _of_size(chip: Chip, memory_bytes: int) -> Chip | None:
    """The chip, or its whole package, whichever has about as much memory; else None."""
    assert chip.memory_bytes
    if 0.9 < memory_bytes / chip.memory_bytes < 1.03:
        return chip
    whole = chip.memory_bytes * chip.devices_per_package
    return whole_package(chip) if chip.devices_per_package > 1 and 0.9 < memory_bytes / whole < 1.03 else None


def chip_of_gpu(gpu: Gpu, chips: Mapping[str, Chip], *, told_by: str = "the driver of this machine") -> Chip:
    """The catalog's chip, or a local entry without rates. A GPU in a processor has this machine's memory; one name of Apple
    covers several numbers of GPU cores (`multiprocessors`)."""
    chip = match_gpu(gpu, chips)
    if chip is None:
        return unknown_gpu(gpu, told_by)
    if not chip.shares_host_memory:
        return chip
    if gpu.vendor != "Apple":
        return chip if _of_size(chip, gpu.memory_bytes) else _with_memory(chip, gpu, told_by)
    cores = gpu.multiprocessors or chip.sm_count
    chip = chips.get(f"{chip.id}-{cores}-core", chip)
    if not cores or not chip.sm_count or (cores, gpu.memory_bytes) == (chip.sm_count, chip.memory_bytes):
        return chip
    return replace(
        chip,
        id="here-gpu",
        name=f"{gpu.name} ({cores}-core GPU)",
        memory_bytes=gpu.memory_bytes,
        sm_count=cores,
        peak_flops_per_s={precision: rate * cores / chip.sm_count for precision, rate in chip.peak_flops_per_s.items()},
        source=Source(f"{chip.id} scaled to {cores} GPU cores", date.today().isoformat(), verified=False),
        sources={},
    )


def _with_memory(chip: Chip, gpu: Gpu, told_by: str) -> Chip:
    """The chip with as much memory as the driver shows of this machine's."""
    source = Source(told_by, date.today().isoformat())
    sources = {**chip.sources, "memory_bytes": source}
    return replace(chip, id="here-gpu", name=gpu.name, memory_bytes=gpu.memory_bytes, sources=sources)


def unknown_gpu(gpu: Gpu, source_text: str = "the driver of this machine") -> Chip:
    """A local entry for a GPU the catalog does not have: its memory, and no rates."""
    source = Source(source_text, date.today().isoformat())
    return Chip(
        "here-gpu",
        gpu.vendor,
        gpu.name,
        "gpu-consumer",
        memory_bytes=gpu.memory_bytes,
        source=source,
        compute_capability=gpu.compute_capability,
        boost_clock_hz=gpu.clock_hz,
        pcie_generation=gpu.pcie_generation,
        notes="not in the catalog: rates unknown; add it in a file of your own",
    )


def local_cpu_chip(cpu: Cpu, catalog: Catalog) -> Chip:
    """A Chip for this machine's CPU: the catalog's scaled to the cores here, or an estimate that says it is one."""
    today = date.today().isoformat()
    listed_chip = match_cpu(cpu, catalog.chips)
    if listed_chip is not None and listed_chip.sm_count:
        if listed_chip.sm_count == cpu.cores:
            return listed_chip
        share = cpu.cores / listed_chip.sm_count
        bandwidth = listed_chip.memory_bandwidth_bytes_per_s
        return replace(
            listed_chip,
            id="here-cpu",
            name=f"{cpu.name} ({cpu.cores} cores)",
            sm_count=cpu.cores,
            peak_flops_per_s={k: v * share for k, v in listed_chip.peak_flops_per_s.items()},
            memory_bandwidth_bytes_per_s=bandwidth and bandwidth * min(1.0, share),
            tdp_w=None,
            source=Source(f"{listed_chip.id} scaled to {cpu.cores} cores", today, verified=False),
            sources={},
        )
    width = _flop_per_clock(cpu.flags)
    clock = cpu.clock_hz or 2.5e9  # when the system does not tell: a common base clock of servers
    peaks = {"fp32": cpu.cores * clock * width, "fp64": cpu.cores * clock * width / 2}
    if "avx512-bf16" in cpu.flags:  # VDPBF16PS: two multiply-adds where an fp32 lane does one (Intel's manual)
        peaks["bf16"] = 2 * peaks["fp32"]
    if "amx" in cpu.flags:
        peaks["bf16"] = cpu.cores * clock * 2048  # AMX: 1024 multiply-adds of bf16 a clock and core (Intel's manual)
    # Memory: 10 GB/s a core, no more than two channels of DDR4-3200 (51.2 GB/s) at 80 %: low for a server on purpose.
    bandwidth = min(cpu.cores * 10e9, 41e9)
    # Zen 4 or later: by the name of the generation that calibration has figures for.
    architecture = "AMD AVX-512" if cpu.vendor == "AMD" and "avx512-bf16" in cpu.flags else None
    text = f"estimate: {cpu.cores} cores × {clock / 1e9:.2f} GHz × {width} FLOP a clock; memory 10 GB/s a core up to 41"
    return Chip(
        "here-cpu",
        cpu.vendor,
        f"{cpu.name} ({cpu.cores} cores)",
        "cpu",
        architecture=architecture,
        sm_count=cpu.cores,
        l2_bytes=cpu.cache_bytes.get("L3") or cpu.cache_bytes.get("L2"),
        boost_clock_hz=cpu.clock_hz,
        memory_bandwidth_bytes_per_s=bandwidth,
        peak_flops_per_s=peaks,
        source=Source(text, today, verified=False),
    )


def match_cpu(cpu: Cpu, chips: Mapping[str, Chip]) -> Chip | None:
    """The catalog CPU whose id's words (xeon 8380, i9 13900k) all stand in this CPU's name."""
    name_words = set(words(cpu.name))
    cpus = (chip for chip in chips.values() if chip.kind == "cpu" and chip.vendor == cpu.vendor)
    return next((chip for chip in cpus if set(words(chip.id)) <= name_words), None)


def most_like_this(catalog: Catalog) -> Chip:
    """The chip of DEVICE `cpu`: the catalog CPU of this vendor (else of any) whose peak is nearest to this machine's."""
    cpu = detect_cpu()
    here = local_cpu_chip(cpu, catalog).peak_flops_per_s["fp32"]
    cpus = [chip for chip in catalog.chips.values() if chip.kind == "cpu" and "fp32" in chip.peak_flops_per_s]
    same = [chip for chip in cpus if chip.vendor == cpu.vendor] or cpus
    return min(same, key=lambda chip: max(chip.peak_flops_per_s["fp32"] / here, here / chip.peak_flops_per_s["fp32"]))


def _flop_per_clock(flags: tuple[str, ...]) -> int:
    """fp32 FLOP a clock and core: two FMA units of the vector width (512, 256 or 128 bits)."""
    return 64 if "avx512" in flags else 32 if "avx2" in flags or "sve" in flags else 16
