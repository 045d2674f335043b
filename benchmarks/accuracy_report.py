"""Writes docs/accuracy.md and its figures: what gpuwise forecasts, next to what others measured and published.

    python -m benchmarks.accuracy_report --reference FOLDER --cache FOLDER

FOLDER holds published/, memory/ and kernels/ (its README names origin and licence). The models are recorded into
--cache the first time (minutes); a second run takes seconds. Needs the `bench` extra. Only aggregates are written.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.check_published import forecast
from benchmarks.support import accuracy_checks, accuracy_text
from benchmarks.support.published import Case, cases
from benchmarks.support.reference import KEPT_OUT_DEVICES, kept_out_model
from gpuwise.cost.parameters import parameters
from gpuwise.errors import GpuwiseError
from gpuwise.hardware.catalog import Catalog

DOCS = Path(__file__).parent.parent / "docs"
# Family of a model by the start of its name; the first that fits.
FAMILIES = {
    "ResNet-50": ("resnet50",),
    "other ResNets and RegNets": ("resnet", "resnext", "wide_resnet", "seres", "cspres", "res2net", "regnetx", "regnety",
                                  "nfnet"),
    "depthwise convolutions": ("efficientnet", "tf_efficientnet", "mobilenet", "convnext", "rexnet", "regnetz"),
    "VGG, DenseNet, Inception": ("vgg", "densenet", "inception"),
    "vision transformers and mixers": ("vit", "deit", "beit", "swin", "mixer"),
    "BERT": ("bert", "hf-bert"),
    "GPT and OPT": ("hf-gpt", "hf-opt"),
    "MPT": ("mpt",),
}  # fmt: skip


@dataclass(frozen=True)
class Point:
    """A published row and its forecast, in seconds a step."""

    case: Case
    forecast_s: float
    low_s: float
    high_s: float

    @property
    def devices(self) -> int:
        return self.case.count * self.case.machines

    @property
    def on_cpu(self) -> bool:
        return self.case.subset.endswith("on a CPU")

    @property
    def sharded(self) -> bool:
        return self.case.strategy.mesh.dp_shard > 1

    @property
    def seen_by(self) -> str:
        """Whether a fit could see the row, and if not what kept it out."""
        if self.case.chip_id in KEPT_OUT_DEVICES:
            return "kept out by device"
        return "kept out by model" if kept_out_model(self.case.job.removeprefix("timm:")) else "seen"

    @property
    def family(self) -> str:
        name = self.case.job.removeprefix("timm:")
        return next(family for family, starts in FAMILIES.items() if name.startswith(starts))


def points(reference: Path, cache: Path) -> tuple[list[Point], int]:
    """Every published row that can be forecast, and how many cannot (a precision the chip lacks)."""
    catalog, found, refused = Catalog(), [], 0
    for case in cases(reference):
        try:
            step = forecast(case, cache, catalog, parameters()).step_time_s
        except GpuwiseError:
            refused += 1
            continue
        found.append(Point(case, step.value, step.low, step.high))
    return found, refused


def statistics(found: Iterable[Point]) -> list[str]:
    """Cells: rows, median and mean error, 90th percentile of it, bias (of the median), share inside the interval."""
    rows = list(found)
    if not rows:
        return ["0", "–", "–", "–", "–", "–"]
    measured, value = np.array([p.case.seconds for p in rows]), np.array([p.forecast_s for p in rows])
    error = np.abs(value / measured - 1)
    inside = np.mean([p.low_s <= p.case.seconds <= p.high_s for p in rows])
    bias = np.median(value / measured) - 1
    sizes = [f"{size:.1%}" for size in (np.median(error), np.mean(error), np.quantile(error, 0.9))]
    return [str(len(rows)), *sizes, f"{bias:+.1%}", f"{inside:.0%}"]


HEAD = ["rows", "median error", "mean error", "90th percentile", "bias", "inside the interval"]


def table(title: str, groups: dict[str, list[Point]]) -> str:
    return accuracy_text.table([title, *HEAD], [[name, *statistics(rows)] for name, rows in groups.items() if rows])


def grouped(rows: list[Point], key: Callable[[Point], str], order: Iterable[str] = ()) -> dict[str, list[Point]]:
    names = list(order) or sorted({key(p) for p in rows})
    return {name: [p for p in rows if key(p) == name] for name in names}


def step_time_part(found: list[Point], refused: int) -> str:
    """The tables of step times."""
    one = [p for p in found if p.devices == 1 and not p.on_cpu]
    cpu = [p for p in found if p.on_cpu]
    fsdp = [p for p in found if p.sharded]
    parallel = [p for p in found if p.devices > 1 and not p.sharded]
    splits = ("seen", "kept out by model", "kept out by device")
    main = {
        "one GPU, seen by the fit": [p for p in one if not p.case.kept_out],
        "one GPU, kept out": [p for p in one if p.case.kept_out],
        **{f"… of these {name}": [p for p in one if p.seen_by == name] for name in splits[1:]},
        "one CPU, seen by the fit": [p for p in cpu if not p.case.kept_out],
        "one CPU, kept out (by model)": [p for p in cpu if p.case.kept_out],
        "data parallel, 2 to 8 GPUs, device and model known": [p for p in parallel if not p.case.kept_out],
        "data parallel, 2 to 8 GPUs, device or model kept out": [p for p in parallel if p.case.kept_out],
        "FSDP, 8 to 128 GPUs": fsdp,
    }
    devices = sorted({p.case.chip_id for p in one + cpu})
    by_device = {
        f"{name}{' (kept out)' if name in KEPT_OUT_DEVICES else ''}": [p for p in one + cpu if p.case.chip_id == name]
        for name in devices
    }
    halves = {False: "seen", True: "kept out"}
    by_family = {
        f"{family}, {halves[kept]}": [p for p in one if p.family == family and p.case.kept_out == kept]
        for family in FAMILIES
        for kept in halves
    }
    by_precision = grouped(
        one, lambda p: f"{p.case.strategy.precision}, {'training' if p.case.strategy.mode == 'train' else 'inference'}"
    )
    by_count = grouped(parallel, lambda p: f"{p.devices} GPUs")
    by_mpt_chip = grouped(fsdp, lambda p: f"{p.case.chip_id}, {'8' if p.devices == 8 else 'more than 8'} GPUs")
    return accuracy_text.STEP_TIMES.format(
        rows=len(found),
        refused=f"; {refused} more could not be priced" if refused else "",
        coverage=f"{np.mean([p.low_s <= p.case.seconds <= p.high_s for p in found if not p.on_cpu]):.0%}",
        devices=len({p.case.chip_id for p in found}),
        models=len({p.case.job for p in found}),
        kept_devices=", ".join(f"`{name}`" for name in sorted({p.case.chip_id for p in found} & KEPT_OUT_DEVICES)),
        main=table("group", main),
        by_device=table("device", by_device),
        by_family=table("model family, one GPU", by_family),
        by_precision=table("precision, one GPU", by_precision),
        by_count=table("data parallel, one machine", by_count),
        by_mpt_chip=table("FSDP", by_mpt_chip),
    )


def bias_part(found: list[Point], reference: Path, cache: Path) -> str:
    """Known biases, each with what it amounts to today."""
    one = [p for p in found if p.devices == 1]
    tensor = ("amp-fp16", "amp-bf16")
    geforce = [p for p in found if p.devices == 2 and p.case.chip_id.startswith("rtx-") and p.case.job == "bert-large-qa"]
    h100 = [p for p in found if p.sharded and p.case.chip_id == "h100-80gb-sxm"]
    chosen = {
        "ResNet-50 training on A100 and H100, fp16": [
            p for p in one if p.family == "ResNet-50" and p.case.chip_id[:4] in ("a100", "h100")
            and p.case.strategy.mode == "train" and p.case.strategy.precision in tensor
        ],
        "BERT-large on pairs of RTX cards over PCIe": geforce,
        "BERT-large on 2 to 8 A100 SXM": [
            p for p in found if p.devices > 1 and p.case.chip_id == "a100-80gb-sxm" and p.case.job == "bert-large-qa"
        ],
        "fp32 language models on V100": [p for p in one if p.case.chip_id == "v100-pcie-32gb"],
        "fp32 language models on T4": [p for p in one if p.case.chip_id == "t4"],
        "inference of vision models on RTX 4090": [
            p for p in one if p.case.chip_id == "rtx-4090" and p.case.strategy.mode == "infer"
        ],
        "MPT under FSDP on H100, up to 8,192 tokens": [p for p in h100 if dict(p.case.size)["seq_len"] <= 8192],
        "MPT under FSDP on H100, longer": [p for p in h100 if dict(p.case.size)["seq_len"] > 8192],
        "VGG on a CPU": [p for p in one if p.on_cpu and p.case.job.startswith("timm:vgg")],
    }  # fmt: skip
    left_out = _apex_rows(reference, cache)
    return accuracy_text.BIASES.format(
        table=table("where", chosen),
        apex=table("left out of every other table", {"BERT-large, fp16 by apex O2": left_out}),
        **accuracy_checks.operations_against_published_mfu(reference, cache),
    )


def peers_part(found: list[Point], kernel_errors: dict[str, str]) -> str:
    """What other tools report, with our figures of the same kind beside."""

    def mean(subset: str) -> str:
        return statistics(p for p in found if p.case.subset == subset)[2]

    timm = statistics(p for p in found if p.case.subset.startswith("timm") and not p.on_cpu and p.case.kept_out)
    return accuracy_text.PEERS.format(
        **kernel_errors,
        neusight_train=mean("fp32 transformers train"),
        neusight_infer=mean("fp32 transformers infer"),
        timm_median=timm[1],
        timm_worse=timm[3],
    )


def _apex_rows(reference: Path, cache: Path) -> list[Point]:
    """The BERT rows in fp16 that benchmarks.published leaves out, priced as if they had been autocast."""
    import pandas as pd

    from benchmarks.support.published import CHIPS
    from gpuwise.strategy import Strategy

    rows = pd.read_csv(reference / "published" / "end_to_end.csv", low_memory=False)
    rows = rows[rows.subsets.astype(str).str.contains("lambda_single") & (rows.model == "BERT-large SQuAD")]
    rows = rows[(rows.precision == "amp-fp16") & rows.gpu.isin(CHIPS) & (rows.step_time_s > 0)]
    catalog, found = Catalog(), []
    for row in rows.itertuples():
        strategy = Strategy(precision="amp-fp16", micro_batch=int(row.batch_per_gpu))
        case = Case("apex", "bert-large-qa", strategy, (("seq_len", 384),), CHIPS[row.gpu], 1, 1, row.step_time_s)
        try:
            step = forecast(case, cache, catalog, parameters()).step_time_s
        except GpuwiseError:
            continue
        found.append(Point(case, step.value, step.low, step.high))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    options = parser.parse_args()
    from benchmarks.support import accuracy_figures  # matplotlib

    found, refused = points(options.reference, options.cache)
    figures = DOCS / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    accuracy_figures.step_times(found, figures / "step-time.svg")
    accuracy_figures.ratios(found, figures / "ratio.svg")
    kernels, kernel_errors = accuracy_checks.kernels_part(options.reference)
    parts = [
        accuracy_text.HEADER,
        step_time_part(found, refused),
        bias_part(found, options.reference, options.cache),
        accuracy_checks.points_part(),
        kernels,
        accuracy_text.MEMORY,
        peers_part(found, kernel_errors),
        accuracy_text.catalog_part(Catalog()),
        accuracy_text.SOURCES,
    ]
    (DOCS / "accuracy.md").write_text("\n".join(part.strip() + "\n" for part in parts), encoding="utf-8")


if __name__ == "__main__":
    main()
