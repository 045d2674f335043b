"""Writes docs/accuracy.md and its figures: what gpuwise forecasts, next to what others measured and published.

    python -m benchmarks.accuracy_report --reference FOLDER --cache FOLDER [--again]

FOLDER holds published/ and kernels/ (its README names origin and licence). What `python -m benchmarks.fit --unseen` left in
--cache is taken; pieces of it that are missing, or all with --again, are fitted first, which takes minutes. Vision models count
as far as `python -m benchmarks.record_vision` has recorded them (hours). Needs the `bench` extra. Only aggregates are written.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.fit import intervals
from benchmarks.fit.order import STEPS as STEP_PIECES
from benchmarks.fit.order import errors_of, fit_all
from benchmarks.fit.pieces import Context
from benchmarks.fit.store import Store
from benchmarks.support import accuracy_checks, accuracy_text, error_mass
from benchmarks.support.accuracy_tables import by, errors, table
from gpuwise.hardware.catalog import Catalog

DOCS = Path(__file__).parent.parent / "docs"
STEPS = tuple(piece.name for piece in STEP_PIECES)  # their rows are whole steps; those of the others are kernels
# Family of a model by how its name starts; the first that fits.
FAMILIES = {
    "ResNet-50": ("resnet50",),
    "other ResNets, RegNets and kin": (
        "resnet",
        "resnext",
        "wide_resnet",
        "seres",
        "cspres",
        "res2net",
        "regnet",
        "nfnet",
        "dm_nfnet",
        "ecaresnet",
        "gluon_res",
        "resnest",
        "rexnet",
        "tresnet",
        "skres",
        "legacy_se",
        "ig_res",
        "ssl_res",
        "swsl_res",
        "lambda_res",
        "halonet",
        "hrnet",
        "dla",
    ),
    "depthwise convolutions": (
        "efficientnet",
        "tf_efficientnet",
        "mobilenet",
        "convnext",
        "tf_mobilenet",
        "mnasnet",
        "fbnet",
        "mixnet",
        "tf_mixnet",
        "lcnet",
        "tinynet",
        "ghostnet",
        "hardcorenas",
        "spnasnet",
        "repghost",
    ),
    "vision transformers and mixers": (
        "vit",
        "deit",
        "beit",
        "swin",
        "mixer",
        "eva",
        "cait",
        "xcit",
        "maxvit",
        "coat",
        "levit",
        "flexivit",
        "twins",
        "pit",
        "gmixer",
        "gmlp",
        "resmlp",
        "volo",
        "crossvit",
        "mvit",
        "samvit",
    ),
    "BERT": ("bert", "hf-bert"),
    "GPT and OPT": ("hf-gpt", "hf-opt", "gpt"),
}


# --- what was asked for: (what, which rows, to beat, goal) ---


def _kernel(start: str, split: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda rows: rows[~rows.piece.isin(STEPS) & rows.kernel.str.startswith(start, na=False) & (rows.split == split)]


def _steps(piece: str, split: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda rows: rows[(rows.piece == piece) & (rows.split == split)]


GOALS: list[tuple[str, Callable[[pd.DataFrame], pd.DataFrame], str, str]] = [
    ("bf16 products, known device", _kernel("gemm.bf16", "unseen shapes"), "14%", "4%"),
    ("bf16 products, unseen device", _kernel("gemm.bf16", "unseen device"), "23%", "8%"),
    ("fp8 products, unseen device", _kernel("gemm.fp8", "unseen device"), "23%", "8%"),
    ("attention, prefill, known device", _kernel("attention_engine.bf16", "unseen shapes"), "15.5%", "6%"),
    ("attention, decode, known device", _kernel("attention_decode.bf16", "unseen shapes"), "15.5%", "6%"),
    ("fp32 products, unseen device", _kernel("gemm.fp32", "unseen device"), "14 to 19%", "8%"),
    ("fp32 elementwise, unseen device", _kernel("elementwise", "unseen device"), "14 to 19%", "8%"),
    ("fp32 softmax, unseen device", _kernel("softmax", "unseen device"), "14 to 19%", "8%"),
    ("fp32 layer norm, unseen device", _kernel("norm_layer", "unseen device"), "57%", "8%"),
    ("fp32 convolutions, unseen device", _kernel("conv.fp32", "unseen device"), "14 to 19%", "8%"),
    ("vision models, known GPU, unseen models", _steps("vision", "unseen models"), "8.9%, 90th percentile 38%", "4%, 10%"),
    ("vision models, unseen GPU", _steps("vision", "unseen device"), "16 to 24%", "8%"),
    ("language and other models, one GPU, unseen models", _steps("language", "unseen models"), "8.9% (mean)", "4%"),
    ("language and other models, unseen GPU", _steps("language", "unseen device"), "16 to 24%", "8%"),
]


def goals_part(rows: pd.DataFrame) -> str:
    lines = []
    for what, chosen, beat, goal in GOALS:
        part = chosen(rows)
        if len(part):
            size = errors(part)
            reached = f"{np.median(size):.1%}, mean {size.mean():.1%}, 90th percentile {np.quantile(size, 0.9):.1%}"
            lines.append([what, f"{len(part):,}", beat, goal, reached])
    return table(["rows kept out of the fit", "rows", "to beat", "goal", "reached, median"], lines)


def kernels_part(rows: pd.DataFrame) -> str:
    kernels = rows[~rows.piece.isin(STEPS)].rename(columns={"kernel": "kernels"})
    return accuracy_text.KERNELS.format(
        by_split=by(kernels, "kernels", "split"), by_device=by(kernels[kernels.split != "fitted"], "kernels", "device", "split")
    )


def mass_tables(rows: pd.DataFrame, *, most: int) -> dict[str, str]:
    """Where the error of rows kept out is, by family and device: of kernels and of whole steps, as far as there are rows."""
    steps, tables = rows.piece.isin(STEPS), {}
    if not steps.all():
        tables["Kernels"] = error_mass.ranking(rows[~steps].assign(family=rows.kernel[~steps]), most=most)
    if steps.any():
        tables["Whole steps"] = error_mass.ranking(rows[steps].assign(family=rows.model[steps].map(family_of)), most=most)
    return tables


def steps_part(rows: pd.DataFrame) -> str:
    steps = rows[rows.piece.isin(STEPS)].rename(columns={"piece": "models"})
    gpu, unseen = steps[steps.models != "cpu"], steps[steps.split != "fitted"]
    ways = unseen.assign(
        way=unseen.precision.fillna("fp32") + ", " + unseen["mode"] + np.where(unseen.compiled, ", compiled", "")
    )
    families = unseen.assign(**{"model family": unseen.model.map(family_of)})
    return accuracy_text.STEP_TIMES.format(
        rows=f"{len(steps):,}",
        models=steps.model.nunique(),
        devices=steps.device.nunique(),
        gpu_rows=f"{len(gpu):,}",
        by_split=by(steps, "models", "split"),
        by_device=by(unseen, "device", "split"),
        by_family=by(families, "model family", "split"),
        by_precision=by(ways, "way", "split"),
    )


def family_of(model: str) -> str:
    name = model.removeprefix("timm:").lower()
    return next((family for family, starts in FAMILIES.items() if name.startswith(starts)), "others")


def intervals_part(rows: pd.DataFrame) -> str:
    checked = intervals.coverage(rows[rows.piece.isin(STEPS)])
    lines = [
        [
            family,
            level,
            mode,
            "compiled" if compiled else "eager",
            split,
            f"{len(part):,}",
            f"{part.low.iloc[0]:.2f} to {part.high.iloc[0]:.2f}",
            f"{part.inside.mean():.0%}",
        ]
        for (family, level, mode, compiled, split), part in checked.groupby([*intervals.BY, "split"])
    ]
    lines.append(["all", "", "", "", "", f"{len(checked):,}", "", f"{checked.inside.mean():.0%}"])
    head = ["family", "figures from", "mode", "run", "rows that were", "rows", "interval of measured / forecast", "inside"]
    return accuracy_text.INTERVALS.format(table=table(head, lines, words=5), covered=f"{checked.inside.mean():.0%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--again", action="store_true", help="fit every piece again")
    options = parser.parse_args()
    from benchmarks.support import accuracy_figures  # matplotlib

    context = Context(options.reference, options.cache, Catalog())
    if options.again or errors_of(context) is None:
        fit_all(context, Store(), unseen=True)
    rows = errors_of(context)
    assert rows is not None
    figures = DOCS / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    accuracy_figures.step_times(rows[rows.piece.isin(STEPS)], figures / "step-time.svg")
    accuracy_figures.ratios({what: chosen(rows) for what, chosen, _, _ in GOALS}, figures / "ratio.svg")
    parts = [
        accuracy_text.HEADER,
        accuracy_text.SPLIT,
        accuracy_text.GOALS.format(table=goals_part(rows)),
        steps_part(rows),
        intervals_part(rows),
        accuracy_text.SEVERAL,
        accuracy_text.BIASES.format(**accuracy_checks.operations_against_published_mfu(options.reference, options.cache)),
        accuracy_checks.points_part(),
        kernels_part(rows),
        accuracy_text.MASS.format(
            tables="\n\n".join(f"{name}:\n\n{text}" for name, text in mass_tables(rows, most=20).items())
        ),
        accuracy_text.MEMORY,
        accuracy_text.peers_part({what: chosen(rows) for what, chosen, _, _ in GOALS}),
        accuracy_text.catalog_part(Catalog()),
        accuracy_text.SOURCES,
    ]
    (DOCS / "accuracy.md").write_text("\n".join(part.strip() + "\n" for part in parts), encoding="utf-8")


if __name__ == "__main__":
    main()
