"""Compares forecasts with published runs of Aceso and Megatron-LM on L4 and A10G, and of ZeRO-3 on 640 to 2,240 A100s.

    python -m benchmarks.other_systems --reference FOLDER --cache FOLDER [--write]

--write writes docs/accuracy-others.md. Nothing is fitted on these rows. Needs PyTorch to record the models the first time; the
recordings are kept in --cache, which may be that of benchmarks.megatron.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.support.accuracy_tables import errors, table
from benchmarks.support.megatron_cases import MegatronCase, padded
from benchmarks.support.megatron_forecast import forecast as of_megatron
from benchmarks.support.megatron_recordings import whole_step
from benchmarks.support.megatron_shape import GptShape
from gpuwise.cost.price import price_ranks
from gpuwise.cost.rank_time import rank_times
from gpuwise.hardware.catalog import Catalog
from gpuwise.strategy import Mesh, Parallelism, Strategy
from gpuwise.trace.parallel.ranks import rank_steps

DOCS = Path(__file__).parent.parent / "docs"
HEAD = ("group", "rows", "median error", "mean error", "worst", "bias", "inside")
_CHIPS = {"NVIDIA L4": "l4", "NVIDIA A10G": "a10g", "A100-SXM4-80GB": "a100-80gb-sxm"}
# GB/s of a machine: 100 Gbit/s on Google's g2-standard-96 and Amazon's g5.48xlarge; eight HDR ports on Selene.
_NETWORK = {"NVIDIA L4": 12.5, "NVIDIA A10G": 12.5, "A100-SXM4-80GB": 200.0}

PAGE = """# Accuracy: other systems

What gpuwise forecasts for published runs of systems that no other page has, next to the step times that were measured.
`python -m benchmarks.other_systems --reference FOLDER --cache FOLDER --write` writes this page. Nothing was fitted on these
rows. Error: |forecast / measured - 1|. Bias: the median of forecast over measured, less one. Inside: share of the rows inside
the forecast's 90 % interval.

{groups}

- **Aceso, Megatron-LM**: GPT of 6.7B to 40B in fp16 on machines of eight L4s and A10Gs (Dazz993/Mist, its artifact), those
  plans whose stages all have equally many devices; a step is 128 to 1,024 micro-batches of one sequence.
  Aceso computes a share of the operations again: the forecast lies between those of none and all, at the plan's share.
- **ZeRO-3**: GPT of 530B on 640 to 2,240 A100s under full recompute (Narayanan et al. 2021, arXiv:2104.04473, table 2; the
  times follow from its operations a second).

{rows}

What is known to be off:

- **ZeRO-3 of 2021** gathered parameters one after the other and took 2 to 4 times as long as FSDP, which gathers a block beside
  the computation of another, is forecast to take. gpuwise has no program that does so.
- **L4**: whole layers ran at 37 TFLOP/s and more, products are forecast at 43 of 121 for a board of 72 W. With 40 layers in 16
  stages, some forecast stages have three layers; Aceso divides layers, too.
- **Four tensor-parallel A10Gs** without peer access sum up activations at a sixth of the forecast rate, if all of the
  difference is theirs.

