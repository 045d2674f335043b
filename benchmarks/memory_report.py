"""Writes docs/accuracy-memory.md and its figure: peak memory forecast, next to what was measured and what others say.

    python -m benchmarks.memory_report --reference FOLDER --cache FOLDER [--again PART ...]

FOLDER holds memory/ and published/. Each part (cpu, truth, peers, t4, published) is kept in --cache as JSON and measured
again only when asked for by name; all of them take some minutes. Needs the `bench` extra. The page's CPU rows are those of a
processor without AMX: elsewhere, set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import memory_on_cpu, memory_peers, memory_published, memory_t4
from benchmarks.support import accuracy_memory as page
from benchmarks.support import memory_ground_truth
from benchmarks.support.accuracy_tables import table
from benchmarks.support.memory_cases import cases

DOCS = Path(__file__).parent.parent / "docs"
PARTS = ("cpu", "truth", "t4", "peers", "published")


def parts(reference: Path, cache: Path, again: set[str]) -> dict[str, Any]:
    """Rows of every part, as plain types, measured now or as kept."""

    def kept(name: str, make: Callable[[], Any]) -> Any:
        path = cache / f"memory-{name}.json"
        if name in again or not path.exists():
            path.write_text(json.dumps(make()), encoding="utf-8")
        return json.loads(path.read_text(encoding="utf-8"))

    cache.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {}
    results["cpu"] = kept("cpu", lambda: [asdict(memory_on_cpu.compare(case)) for case in cases()])
    results["truth"] = kept("truth", lambda: _with_count(*memory_ground_truth.rows(reference)))
    results["t4"] = kept("t4", lambda: [asdict(row) for row in memory_t4.rows(reference)])
    measured = [memory_on_cpu.Row(**row) for row in results["cpu"]]
    t4 = [memory_t4.Row(**row) for row in results["t4"]]
    results["peers"] = kept(
        "peers", lambda: [asdict(row) for row in (*memory_peers.on_cpu(measured), *memory_peers.on_t4(t4, reference))]
    )
    results["published"] = kept("published", lambda: _with_reasons(*memory_published.compare(reference, cache)))
    return results


def _with_count(rows: list[memory_on_cpu.Row], missing: int) -> dict[str, Any]:
    return {"rows": [asdict(row) for row in rows], "missing": missing}


def _with_reasons(rows: list[memory_published.Row], left_out: Counter[tuple[str, str]]) -> dict[str, Any]:
    return {"rows": [asdict(row) for row in rows], "left_out": [[*key, count] for key, count in sorted(left_out.items())]}


def write(found: dict[str, Any]) -> None:
    """The page and its figure."""
    cpu = [memory_on_cpu.Row(**row) for row in found["cpu"]]
    truth = [memory_on_cpu.Row(**row) for row in found["truth"]["rows"]]
    t4 = [memory_t4.Row(**row) for row in found["t4"]]
    peers = [memory_peers.Row(**row) for row in found["peers"]]
    published = [memory_published.Row(**row) for row in found["published"]["rows"]]
    left_out = [[source, str(count), reason] for source, reason, count in found["published"]["left_out"]]
    text = page.PAGE.format(
        command=page.COMMAND,
        cpu_summary=page.errors_in_words(cpu),
        cpu=page.bytes_table(cpu),
        truth_missing=found["truth"]["missing"],
        truth_summary=page.errors_in_words(truth),
        truth=page.bytes_table(truth),
        t4_summary=page.t4_summary(t4),
        t4=page.t4_table(t4),
        published_count=len(published),
        distribution=page.distribution_table(published),
        published=page.published_table(published),
        far=page.far_list(published),
        left_out=table(["source", "rows", "why"], left_out),
        peers_summary=page.peers_summary(peers),
        peers=page.peers_table(peers),
    )
    (DOCS / "accuracy-memory.md").write_text(text.strip() + "\n", encoding="utf-8")
    from benchmarks.support import accuracy_figures  # matplotlib

    gib = 2**30
    accuracy_figures.memory(
        {
            "CPU, every allocation": [(r.measured / gib, r.predicted / gib) for r in (*cpu, *truth)],
            "Tesla T4, allocated": [(r.measured_mib["allocated"] / 1024, r.forecast_mib["allocated"] / 1024) for r in t4],
            "published": [(r.measured_gib, r.forecast_gib) for r in published],
        },
        DOCS / "figures" / "memory.svg",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--again", nargs="*", choices=PARTS, default=(), help="parts to measure again")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    write(parts(options.reference, options.cache, set(options.again)))


if __name__ == "__main__":
    main()
