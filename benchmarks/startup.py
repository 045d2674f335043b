"""How long a person waits for the command line, next to Python's own start.

    python -m benchmarks.startup [--runs 9]

Contestants take turns; medians and the range are printed, and the ratio of each to an empty Python process.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import time

PLAN = "plan llama3-8b --tokens 20B --budget 20000 --deadline 30d"


def contestants() -> dict[str, list[str]]:
    gpuwise = [shutil.which("gpuwise") or sys.exit("gpuwise is not installed: python -m pip install .")]
    return {
        "python -c pass": [sys.executable, "-c", "pass"],
        "gpuwise --help": [*gpuwise, "--help"],
        f"gpuwise {PLAN}": [*gpuwise, *PLAN.split()],
        "gpuwise fit llama3-8b --on rtx-4090": [*gpuwise, "fit", "llama3-8b", "--on", "rtx-4090"],
        "gpuwise chips": [*gpuwise, "chips"],
    }


def measure(runs: int) -> dict[str, list[float]]:
    """Seconds of each run, in turn; the first round warms the disk cache and is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants()}
    for turn in range(runs + 1):
        for name, command in contestants().items():
            start = time.perf_counter()
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9)
    seconds = measure(parser.parse_args().runs)
    empty = statistics.median(next(iter(seconds.values())))
    for name, result in seconds.items():
        median = statistics.median(result)
        print(f"{median:6.3f} s  ({min(result):.3f} to {max(result):.3f})  {median / empty:5.1f}x  {name}")


if __name__ == "__main__":
    main()