Without a forecast: plans of Aceso whose stages have unequal devices ({mixed} rows), which no mesh describes, and GPT-2.6B of
Alpa on V100s, a whole model in fp16, which gpuwise has no precision for.
"""


@dataclass(frozen=True)
class Row:
    """A published row: its case, and the share of the operations that is computed again."""

    case: MegatronCase
    again: float


def published_rows(folder: Path) -> Iterator[Row | None]:
    """Every row of these systems; None where no mesh describes it."""
    rows = pd.read_csv(folder / "published" / "distributed.csv", low_memory=False)
    for row in rows[rows.system_source.str.contains("Mist|llm-analysis")].itertuples():
        yield None if row.tp == "mixed" else _row(row)


def _row(row: Any) -> Row:
    zero, recompute = row.zero_stage == 3, str(row.activation_recompute)
    tp, pp, dp, micro_batch = int(row.tp), int(row.pp), int(row.dp), int(row.micro_batch)
    mesh = Mesh(dp_shard=dp) if zero else Mesh(tp=tp, pp=pp, dp_replicate=dp)
    strategy = Strategy(
        precision="bf16",
        micro_batch=micro_batch,
        accumulation=round(row.global_batch / (dp * micro_batch)),
        recompute="full",
        mesh=mesh,
        parallelism=Parallelism(loss_parallel=tp > 1),
    )
    group = "ZeRO-3" if zero else "Megatron-LM" if "megatron" in row.system_source else "Aceso"
    shape = GptShape(int(row.hidden), int(row.layers), int(row.heads), int(row.seq), padded(51_200, tp))
    case = MegatronCase(group, shape, strategy, _CHIPS[row.gpu], _NETWORK[row.gpu], row.measured_step_time_s)
    return Row(case, float(recompute[8:12]) if recompute.startswith("partial") else 1.0)


def step_s(row: Row, cache: Path, catalog: Catalog) -> tuple[float, float, float]:
    """Low end, value and high end of the forecast."""
    case = row.case
    if case.group == "ZeRO-3":
        whole, strategy = whole_step(case, cache), case.strategy
        ranks = rank_steps(lambda parts: whole, strategy)
        cluster = case.cluster(catalog)
        time = price_ranks(rank_times(ranks, cluster, strategy=strategy), cluster, strategy=strategy, replay=False).step_time_s
        return time.low, time.value, time.high
    total = np.zeros(3)
    for recompute, share in (("full", row.again), ("none", 1 - row.again)):
        if share:
            one = of_megatron(replace(case, strategy=case.strategy.but(recompute=recompute)), cache, catalog).step_time_s
            total += share * np.array([one.low, one.value, one.high])
    low, value, high = total.tolist()
    return low, value, high


def result(chosen: list[Row], cache: Path) -> pd.DataFrame:
    """One row a case."""
    catalog, lines = Catalog(), []
    for row in chosen:
        low, value, high = step_s(row, cache, catalog)
        case = row.case
        lines.append(
            {
                "group": case.group,
                "model": case.shape.architecture,
                "device": case.chip_id,
                "mesh": str(case.strategy.mesh),
                "seconds": case.seconds,
                "forecast": value,
                "log_error": np.log(case.seconds / value),
                "inside": low <= case.seconds <= high,
            }
        )
    return pd.DataFrame(lines)


def by_group(rows: pd.DataFrame) -> str:
    """A line for each group."""
    lines = []
    for group, part in rows.groupby("group"):
        size, bias = errors(part), np.expm1(np.median(-part.log_error))
        shares = [f"{share:.1%}" for share in (np.median(size), size.mean(), size.max())]
        lines.append([str(group), f"{len(part)}", *shares, f"{bias:+.1%}", f"{part.inside.mean():.0%}"])
    return table(HEAD, lines)


def by_row(rows: pd.DataFrame) -> str:
    """A line for each row."""
    lines = [
        [
            row.group,
            row.model,
            row.device,
            row.mesh,
            f"{row.seconds:.1f}",
            f"{row.forecast:.1f}",
            f"{np.expm1(-row.log_error):+.1%}",
        ]
        for row in rows.itertuples()
    ]
    return table(("group", "width x layers", "device", "mesh", "measured, s", "forecast, s", "error"), lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--write", action="store_true", help="write docs/accuracy-others.md")
    options = parser.parse_args()
    every = list(published_rows(options.reference))
    chosen = [row for row in every if row is not None]
    rows = result(chosen, options.cache)
    print(by_group(rows), by_row(rows), sep="\n\n")
    if options.write:
        page = PAGE.format(groups=by_group(rows), rows=by_row(rows), mixed=len(every) - len(chosen))
        (DOCS / "accuracy-others.md").write_text(page)


if __name__ == "__main__":
    main()
