"""Forecasts of fits from a tenth of their time, against the full fits: the table of docs/cpu-enough.md.

    python -m benchmarks.classical_forecasts                   # fits everything (ten minutes on one core), prints the table
    python -m benchmarks.classical_forecasts huber_10 mlp_8    # some of the jobs of benchmarks.classical_jobs
    python -m benchmarks.classical_forecasts --write           # replaces the table in the page by the results that are kept

Each job is fitted on all of its rows in a process of its own, then forecast from fits that take a tenth of that together. Times
are processor seconds, which other programs disturb little; forecasts rest on the same. A fixed piece of work
is timed before and after both: where its seconds differ by more than a quarter, the row is marked as noisy.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import classical_jobs
from gpuwise.api.classical import growth_of_time, memory_of_full_fit
from gpuwise.cost.forecast import Interval
from gpuwise.errors import GpuwiseError
from gpuwise.hardware.waiting import idle_threads_asleep
from gpuwise.measure.fits import time_fits
from gpuwise.measure.process_meter import metered
from gpuwise.report.parts import percent
from gpuwise.units import format_bytes, format_duration

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "cpu-enough.md"
BEGIN, END = "<!-- benchmarks.classical_forecasts: begin -->\n", "<!-- benchmarks.classical_forecasts: end -->\n"
SHARE = 0.1  # of the full fit's processor seconds, for all parts together
NOISY = 1.25  # times the shortest of the fixed piece of work
RESULTS = ROOT / "benchmarks" / "results" / "classical_forecasts.json"
HEADER = (
    "| job | rows | full fit | parts | largest part | forecast | error | inside | peak memory | forecast | error | inside |\n"
    "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- | ---: | ---: | ---: | --- |"
)


@dataclass(frozen=True)
class Result:
    """One job.

    Attributes:
        job: its name in benchmarks.classical_jobs.
        samples: rows.
        cpu_s: processor seconds of the full fit.
        time_s: the forecast of these.
        peak_bytes: of the full fit.
        memory_bytes: the forecast of these.
        largest: most rows of a part.
        few_rounds: whether parts were fitted with few rounds.
        parts_s: processor seconds of the parts together.
        noise: longest time of the fixed piece of work, over the shortest.
        parts: (rows, rounds, whole, processor seconds) of each.
    """

    job: str
    samples: int
    cpu_s: float
    time_s: Interval
    peak_bytes: int
    memory_bytes: Interval
    largest: int
    few_rounds: bool
    parts_s: float
    noise: float
    parts: list[tuple[int, int | None, bool, float]]

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Result:
        time_s, memory_bytes = (Interval(**data[name]) for name in ("time_s", "memory_bytes"))
        return cls(**{**data, "time_s": time_s, "memory_bytes": memory_bytes})

    @property
    def errors(self) -> tuple[float, float]:
        """Of time and memory, +0.1 for a forecast 10 % too high."""
        return self.time_s.value / self.cpu_s - 1, self.memory_bytes.value / self.peak_bytes - 1

    @property
    def inside(self) -> tuple[bool, bool]:
        return _inside(self.time_s, self.cpu_s), _inside(self.memory_bytes, self.peak_bytes)

    def row(self) -> str:
        time, memory = self.errors
        kind, _, columns = self.job.rpartition("_")
        cells = [
            f"{kind.replace('_', ' ')}, {columns} columns" + (" (noisy)" if self.noise > NOISY else ""),
            f"{self.samples:,}",
            format_duration(self.cpu_s),
            percent(self.parts_s / self.cpu_s),
            f"{self.largest:,}" + (" with few rounds" if self.few_rounds else ""),
            _span(self.time_s, format_duration),
            f"{100 * time:+.0f} %",
            "yes" if self.inside[0] else "no",
            format_bytes(self.peak_bytes),
            _span(self.memory_bytes, format_bytes),
            f"{100 * memory:+.0f} %",
            "yes" if self.inside[1] else "no",
        ]
        return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.classical_forecasts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("jobs", nargs="*", metavar="JOB", help="of benchmarks.classical_jobs (all)")
    parser.add_argument("--write", action="store_true", help="replace the table in the page")
    parser.add_argument("--full", metavar="JOB", help=argparse.SUPPRESS)  # the child that fits all rows
    options = parser.parse_args()
    if options.full:
        print(json.dumps(full_fit(options.full)))
        return
    for job in options.jobs or (() if options.write and RESULTS.exists() else classical_jobs.JOBS):
        try:
            result = compared(job)
        except GpuwiseError as error:
            print(f"{job}: {error}", file=sys.stderr, flush=True)
            keep(job, {"refused": error.what.replace(f"{ROOT}/benchmarks/classical_jobs.py:", "")})
            continue
        print(result.row(), file=sys.stderr, flush=True)
        keep(job, asdict(result))
    part = generated(kept())
    print(part)
    if options.write:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        PAGE.write_text(before + BEGIN + part + END + rest.partition(END)[2], encoding="utf-8")


def kept() -> dict[str, dict[str, Any]]:
    """The results of earlier runs by job."""
    known = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    return {job: known[job] for job in classical_jobs.JOBS if job in known}


def keep(job: str, result: dict[str, Any]) -> None:
    RESULTS.write_text(json.dumps({**kept(), job: result}, indent=1) + "\n", encoding="utf-8")


def full_fit(name: str) -> dict[str, float | int | None]:
    """Fits a job on all of its rows in this process."""
    job = classical_jobs.JOBS[name]
    few = job.tables(1000)
    job.new_estimator().fit(*few)  # loads what the library loads late
    tables = job.tables(job.samples)
    used = metered(lambda: job.new_estimator().fit(*tables))
    return {"cpu_s": used.cpu_s, "peak_bytes": used.peak_bytes}


def compared(name: str) -> Result:
    """The full fit of a job, and its forecast from parts within a tenth of that time."""
    references = [_reference_s()]
    command = [sys.executable, "-m", "benchmarks.classical_forecasts", "--full", name]
    environment = {**os.environ, **idle_threads_asleep()}  # as in the child that fits the parts
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    full = json.loads(done.stdout.splitlines()[-1])
    references.append(_reference_s())
    cpu_s = full["cpu_s"]
    timed = time_fits(f"{ROOT}/benchmarks/classical_jobs.py:{name}", limit_s=SHARE * cpu_s, of_processors=True)
    references.append(_reference_s())
    assert timed is not None
    memory = memory_of_full_fit(timed)
    assert memory is not None
    parts = (*timed.fits, *timed.few_rounds)
    largest = max(parts, key=lambda fit: (fit.samples, fit.whole))
    return Result(
        name,
        timed.samples,
        cpu_s,
        growth_of_time(timed).at(timed.samples),
        full["peak_bytes"],
        memory,
        largest.samples,
        not largest.whole,
        sum(fit.cpu_s * fit.fits for fit in parts),
        max(references) / min(references),
        [(fit.samples, fit.rounds, fit.whole, fit.cpu_s) for fit in parts],
    )


def generated(known: dict[str, dict[str, Any]]) -> str:
    """The table and its summary in Markdown."""
    results = [Result.from_dict(data) for data in known.values() if "refused" not in data]
    with_rounds = [result for result in results if result.few_rounds]
    without = [result for result in results if not result.few_rounds]
    lines = [HEADER, *(result.row() for result in results), ""]
    lines += [f"All {len(results)}: {_summary(results)}\n"]
    lines += [f"The {len(with_rounds)} with fits of few rounds: {_summary(with_rounds)}\n"] if with_rounds else []
    lines += [f"The {len(without)} without: {_summary(without)}\n"] if without else []
    lines += [f"No forecast: {data['refused']}\n" for data in known.values() if "refused" in data]
    return "\n".join(lines)


def _summary(results: list[Result]) -> str:
    """'median error of time 20 %, ...'"""
    words = []
    for index, name in enumerate(("time", "memory")):
        # The error as a factor either way: half as long and twice as long are equally wrong.
        factors = [math.exp(abs(math.log1p(result.errors[index]))) - 1 for result in results]
        inside = sum(result.inside[index] for result in results)
        intervals = [(result.time_s, result.memory_bytes)[index] for result in results]
        width = statistics.median(math.sqrt(interval.high / interval.low) for interval in intervals)
        words.append(
            f"median error of {name} {percent(statistics.median(factors))}, nine of ten within "
            f"{percent(float(np.quantile(factors, 0.9)))}, largest {percent(max(factors))}, inside the interval {inside} of "
            f"{len(results)}, half of the intervals at most {width:.2f} times either way"
        )
    return "; ".join(words) + "."


def _reference_s() -> float:
    """Processor seconds of a fixed piece of work: the median of five."""
    table = np.random.default_rng(0).random((400, 400))
    taken = []
    for _ in range(5):
        began_s = time.process_time()
        np.sort(table @ table, axis=0).sum()
        sum(range(300_000))
        taken.append(time.process_time() - began_s)
    return statistics.median(taken)


def _inside(interval: Interval, value: float) -> bool:
    return interval.low <= value <= interval.high


def _span(interval: Interval, show: object) -> str:
    assert callable(show)
    return f"{show(interval.value)} ({show(interval.low)} to {show(interval.high)})"


if __name__ == "__main__":
    main()
