"""How long a person waits for the command line, next to Python's own start.

    python -m benchmarks.startup [--runs 9] [--against PATH/TO/gpuwise]

Contestants take turns; medians of wall and of CPU seconds are printed, with the range of the former, and the ratio of its
median to that of an empty Python process. The plan also runs without the catalog's cache, as the first time on a machine.
--against: the command of another version, installed elsewhere, which makes the same plan.

The aim: the plan within 0.8 s of wall on two idle cores. Install gpuwise as users do (`python -m pip install .`, not editable),
so that its modules are compiled.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field

PLAN = "plan llama3-8b --tokens 20B --budget 20000 --deadline 30d"


@dataclass(frozen=True)
class Contestant:
    """A command.

    Attributes:
        command: with its arguments.
        environment: variables beside the usual ones.
        wall_s, cpu_s: seconds of each run.
    """

    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def run(self) -> tuple[float, float]:
        """Seconds of wall and of CPU."""
        start, cpu_s = time.perf_counter(), _children_s()
        subprocess.run(self.command, stdout=subprocess.DEVNULL, env={**os.environ, **self.environment}, check=True)
        return time.perf_counter() - start, _children_s() - cpu_s


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def contestants(against: str | None) -> dict[str, Contestant]:
    gpuwise = shutil.which("gpuwise") or sys.exit("gpuwise is not installed: python -m pip install .")
    plan = [gpuwise, *PLAN.split()]
    named = {
        "python -c pass": Contestant([sys.executable, "-c", "pass"]),
        "gpuwise --help": Contestant([gpuwise, "--help"]),
        f"gpuwise {PLAN}": Contestant(plan),
        "the same without the cache": Contestant(plan, {"GPUWISE_NO_CACHE": "1"}),
        "gpuwise fit llama3-8b --on rtx-4090": Contestant([gpuwise, "fit", "llama3-8b", "--on", "rtx-4090"]),
        "gpuwise chips": Contestant([gpuwise, "chips"]),
    }
    if against is not None:
        named[f"{against} {PLAN}"] = Contestant([against, *PLAN.split()])
    return named


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--against", help="the gpuwise command of another version")
    options = parser.parse_args()
    named = contestants(options.against)
    for turn in range(options.runs + 1):  # the first round warms the disk cache and is not counted
        for one in named.values():
            wall_s, cpu_s = one.run()
            if turn:
                one.wall_s.append(wall_s)
                one.cpu_s.append(cpu_s)
    empty_s = statistics.median(next(iter(named.values())).wall_s)
    for name, one in named.items():
        median_s = statistics.median(one.wall_s)
        print(
            f"{median_s:6.3f} s  ({min(one.wall_s):.3f} to {max(one.wall_s):.3f})  {statistics.median(one.cpu_s):6.3f} s CPU  "
            f"{median_s / empty_s:5.1f}x  {name}"
        )


if __name__ == "__main__":
    main()
