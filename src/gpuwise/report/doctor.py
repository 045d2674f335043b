"""An Installation as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType

from gpuwise.report.detected import detected_words
from gpuwise.report.parts import grid, heading, notes, percent
from gpuwise.units import format_bytes

if TYPE_CHECKING:
    from gpuwise.results.installation import Installation


def doctor_report(installation: Installation) -> Group:
    """Versions, machine, catalog, configuration, presets, and what should be mended."""
    found = installation
    parts: list[RenderableType] = [
        heading("versions"),
        grid([(name, version or "absent") for name, version in found.versions.items()]),
        heading("this machine"),
        grid([("here", found.machine), ("counts as", found.device), *_machine(found)]),
        heading("catalog"),
        grid(
            [
                ("chips", f"{found.chips:,}, with {found.unverified:,} figures unverified"),
                ("links", f"{found.links:,}"),
                ("offers", f"{found.offers:,}, {found.stale_offers:,} of them stale"),
                ("prices", f"of {found.prices_from} to {found.prices_to}"),
                ("your files", ", ".join(found.config_files) or "none"),
            ]
        ),
        heading("recorded presets"),
        grid([(name, f"PyTorch {version}" if version else "missing") for name, version in found.presets.items()]),
    ]
    parts += notes("to mend", found.problems)
    return Group(*parts)


def _machine(found: Installation) -> list[tuple[str, str]]:
    known = dict(detected_words(found.detected))
    known.setdefault("GPUs", ", ".join(found.gpus) or "none found")
    joined = "; ".join(_joined(found.detected.get("interconnect") or {}))
    busy = "; ".join(words for gpu in found.detected.get("gpu_loads") or () if (words := _busy(gpu)))
    more = [("GPUs now", busy), ("joined by", joined), ("name in files", found.machine_key)]
    return [*known.items(), *((label, words) for label, words in more if words)]


def _joined(interconnect: Mapping[str, Any]) -> Iterator[str]:
    """'2 sockets, 4 NUMA nodes', 'NVLink (1 pair of GPUs)': what is not as in every machine."""
    sockets, nodes = interconnect.get("sockets", 1), len(interconnect.get("numa_nodes") or ())
    if sockets > 1 or nodes > 1:
        yield f"{sockets} socket{'s' * (sockets > 1)}, {nodes} NUMA node{'s' * (nodes > 1)}"
    for path, pairs in Counter(pair["path"] for pair in interconnect.get("gpu_pairs") or ()).items():
        yield f"{path} ({pairs} pair{'s' * (pairs > 1)} of GPUs)"


def _busy(gpu: Mapping[str, Any]) -> str:
    """'busy 45 % of the time, 3.1 GiB in use by 2 processes, held back by power limit'"""
    busy, used, processes = gpu.get("busy"), gpu.get("memory_used_bytes"), len(gpu.get("processes") or ())
    by = f" by {processes} process{'es' * (processes > 1)}" if processes else ""
    return ", ".join(
        words
        for words in (
            "" if busy is None else f"busy {percent(busy)} of the time",
            "" if used is None else f"{format_bytes(used)} in use{by}",
            f"held back by {', '.join(gpu['held_back'])}" if gpu.get("held_back") else "",
        )
        if words
    )
