"""Each strategy of several ranks against one process: losses and weights after 20 steps on the same global batches.

    python -m benchmarks.parallel_truth [--family TEXT] [--only TEXT] [--write]

A tiny language model trains over gloo on this machine's CPU, one process a rank. Printed are the largest relative differences
of any step's loss, and of any parameter after the last step.

--family TEXT, --only TEXT: cases whose family, or whose name and mesh, contain the text.
--write: puts the rows into benchmarks/results/parallel_truth.json, and makes docs/parallel-truth.md of all rows there.
All cases take three quarters of an hour on two cores.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from tests.dist.cases import Case
from tests.dist.context_parallel_cases import CONTEXT_AND_OTHER_CASES, CONTEXT_PARALLEL_CASES
from tests.dist.data_parallel_cases import CASES
from tests.dist.expert_parallel_cases import EXPERT_PARALLEL_CASES, HUB_EXPERT_CASES
from tests.dist.hub_plan_cases import HUB_PLAN_CASES
from tests.dist.pipeline_cases import PIPELINE_AND_OTHER_CASES, PIPELINE_CASES
from tests.dist.ranks import RankError
from tests.dist.tensor_parallel_cases import TENSOR_AND_DATA_CASES, TENSOR_PARALLEL_CASES
from tests.dist.training import STEPS, compare

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "parallel_truth.json"
PAGE = ROOT / "docs" / "parallel-truth.md"

# Each family of parallelism has a list of cases; a row is one of them.
FAMILIES: dict[str, tuple[Case, ...]] = {
    "Data parallelism": CASES,
    "Tensor parallelism": TENSOR_PARALLEL_CASES,
    "Tensor and data parallelism": TENSOR_AND_DATA_CASES,
    "Tensor parallelism by Hugging Face's plans": HUB_PLAN_CASES,
    "Context parallelism": CONTEXT_PARALLEL_CASES,
    "Context parallelism with others": CONTEXT_AND_OTHER_CASES,
    "Expert parallelism": EXPERT_PARALLEL_CASES,
    "Expert parallelism of Hugging Face's mixtures": HUB_EXPERT_CASES,
    "Pipelines": PIPELINE_CASES,
    "Pipelines with others": PIPELINE_AND_OTHER_CASES,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", default="", help="families whose name contains this text")
    parser.add_argument("--only", default="", help="cases whose name and mesh contain this text")
    parser.add_argument("--write", action="store_true", help="write results and page")
    options = parser.parse_args()
    for family, case in _all_cases():
        if options.family.lower() in family.lower() and options.only.lower() in case.title.lower():
            row = measured(family, case)
            print(line(row), flush=True)
            if options.write:
                keep(row)
    if options.write:
        PAGE.write_text(page(json.loads(RESULTS.read_text(encoding="utf-8"))), encoding="utf-8")


def measured(family: str, case: Case) -> dict[str, Any]:
    """The row of a case, with the error of one that fails."""
    row = {
        "family": family,
        "name": case.name,
        "mesh": str(case.strategy.mesh),
        "ranks": case.strategy.mesh.devices,
        "torch": torch.__version__,
    }
    try:
        difference = compare(case.strategy, case.make_job, alone=case.alone)
    except RankError as error:
        return {**row, "error": str(error).strip().splitlines()[-1]}
    equal = difference.loss <= case.loss and difference.weights <= case.weights
    return {**row, "loss": difference.loss, "weights": difference.weights, "equal": equal}


def keep(row: dict[str, Any]) -> None:
    """Puts a row into the results, in place of an older one of its name and mesh; rows of cases that went are dropped."""
    rows = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    order = {(family, c.name, str(c.strategy.mesh)): i for i, (family, c) in enumerate(_all_cases())}
    by_key = {(r["family"], r["name"], r["mesh"]): r for r in [*rows, row]}
    kept = sorted((key for key in by_key if key in order), key=order.__getitem__)
    RESULTS.write_text(json.dumps([by_key[key] for key in kept], indent=1) + "\n", encoding="utf-8")


def page(rows: list[dict[str, Any]]) -> str:
    """docs/parallel-truth.md."""
    versions = ", ".join(sorted({row["torch"] for row in rows}))
    parts = [
        "# Several ranks against one process",
        f"A tiny language model takes {STEPS} steps alone, and then on several ranks over gloo, on the same global batches: "
        "micro-batch a of data-parallel rank r is number a·D + r of those of the single process, for D such ranks. The table "
        "gives the largest relative differences of any step's loss, and of any parameter after the last step. In fp32 both "
        "are at most 1e-5. Rows in 16 bits differ by rounding: shards compute in bf16 parameters where one process computes "
        "under autocast, and AdamW makes whole updates of the smallest gradients.",
        f"`python -m benchmarks.parallel_truth --write` (PyTorch {versions}).",
    ]
    for family in dict.fromkeys(row["family"] for row in rows):
        table = ["| strategy | ranks | mesh | loss | weights |", "| --- | ---: | --- | ---: | ---: |"]
        for row in rows:
            if row["family"] == family:
                figures = f"failed: {row['error']} |" if "error" in row else f"{row['loss']:.0e} | {row['weights']:.0e}"
                table.append(f"| {row['name']} | {row['ranks']} | {row['mesh']} | {figures} |")
        parts += [f"## {family}", "\n".join(table)]
    return "\n\n".join(parts) + "\n"


def line(row: dict[str, Any]) -> str:
    """A row as it is printed."""
    head = f"{row['name']:52} {row['ranks']} ranks  {row['mesh']:24}"
    if "error" in row:
        return f"{head} FAILED {row['error']}"
    return f"{head} loss {row['loss']:.1e}  weights {row['weights']:.1e}{'' if row['equal'] else '  NOT EQUAL'}"


def _all_cases() -> list[tuple[str, Case]]:
    return [(family, case) for family, cases in FAMILIES.items() for case in cases]


if __name__ == "__main__":
    main()
