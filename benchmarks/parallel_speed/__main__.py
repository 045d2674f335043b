"""Measures how fast gpuwise trains on 2 and 4 gloo ranks, beside plain PyTorch, accelerate and Lightning.

    python -m benchmarks.parallel_speed [--ranks 2 4] [--rounds N] [--size tiny|small] [--only TEXT]

In each round every contestant trains once, in an order that turns, in processes of its own that are forked from one that has
imported everything. Some steps warm up, the next are timed by rank 0's clock. Then gpuwise and a loop by hand take their
steps in turns in the same processes, which tells small differences on a busy machine; once more without the collective
that gpuwise has in each step, which shows what that costs. Ratios are the others' seconds over
gpuwise's: above 1, gpuwise is faster. Prints a table; --json PATH writes every figure. Needs accelerate and lightning.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.parallel_speed.rounds import SIZES, measured


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.parallel_speed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", choices=SIZES, nargs="+", default=list(SIZES))
    parser.add_argument("--only", default="", metavar="TEXT", help="rows with this in their names: sharded, replicated")
    parser.add_argument("--json", type=Path, help="write every figure here")
    options = parser.parse_args()
    results = []
    for ranks in options.ranks:
        for size in options.size:
            for row in ("sharded", "replicated"):
                if options.only in row:
                    results.append(measured(row, ranks, size, rounds=options.rounds))
                    print(table(results[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps({"about": about(), "rows": results}, indent=1) + "\n", encoding="utf-8")


def about() -> dict[str, Any]:
    """What all rows have in common."""
    from gpuwise.hardware.detect import detect_cpu

    libraries = {name: version(name) for name in ("torch", "accelerate", "lightning")}
    return {"machine": detect_cpu().name, "versions": {"python": platform.python_version(), **libraries}}


def table(result: dict[str, Any]) -> str:
    """A row of the results as text: median, smallest and largest of the rounds."""
    lines = [
        f"{result['row']}, {result['ranks']} ranks, {result['size']}: {len(result['step_s'])} rounds, "
        f"load {result['load'][0]:.1f} to {result['load'][1]:.1f}"
    ]
    for name in result["step_s"][0]:
        steps = [1e3 * turn[name] for turn in result["step_s"]]
        ratios = [turn[name] / turn["gpuwise"] for turn in result["step_s"]]
        lines.append(f"  {name:<18} {_spread(steps)} ms a step   {_spread(ratios)} times gpuwise's")
    for name, words in (("in_turns", ""), ("without_exchange", ", without the collective of each step")):
        lines.append(_in_turns(result[name], words))
    return "\n".join(lines)


def _in_turns(rounds: Sequence[dict[str, list[float]]], words: str) -> str:
    ours, hand = ([s for turns in rounds for s in turns[name]] for name in ("gpuwise", "by hand"))
    ratios = sorted(a / b for a, b in zip(hand, ours, strict=True))
    middle = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    return (
        f"  step by step in turns{words}: by hand {1e3 * median(hand):.2f} ms, gpuwise {1e3 * median(ours):.2f} ms; "
        f"ratio of medians {median(hand) / median(ours):.3f}, of each turn {median(ratios):.3f} "
        f"(half of them {middle[0]:.2f} to {middle[1]:.2f}), {len(ratios)} turns"
    )


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):8.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    main()
