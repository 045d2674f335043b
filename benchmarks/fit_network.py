"""Fits the figures of collectives on timed calls, and forecasts the sizes and devices that the fit did not see.

    python -m benchmarks.fit_network --reference FOLDER [--write]

FOLDER holds kernels/*.parquet; its README names origin and licence of each table. What crosses machines is fitted on published
runs (benchmarks/fit/across_machines.toml). One in five sizes is kept out by checksum. Each device, or cluster, is forecast once
more by a fit without any of its rows ("unseen device"). Other technologies come from benchmarks/fit/assumed_network.toml.
--write changes cost/data/network.toml and the tables of docs/network.md. A quarter of an hour.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import tomli_w

from benchmarks.fit.network import RowErrors, errors, fitted, of_technology
from benchmarks.fit.network_between import fitted_between, of_network, published_calls
from benchmarks.fit.network_tables import TimedCalls, timed_calls
from gpuwise.atomic import written_whole
from gpuwise.cost.network.figures import LinkFigures, figures_of, technology_of

ROOT = Path(__file__).parents[1]
DATA = ROOT / "src" / "gpuwise" / "cost" / "data" / "network.toml"
PAGE = ROOT / "docs" / "network.md"
ASSUMED = Path(__file__).parent / "fit" / "assumed_network.toml"
BEGIN, END = "<!-- errors -->\n", "<!-- end of errors -->\n"
BETWEEN = ("infiniband", "roce", "efa", "efa-1", "gpudirect-tcpx")  # networks with published runs
SIZES = {"below 1 MiB": 2**20, "to 16 MiB": 2**24 + 1, "to 256 MiB": 2**28 + 1, "larger": float("inf")}
HEAD = """# Figures of collectives by technology; the fields are those of cost.network.figures.LinkFigures. Made by
# `python -m benchmarks.fit_network`: basis "fitted" is fitted on the tables that `source` names, the rest is
# benchmarks/fit/assumed_network.toml.

