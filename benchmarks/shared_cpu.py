"""Samples a second of `gpuwise train` alone and beside another program on the same cores, with threads that wait actively
(OpenMP's own choice: before) and passively (what gpuwise sets: after).

    python -m benchmarks.shared_cpu [--rounds N] [--steps N] [--write] [--page]

Contestants run in turns, each in processes of its own, on examples/digits.py. Competitors: none; a loop of plain Python on one
core; products of matrices by PyTorch on all cores. --write puts the rows into benchmarks/results/shared_cpu.json and the table
into docs/train.md; --page writes the table again from the results. Four minutes on two quiet cores; a run ends after 20 s.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

from gpuwise.hardware.detect import detect_cpu
from gpuwise.hardware.waiting import CHOICES

HOME = Path(__file__).parents[1]
RESULTS, PAGE = HOME / "benchmarks" / "results" / "shared_cpu.json", HOME / "docs" / "train.md"
BEGIN, END = "<!-- benchmarks.shared_cpu: begin -->\n", "<!-- benchmarks.shared_cpu: end -->\n"
COMPETITORS = {
    "nothing": "",
    "a loop in Python": "while True: pass",
    "PyTorch's products": "import torch\nx = torch.randn(512, 512)\nwhile True: x @ x",
}
CONTESTANTS = {"active": {"OMP_WAIT_POLICY": "active"}, "passive": {}}  # the second as gpuwise has it by itself
LONGEST = "20s"  # of a run: actively waiting ones can take a hundred times as long as alone
ENDED = (0, 130)  # exit codes: all steps taken, or the time limit reached
SETTLE_S = 2.0  # until a competitor computes


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.shared_cpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=600, help="of a run, which ends after 20 s in any case")
    parser.add_argument("--write", action="store_true", help="put the rows into results and page")
    parser.add_argument("--page", action="store_true", help="only write the page again")
    options = parser.parse_args()
    if options.page:
        results = json.loads(RESULTS.read_text(encoding="utf-8"))
    else:
        results = {"about": _about(), "rows": measured(options.rounds, options.steps)}
    print(table(results))
    if options.write:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if options.write or options.page:
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")


def measured(rounds: int, steps: int) -> dict[str, dict[str, list[float]]]:
    """Samples a second by competitor and contestant, one number a round."""
    results: dict[str, dict[str, list[float]]] = {rival: {name: [] for name in CONTESTANTS} for rival in COMPETITORS}
    for turn in range(rounds):
        for rival, code in COMPETITORS.items():
            order = list(CONTESTANTS) if turn % 2 == 0 else list(reversed(CONTESTANTS))
            for name in order:
                with competing(code):
                    results[rival][name].append(samples_per_s(CONTESTANTS[name], steps))
                print(f"round {turn + 1}, beside {rival}, {name}: {results[rival][name][-1]:,.0f} samples/s", flush=True)
    return results


def samples_per_s(variables: dict[str, str], steps: int) -> float:
    """Of one run of the digits example, warm-up left out."""
    command = [
        sys.executable,
        "-m",
        "gpuwise",
        "train",
        "examples/digits.py:job",
        "--steps",
        str(steps),
        "--no-run",
        "--json",
        "--time-limit",
        LONGEST,
    ]
    done = subprocess.run(command, cwd=HOME, env={**_plain(), **variables}, capture_output=True, text=True)
    if done.returncode not in ENDED:
        raise SystemExit(f"the run ended with exit code {done.returncode}:\n{done.stderr}")
    return float(json.loads(done.stdout)["samples_per_s"])


@contextmanager
def competing(code: str) -> Iterator[None]:
    """While entered, another process runs this Python code."""
    if not code:
        yield
        return
    rival = subprocess.Popen([sys.executable, "-c", code], env=_plain(), stderr=subprocess.DEVNULL)
    try:
        time.sleep(SETTLE_S)
        yield
    finally:
        rival.kill()
        rival.wait()


def table(results: dict[str, Any]) -> str:
    """Medians, smallest and largest, and the median of the rounds' ratios."""
    lines = ["| beside | waiting actively | waiting passively, as gpuwise sets it | ratio |", "| --- | ---: | ---: | ---: |"]
    for rival, rows in results["rows"].items():
        ratios = [after / before for before, after in zip(rows["active"], rows["passive"], strict=True)]
        lines.append(
            f"| {rival} | {_spread(rows['active'])} | {_spread(rows['passive'])} | "
            f"**{statistics.median(ratios):.2f}** ({min(ratios):.2f} to {max(ratios):.2f}) |"
        )
    about = results["about"]
    rounds = len(next(iter(results["rows"].values()))["active"])
    text = (
        f"Samples a second of `examples/digits.py`: medians of {rounds} rounds in turns, smallest and largest "
        f"({about['cpu']}, {about['cores']} cores, load {about['load']}, {about['date']})."
    )
    return "\n".join([text, "", *lines])


def with_table(page: str, results: dict[str, Any]) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table(results)}\n{END}{after}"


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


def _plain() -> dict[str, str]:
    """Our environment without a choice of how to wait."""
    return {name: value for name, value in os.environ.items() if name not in CHOICES}


def _about() -> dict[str, Any]:
    cpu = detect_cpu()
    return {"cpu": cpu.name, "cores": cpu.cores, "load": f"{os.getloadavg()[0]:.1f}", "date": date.today().isoformat()}


if __name__ == "__main__":
    main()
