"""Training by gpuwise against a plain PyTorch loop, case by case.

    python -m benchmarks.update_truth [--only TEXT] [--compiled] [--write]

Every optimizer in every precision and kind of kernels, with every technique of cases.py: 20 steps from the same initial
weights over the same batches. --compiled: compiled steps, too (minutes). --write: docs/update-truth.md is made of it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.update_truth.cases import (
    COMPILED_STEPS,
    MUON,
    PRECISIONS,
    REASONS,
    SAME_OPERATIONS,
    TECHNIQUES,
    TOLERANCES,
    cases,
    compiled_cases,
    run,
)
from benchmarks.update_truth.plain import STEPS

PAGE = Path(__file__).parents[2] / "docs" / "update-truth.md"
RESULTS = Path(__file__).parents[1] / "results" / "update_truth.json"
COMMAND = "python -m benchmarks.update_truth --compiled --write"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for case in [*cases(), *(compiled_cases() if options.compiled else [])]:
        if options.only in case.name:
            result = run(case)
            rows.append(
                {
                    "optimizer": case.optimizer,
                    "kernels": case.kernels,
                    "precision": case.precision,
                    "technique": case.technique.name,
                    "deviation": result,
                    "tolerance": case.tolerance,
                }
            )
            print(f"{result:9.2g}  of {case.tolerance:7.1g}  {case.name}", file=sys.stderr)
    data = {"torch": torch.__version__.partition("+")[0], "cpu": torch.backends.cpu.get_cpu_capability(), "rows": rows}
    print(table(rows))
    if options.write:
        RESULTS.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        PAGE.write_text(page(data), encoding="utf-8")
    if wrong := [row for row in rows if row["deviation"] > row["tolerance"]]:
        sys.exit("\n".join(["above their tolerance:", *map(str, wrong)]))


def table(rows: list[dict[str, Any]]) -> str:
    """The largest deviation by optimizer, kernels and precision."""
    lines = ["| optimizer, kernels | " + " | ".join(PRECISIONS) + " |", "| --- |" + " --- |" * len(PRECISIONS)]
    for optimizer, kernels in dict.fromkeys((row["optimizer"], row["kernels"]) for row in rows):
        cells = []
        for precision in PRECISIONS:
            here = (optimizer, kernels, precision)
            results = [row["deviation"] for row in rows if (row["optimizer"], row["kernels"], row["precision"]) == here]
            cells.append(f"{max(results):.1e}" if results else "not run")
        lines.append(f"| {optimizer}, {kernels} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def page(data: dict[str, Any]) -> str:
    """docs/update-truth.md."""
    rows = data["rows"]
    above = sum(row["deviation"] > row["tolerance"] for row in rows)
    techniques = "\n".join(f"- {technique.name}" for technique in TECHNIQUES)
    why = "\n".join(f"| {precision} | {TOLERANCES[precision]:g} | {REASONS[precision]} |" for precision in PRECISIONS)
    return f"""<!-- Made by `{COMMAND}`; do not edit. -->

# gpuwise's updates against plain PyTorch

The same training twice: by `gpuwise train`'s own run, and by a loop written in plain PyTorch that imports nothing of
gpuwise (`benchmarks/update_truth/plain.py`) and updates one tensor at a time. A convolution, batch norm, two residual
blocks with dropout and a head; {STEPS} steps with the same initial weights, batches and random numbers. {len(rows)} cases ran
under PyTorch {data["torch"]} on a CPU with {data["cpu"]}; {above} ended above their tolerance.

The largest deviation, over parameters, buffers and averages, of ours from the loop's, as a share of what the loop changed
in that tensor; losses are compared as well. 0 is the same, 1 is a tensor that training left as it was.

{table(rows)}

"not run" are kernels that gpuwise does not use there, because PyTorch's are wrong: fused SGD on a CPU with parameters in
16 bits ([pytorch#191763](https://github.com/pytorch/pytorch/issues/191763)), and with fp16's loss scale, where an overflow
in the first step leaves uninitialised momentum.

Each optimizer, in each precision and kind of kernels, meets each of these, where they go together:

{techniques}

Tolerances: {SAME_OPERATIONS:g} in for-loop kernels and for state of 8 and 4 bits, which do what the loop does (low-bit updates
run eagerly in both). Muon's orthogonalisation rounds to bf16 in every precision, and its other parameters are updated in
one kernel: {MUON:g} at least. Compiled steps, compared once a precision, round a chain of operations once: {COMPILED_STEPS:g}
at least. Elsewhere:

| precision | tolerance | because |
| --- | --- | --- |
{why}

The tests run a part of it, in which each optimizer, each precision and each kind of kernels meets each technique, and plant
the faults that it has to find: blocks of numbers that an update leaves out, momentum that is not initialised.
"""


if __name__ == "__main__":
    main()