"""
SOURCES = {
    "nvlink": "ai-dynamo/aiconfigurator, VIA-Research/vTrain, zksainx/pipeweave, microsoft/vidur",
    "nvlink-2": "VIA-Research/vTrain (8 x V100)",
    "pcie": "ai-dynamo/aiconfigurator, zksainx/pipeweave, microsoft/vidur",
    "pcie-through-host": "zksainx/pipeweave (2 x RTX 6000 Ada), NVIDIA/nccl issue 1639 (8 x RTX 5090)",
}
# Many cards through host memory, relative to two: eight RTX 5090 on two sockets reach 28 of 63 GB/s, four 35 (NVIDIA/nccl issue
# 1639), two RTX 6000 Ada 11.4 of 31.5 (zksainx/pipeweave). A host with little memory bandwidth is assumed to have half of that.
_SHARED_BY_MANY = 1.0
_SLOWER_HOSTS = 2.0
_PART_OF_A_STEP = 2**22  # bytes from which a call's error counts for the spread: those of which a step's time consists
_WIDER = 1.4  # where no device could be kept out: as far as unseen devices on NVLink are off


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True, help="folder of the reference measurements")
    parser.add_argument("--write", action="store_true", help="change network.toml and docs/network.md in place")
    options = parser.parse_args()
    calls = timed_calls(options.reference)
    figures: dict[str, LinkFigures] = {}
    seen: list[RowErrors] = []
    unseen: list[RowErrors] = []
    for technology in SOURCES:
        of_this, by_all, without = fit_technology(technology, of_technology(calls, technology))
        figures[technology] = of_this
        seen += by_all
        unseen += without
    begin = assumed_figures()
    published, inside = published_calls(), {**begin, **figures}
    for technology in BETWEEN:
        of_this, by_all, without = fit_between(begin[technology], of_network(published, technology), inside)
        figures[technology] = of_this
        seen += by_all
        unseen += without
    text = table(seen, unseen) + "\n" + by_size(seen, unseen)
    print(text)
    for name, of_link in figures.items():
        low, high = of_link.spread
        print(f"{name}: efficiency {of_link.efficiency:g}, spread {low:g} to {high:g}")
    if options.write:
        write(figures, text)


def fit_technology(technology: str, calls: Sequence[TimedCalls]) -> tuple[LinkFigures, list[RowErrors], list[RowErrors]]:
    """The figures, errors under them, and errors of each device under figures that were fitted without it."""
    figures = fitted(technology, calls)
    by_all = errors(calls, {technology: figures})
    devices = sorted({c.device for c in calls})
    without: list[RowErrors] = []
    for device in devices if len(devices) > 1 else []:
        rest = fitted(technology, [c for c in calls if c.device != device])
        without += errors([c for c in calls if c.device == device], {technology: rest})
    wider = 1.0 if without else _WIDER
    low, high = spread(without or by_all)
    crowded, highest = figures.crowded, high * wider
    if technology == "pcie-through-host":
        crowded, highest = _SHARED_BY_MANY, max(highest, _SLOWER_HOSTS)
    rounded = (round(low / wider, 2), round(highest, 2))
    return replace(figures, crowded=crowded, spread=rounded, source=SOURCES[technology]), by_all, without


def fit_between(
    begin: LinkFigures, calls: Sequence[TimedCalls], inside: Mapping[str, LinkFigures]
) -> tuple[LinkFigures, list[RowErrors], list[RowErrors]]:
    """As fit_technology, of what crosses machines; each cluster is forecast once more by a fit without it."""
    figures = fitted_between(begin, calls, inside)
    by_all = errors(calls, {**inside, begin.technology: figures})
    clusters = sorted({c.device for c in calls})
    without: list[RowErrors] = []
    for cluster in clusters if len(clusters) > 1 else []:
        rest = fitted_between(begin, [c for c in calls if c.device != cluster], inside)
        without += errors([c for c in calls if c.device == cluster], {**inside, begin.technology: rest})
    low, high = spread(without or by_all)
    wider = 1.0 if without else _WIDER
    source = ", ".join(dict.fromkeys(c.table for c in calls))
    return replace(figures, spread=(round(low / wider, 2), round(high * wider, 2)), source=source), by_all, without


def spread(rows: Sequence[RowErrors]) -> tuple[float, float]:
    """5th and 95th percentile of real over forecast times; each group counts the same."""
    kept = [r.ratio[r.calls.payload_bytes >= _PART_OF_A_STEP] for r in rows]
    ratios = np.concatenate(kept)
    weights = np.concatenate([np.full(len(k), 1 / len(k)) for k in kept if len(k)])
    order = np.argsort(ratios)
    share = np.cumsum(weights[order]) / weights.sum()
    low, high = ratios[order][np.searchsorted(share, [0.05, 0.95])]
    return float(low), float(high)


def table(seen: Sequence[RowErrors], unseen: Sequence[RowErrors]) -> str:
    """Errors by technology and operation, as a table of Markdown."""
    lines = [
        "| link | operation | groups | calls | fitted | unseen sizes | unseen devices |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    keys = dict.fromkeys((_technology(r), r.calls.operation) for r in seen)
    for technology, operation in keys:
        of_fit = [r for r in seen if (_technology(r), r.calls.operation) == (technology, operation)]
        of_unseen = [r for r in unseen if (_technology(r), r.calls.operation) == (technology, operation)]
        cells = [
            _errors([r.ratio[~r.kept_out] for r in of_fit]),
            _errors([r.ratio[r.kept_out] for r in of_fit]),
            _errors([r.ratio for r in of_unseen]),
        ]
        count = sum(len(r.ratio) for r in of_fit)
        lines.append(f"| {technology} | {operation} | {len(of_fit)} | {count:,} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def by_size(seen: Sequence[RowErrors], unseen: Sequence[RowErrors]) -> str:
    """Errors across machines by the size of the payload: of clusters that the fit did not see, or of all where it saw the only
    one. Each cell is the median error, and in brackets that of the forecasts as they lean."""
    lines = [f"| network | clusters | {' | '.join(SIZES)} |", "| --- | --- |" + " --- |" * len(SIZES)]
    for technology in BETWEEN:
        rows = [r for r in unseen if _technology(r) == technology] or [r for r in seen if _technology(r) == technology]
        clusters, known = len({r.calls.device for r in rows}), any(_technology(r) == technology for r in unseen)
        cells, least = [], 0.0
        for most in SIZES.values():
            payload = [(r.calls.payload_bytes >= least) & (r.calls.payload_bytes < most) for r in rows]
            off = np.concatenate([1 / r.ratio[p] - 1 for r, p in zip(rows, payload, strict=True)])
            cells.append(f"{100 * np.median(np.abs(off)):.0f} % ({100 * np.median(off):+.0f} %)" if len(off) else "–")
            least = most
        lines.append(f"| {technology} | {clusters}{'' if known else ', seen'} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _errors(ratios: Sequence[np.ndarray]) -> str:
    """Median, mean and 90th percentile of the error of forecasts, in percent; each group counts the same."""
    ratios = [r for r in ratios if len(r)]
    if not ratios:
        return "–"
    off = np.concatenate([np.abs(1 / r - 1) for r in ratios])
    weights = np.concatenate([np.full(len(r), 1 / len(r)) for r in ratios])
    order = np.argsort(off)
    share = np.cumsum(weights[order]) / weights.sum()
    median, most = off[order][np.searchsorted(share, [0.5, 0.9])]
    return f"{100 * median:.1f} / {100 * np.average(off, weights=weights):.1f} / {100 * most:.1f} %"


def _technology(row: RowErrors) -> str:
    link = row.calls.cluster.between or row.calls.cluster.inside
    assert link is not None
    return technology_of(link)


def assumed_figures() -> dict[str, LinkFigures]:
    """The figures of benchmarks/fit/assumed_network.toml by technology."""
    return figures_of(tomllib.loads(ASSUMED.read_text(encoding="utf-8"))["technology"])


def write(figures: dict[str, LinkFigures], text: str) -> None:
    """Puts the figures into network.toml, after them the assumed ones, and the tables into the page."""
    tables = {name: of_link.to_dict() for name, of_link in {**figures, **assumed_figures(), **figures}.items()}
    with written_whole(DATA) as file:
        file.write((HEAD + tomli_w.dumps({"technology": tables})).encode())
    if PAGE.exists():
        before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
        PAGE.write_text(before + BEGIN + "\n" + text + "\n" + END + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
