"""An Installation as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType

from gpuwise.report.detected import detected_words
from gpuwise.report.parts import grid, heading, notes, percent
from gpuwise.report.plain import Record, number, part, parts, text, texts
from gpuwise.units import format_bytes

if TYPE_CHECKING:
    from gpuwise.results.installation import Installation
    from gpuwise.results.listings import FetchedList


def doctor_report(installation: Installation) -> Group:
    """Versions, machine, catalog, configuration, presets, and what should be mended."""
    lines: list[RenderableType] = [
        heading("versions"),
        grid([(name, version or "absent") for name, version in installation.versions.items()]),
        heading("this machine"),
        grid([("here", installation.machine), ("counts as", installation.device), *_machine(installation)]),
        heading("catalog"),
        grid(
            [
                ("chips", f"{installation.chips:,}, with {installation.unverified:,} figures unverified"),
                ("links", f"{installation.links:,}"),
                ("offers", f"{installation.offers:,}, {installation.stale_offers:,} of them stale"),
                ("prices", f"of {installation.prices_from} to {installation.prices_to}"),
                ("fetched lists", "; ".join(map(_fetched, installation.price_lists)) or "none"),
                ("your files", ", ".join(installation.config_files) or "none"),
            ]
        ),
        heading("recorded presets"),
        grid([(name, f"PyTorch {version}" if version else "missing") for name, version in installation.presets.items()]),
    ]
    lines += notes("to mend", installation.problems)
    return Group(*lines)


def _fetched(each: FetchedList) -> str:
    """'aws of 2026-11-28, 312 rows (4 quarantined)'"""
    left = f" ({each.quarantined:,} quarantined)" if each.quarantined else ""
    return f"{each.provider} of {each.as_of}, {each.rows:,} rows{left}"


def _machine(installation: Installation) -> list[tuple[str, str]]:
    rows = dict(detected_words(installation.detected))
    rows.setdefault("GPUs", ", ".join(installation.gpus) or "none found")
    joined = "; ".join(_joined(part(installation.detected, "interconnect")))
    busy = "; ".join(words for gpu in parts(installation.detected, "gpu_loads") if (words := _busy(gpu)))
    more = [("GPUs now", busy), ("joined by", joined), ("name in files", installation.machine_key)]
    more.append(("measured", installation.measured or "no: `gpuwise measure` does"))
    return [*rows.items(), *((label, words) for label, words in more if words)]


def _joined(interconnect: Record) -> Iterator[str]:
    """'2 sockets, 4 NUMA nodes', 'NVLink (1 pair of GPUs)': what is not as in every machine."""
    sockets, nodes = number(interconnect, "sockets") or 1, len(parts(interconnect, "numa_nodes"))
    if sockets > 1 or nodes > 1:
        yield f"{sockets} socket{'s' * (sockets > 1)}, {nodes} NUMA node{'s' * (nodes > 1)}"
    for path, pairs in Counter(text(pair, "path") for pair in parts(interconnect, "gpu_pairs")).items():
        yield f"{path} ({pairs} pair{'s' * (pairs > 1)} of GPUs)"


def _busy(gpu: Record) -> str:
    """'busy 45 % of the time, 3.1 GiB in use by 2 processes, held back by power limit'"""
    busy, used, processes = number(gpu, "busy"), number(gpu, "memory_used_bytes"), len(texts(gpu, "processes"))
    by = f" by {processes} process{'es' * (processes > 1)}" if processes else ""
    held_back = ", ".join(texts(gpu, "held_back"))
    words = (
        "" if busy is None else f"busy {percent(busy)} of the time",
        "" if used is None else f"{format_bytes(used)} in use{by}",
        f"held back by {held_back}" if held_back else "",
    )
    return ", ".join(word for word in words if word)
