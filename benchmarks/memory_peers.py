"""Peak memory of the same training steps: measured, forecast by gpuwise, and as other tools estimate it.

    python -m benchmarks.memory_peers [--reference FOLDER] [--only TEXT]

The steps of benchmarks.memory_on_cpu, measured on this machine's CPU; with --reference also the LoRA and QLoRA steps
that were measured on a Tesla T4 (benchmarks.memory_t4). Needs the `bench` extra.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from benchmarks import memory_on_cpu, memory_t4
from benchmarks.support.memory_cases import cases
from benchmarks.support.memory_estimators import accelerate_bytes, deepspeed_bytes, memtracker_bytes

TOOLS = ("gpuwise", "accelerate", "DeepSpeed", "MemTracker")


@dataclass(frozen=True)
class Row:
    """One step, in bytes; a tool that gives no answer is None."""

    name: str
    measured: int
    estimates: dict[str, int | None]

    def error(self, tool: str) -> float | None:
        estimate = self.estimates[tool]
        return None if estimate is None else estimate / self.measured - 1


def on_cpu(truth: list[memory_on_cpu.Row]) -> list[Row]:
    """Each measured configuration, with what the others say."""
    by_name = {case.name: case for case in cases()}
    rows = []
    for row in truth:
        case = by_name[row.name]
        with memory_on_cpu.on_threads(1):
            tracked = memtracker_bytes(case.job, case.strategy)
        model = on_meta(case.job.model)
        rows.append(
            Row(
                row.name,
                row.measured,
                {
                    "gpuwise": row.predicted,
                    "accelerate": accelerate_bytes(model, case.strategy.precision),
                    "DeepSpeed": deepspeed_bytes(model),
                    "MemTracker": tracked,
                },
            )
        )
    return rows


def on_t4(found: list[memory_t4.Row], reference: Path) -> list[Row]:
    """The fp16 LoRA rows of the T4, allocated bytes."""
    import pandas as pd

    table = pd.read_csv(reference / "memory" / "t4_finetune.csv", keep_default_na=False)
    jobs = {memory_t4.name_of(row): memory_t4.job_of(row) for row in table.to_dict("records") if row["quantization"] == "none"}
    rows = []
    for row in found:
        if row.name not in jobs:
            continue
        model = on_meta(jobs[row.name].model)
        estimates = {
            "gpuwise": round(row.forecast_mib["allocated"] * 2**20),
            "accelerate": accelerate_bytes(model, "amp-fp16"),
            "DeepSpeed": deepspeed_bytes(model),
            "MemTracker": None,  # it follows the CPU's kernels here, not a GPU's
        }
        rows.append(Row(row.name, round(row.measured_mib["allocated"] * 2**20), estimates))
    return rows


def on_meta(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return make()


def shown(error: float | None) -> str:
    if error is None:
        return "no answer"
    return f"{error:+.5%}" if abs(error) < 1e-3 else f"{error:+.1%}"


def summary(rows: list[Row]) -> dict[str, str]:
    """Median, smallest and largest error of each tool."""
    lines = {}
    for tool in TOOLS:
        errors = [error for row in rows if (error := row.error(tool)) is not None]
        if errors:
            middle = shown(statistics.median(map(abs, errors))).lstrip("+")
            span = f"from {shown(min(errors))} to {shown(max(errors))}"
            lines[tool] = f"median size {middle}, {span}, {len(errors)} of {len(rows)} steps"
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reference", type=Path, help="folder with memory/t4_finetune.csv")
    parser.add_argument("--only", default="", help="configurations whose name contains this text")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    truth = [memory_on_cpu.compare(case) for case in cases() if options.only.lower() in case.name.lower()]
    tables = {"CPU": on_cpu(truth)}
    if options.reference:
        tables["Tesla T4"] = on_t4(memory_t4.rows(options.reference, options.only), options.reference)
    for title, rows in tables.items():
        print(f"{title + ': measured bytes, errors':<44}{'':>14}" + "".join(f"{tool:>14}" for tool in TOOLS))
        for row in rows:
            cells = "".join(f"{shown(row.error(tool)):>14}" for tool in TOOLS)
            print(f"{row.name:<44}{row.measured:>14,}{cells}")
        for tool, line in summary(rows).items():
            print(f"    {tool}: {line}")


if __name__ == "__main__":
    main()
