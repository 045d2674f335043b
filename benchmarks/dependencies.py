"""What the packages beside gpuwise's own code cost: the milliseconds of docs/dependencies.md.

    python -m pip install psutil py-cpuinfo msgspec pydantic plotext nvidia-ml-py matplotlib     # missing ones are named
    python -m benchmarks.dependencies [--runs 5]

Each contestant runs in a fresh process, in turn. The least processor time of the runs is printed, with the largest; processes
that the work starts are included.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

_TIMED = """
import math, resource, sys
{before}
def spent_s():
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))
began_s = spent_s()
for _ in range({times}):
    {work}
print((spent_s() - began_s) / {times})
"""
_POINTS = "points = [(float(i), 3 / (1 + i / 50) + math.sin(i) / 20) for i in range(2000)]"
_TOMLS = (
    "from importlib.resources import files\n"
    "from pathlib import Path\n"
    "import tomllib\n"
    "contents = [p.read_bytes() for p in sorted(Path(str(files('gpuwise.hardware'))).glob('data/**/*.toml'))]\n"
)
# What is timed: code that runs before the clock starts, code that is timed, and how often.
CONTESTANTS: dict[str, tuple[str, str, int]] = {
    **{f"import {name}": ("", f"import {name}", 1) for name in ("pynvml", "psutil", "msgspec", "plotext")},
    "import pydantic": ("", "from pydantic import BaseModel", 1),  # its other names are loaded when first used
    "import matplotlib.figure": ("", "import matplotlib.figure, matplotlib.backends.backend_svg", 1),
    "processor: detect_cpu()": ("from gpuwise.hardware.detect.cpu import detect_cpu", "detect_cpu()", 100),
    "processor: cpuinfo.get_cpu_info()": ("import cpuinfo", "cpuinfo.get_cpu_info()", 1),
    "chart of 2,000 points: Chart.svg": (
        f"{_POINTS}\nfrom gpuwise.report.svg_chart import Chart",
        "Chart('loss', points, str).svg([], (0.0, 1999.0))",
        10,
    ),
    "chart of 2,000 points: matplotlib": (
        f"{_POINTS}\nimport io\nfrom matplotlib.figure import Figure\nimport matplotlib.backends.backend_svg",
        "figure = Figure((7, 2.5)); figure.subplots().plot(*zip(*points)); figure.savefig(io.StringIO(), format='svg')",
        3,
    ),
    "catalog: tomllib": (f"{_TOMLS}", "[tomllib.loads(data.decode()) for data in contents]", 5),
    "catalog: JSON that is kept": (
        f"{_TOMLS}import json\ntexts = [json.dumps(tomllib.loads(data.decode()), default=str) for data in contents]",
        "[json.loads(text) for text in texts]",
        5,
    ),
}


def seconds(before: str, work: str, times: int) -> float | None:
    """Processor seconds of one run in a fresh process; None where a package is missing."""
    code = _TIMED.format(before=before, work=work, times=times)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode and "ModuleNotFoundError" in done.stderr:
        return None
    if done.returncode:
        sys.exit(done.stderr)
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    rounds = [{name: seconds(*what) for name, what in CONTESTANTS.items()} for _ in range(runs)]
    for name in CONTESTANTS:
        times = [value for value in (one[name] for one in rounds) if value is not None]
        print(f"{1000 * min(times):9.2f} ms  (to {1000 * max(times):.2f})  {name}" if times else f"  missing     {name}")


if __name__ == "__main__":
    main()
