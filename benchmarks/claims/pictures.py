"""The figures of docs/claims.md."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import matplotlib
from matplotlib import pyplot

from benchmarks.claims.claim import Call
from benchmarks.claims.money import savings
from benchmarks.claims.page import PATH

matplotlib.use("Agg")
# The same figures give the same file: no date, no random ids, text kept as text.
STYLE = {
    **{"svg.hashsalt": "gpuwise", "svg.fonttype": "none", "font.size": 10},
    **{"axes.grid": True, "grid.alpha": 0.3, "axes.axisbelow": True},
}
COLOURS = ("#8a9ba8", "#2e6f95", "#d1495b")
FOLDER = PATH.parent / "figures" / "claims"
SERVER = "epyc-9654"
# Job, its title, samples a step, settings on GPUs.
PANELS: tuple[tuple[str, str, tuple[int, ...], dict[str, Any]], ...] = (
    ("tabular-mlp", "MLP, 11 thousand parameters", (1, 32, 512, 10_000), {"precision": "fp32"}),
    ("resnet50", "ResNet-50, 26 million", (1, 4, 16, 64, 256), {"precision": "amp-fp16", "channels_last": True}),
    ("bert-base", "BERT base, 110 million", (1, 4, 16, 64, 256), {"precision": "amp-fp16", "seq_len": 128}),
)


def write() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        _speed_up()
        _spot()


def _throughput(job: str, on: str, **settings: Any) -> float:
    return float(Call("forecast", job, (("on", on), *settings.items())).run().throughput)


def _speed_up() -> None:
    """Speed-up over the CPU against samples a step, a panel a model; the claim's 10 to 100 is shaded."""
    figure, panels = pyplot.subplots(1, len(PANELS), figsize=(10, 3.6), sharey=True)
    for axes, (job, title, batches, settings) in zip(panels, PANELS, strict=True):
        axes.axhspan(10, 100, color="#edae49", alpha=0.25, linewidth=0)
        axes.axhline(1, color="black", linewidth=0.8)
        on_cpu = {**settings, "precision": "fp32", "channels_last": False}
        cpu = [_throughput(job, SERVER, micro_batch=n, **on_cpu) for n in batches]
        for gpu, colour in zip(("t4", "a100-80gb-sxm", "h100-80gb-sxm"), COLOURS, strict=True):
            speed_ups = [_throughput(job, gpu, micro_batch=n, **settings) / c for n, c in zip(batches, cpu, strict=True)]
            axes.plot(batches, speed_ups, marker="o", markersize=4, color=colour, label=gpu)
        axes.set(xscale="log", yscale="log", title=title, xlabel="samples a step", ylim=(0.5, 150))
    panels[0].set_ylabel("times the throughput of 96 CPU cores")
    panels[0].set_yticks([1, 3, 10, 30, 100], ["1", "3", "10", "30", "100"])
    panels[0].legend(loc="upper left", frameon=False, fontsize=8)
    _save(figure, "speed-up.svg")


def _spot() -> None:
    """Savings of spot, a mark a provider and chip; the claim's 60 to 90 % is shaded."""
    by_provider: dict[str, list[float]] = defaultdict(list)
    for (provider, _), saving in sorted(savings(Call("offers", "").run()).items()):
        by_provider[provider].append(100 * saving)
    providers = sorted(by_provider, key=lambda provider: -max(by_provider[provider]))
    figure, axes = pyplot.subplots(figsize=(7.2, 0.9 + 0.35 * len(providers)))
    axes.axvspan(60, 90, color="#edae49", alpha=0.25, linewidth=0)
    for row, provider in enumerate(providers):
        axes.plot(by_provider[provider], [row] * len(by_provider[provider]), "o", color=COLOURS[1], alpha=0.7)
    axes.set_yticks(range(len(providers)), providers)
    axes.set(xlim=(0, 100), xlabel="saved against on-demand, % (a mark a chip; shaded: what is claimed)")
    axes.invert_yaxis()
    _save(figure, "spot.svg")


def _save(figure: matplotlib.figure.Figure, name: str) -> None:
    figure.tight_layout()
    figure.savefig(FOLDER / name, format="svg", metadata={"Date": None, "Creator": None})
    pyplot.close(figure)
