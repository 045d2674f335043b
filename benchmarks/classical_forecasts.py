"""Forecasts of fits from a tenth of their time, against the full fits: the table of docs/cpu-enough.md.

    python -m benchmarks.classical_forecasts            # fits everything (a quarter of an hour on one core), prints the table
    python -m benchmarks.classical_forecasts forest svc # some of the jobs of benchmarks.classical_jobs
    python -m benchmarks.classical_forecasts --write    # replaces the table in the page by the results that are kept

Each job is fitted on all of its rows in a process of its own, then forecast with the limit of time a tenth of that. Times are
processor seconds, so that other programs on the machine disturb them little; forecasts rest on the same.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import classical_jobs
from gpuwise.api.classical import memory_of_full_fit
from gpuwise.cost.forecast import Interval
from gpuwise.errors import GpuwiseError, JobError
from gpuwise.measure.fits import FEWEST_SIZES, time_fits
from gpuwise.measure.process_meter import metered
from gpuwise.plan.cpu.growth import growth_of
from gpuwise.report.parts import percent
from gpuwise.units import format_bytes, format_duration

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "cpu-enough.md"
BEGIN, END = "<!-- benchmarks.classical_forecasts: begin -->\n", "<!-- benchmarks.classical_forecasts: end -->\n"
SHARE = 0.1  # of the full fit's processor seconds, for all sizes together
CLOCK = 3.0  # clock seconds for each of these, as other programs may run
RESULTS = ROOT / "benchmarks" / "results" / "classical_forecasts.json"
HEADER = (
    "| job | rows | full fit | forecast | error | inside | largest part | peak memory | forecast | error | inside |\n"
    "| --- | ---: | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: | --- |"
)


@dataclass(frozen=True)
class Result:
    """One job: the full fit in processor seconds and bytes, what was forecast, and the rows of the largest timed fit."""

    job: str
    samples: int
    cpu_s: float
    time_s: Interval
    peak_bytes: int
    memory_bytes: Interval
    largest: int

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
        cells = [
            self.job.replace("_", " "),
            f"{self.samples:,}",
            format_duration(self.cpu_s),
            _span(self.time_s, format_duration),
            f"{100 * time:+.0f} %",
            "yes" if self.inside[0] else "no",
            f"{self.largest:,}",
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
    every = (*classical_jobs.SEEN, *classical_jobs.UNSEEN)
    for job in options.jobs or (() if options.write and RESULTS.exists() else every):
        try:
            result = compared(job)
        except GpuwiseError as error:
            print(f"{job}: {error}", file=sys.stderr, flush=True)
            RESULTS.write_text(
                json.dumps(
                    {**kept(), job: {"refused": error.what.replace(f"{ROOT}/benchmarks/classical_jobs.py:", "")}}, indent=1
                )
                + "\n",
                encoding="utf-8",
            )
            continue
        print(result.row(), file=sys.stderr, flush=True)
        RESULTS.write_text(json.dumps({**kept(), job: asdict(result)}, indent=1) + "\n", encoding="utf-8")
    known = kept()
    measured = [job for job in every if job in known and "refused" not in known[job]]
    part = generated([Result.from_dict(known[job]) for job in measured])
    part += "".join(f"No forecast: {known[job]['refused']}\n" for job in every if job in known and job not in measured)
    print(part)
    if options.write:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        PAGE.write_text(before + BEGIN + part + END + rest.partition(END)[2], encoding="utf-8")


def kept() -> dict[str, dict[str, Any]]:
    """The results of earlier runs by job."""
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}


def full_fit(name: str) -> dict[str, float | int | None]:
    """Fits a job on all of its rows in this process."""
    job = getattr(classical_jobs, name)
    few = job.tables(1000)
    job.new_estimator().fit(*few)  # loads what the library loads late
    tables = job.tables(job.samples)
    used = metered(lambda: job.new_estimator().fit(*tables))
    return {"cpu_s": used.cpu_s, "seconds": used.seconds, "peak_bytes": used.peak_bytes}


def compared(name: str) -> Result:
    """The full fit of a job, and its forecast from fits within a tenth of that time."""
    command = [sys.executable, "-m", "benchmarks.classical_forecasts", "--full", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    full = json.loads(done.stdout.splitlines()[-1])
    return forecast(name, full["cpu_s"], full["peak_bytes"])


def forecast(name: str, cpu_s: float, peak: int) -> Result:
    """A job's forecast from the sizes that took a tenth of the full fit's processor seconds together, beside the full fit."""
    timed = time_fits(f"{ROOT}/benchmarks/classical_jobs.py:{name}", limit_s=CLOCK * SHARE * cpu_s)
    assert timed is not None
    within = [sum(each.cpu_s for each in timed.fits[: row + 1]) <= SHARE * cpu_s for row in range(len(timed.fits))]
    fits = tuple(fit for fit, inside in zip(timed.fits, within, strict=True) if inside)
    if len(fits) < FEWEST_SIZES:
        raise JobError(f"{name}: {len(fits)} sizes within {format_duration(SHARE * cpu_s)} are too few to extrapolate from.")
    timed = replace(timed, fits=fits)
    growth = growth_of([fit.samples for fit in timed.fits], [fit.cpu_s for fit in timed.fits])
    memory = memory_of_full_fit(timed)
    assert memory is not None
    return Result(
        name,
        timed.samples,
        cpu_s,
        growth.at(timed.samples),
        peak,
        memory,
        timed.fits[-1].samples,
    )


def generated(results: list[Result]) -> str:
    """The table and its summary in Markdown."""
    lines = []
    groups = {"Kinds of estimators seen in development, on other data": classical_jobs.SEEN, "New kinds": classical_jobs.UNSEEN}
    for title, names in groups.items():
        rows = [result for result in results if result.job in names]
        if rows:
            lines += [f"{title}:\n", HEADER, *(result.row() for result in rows), "", _summary(rows), ""]
    lines += [f"All {len(results)} together: {_summary(results)}\n"]
    return "\n".join(lines)


def _summary(results: list[Result]) -> str:
    """'median error of time 20 %, ...'"""
    words = []
    for index, name in enumerate(("time", "memory")):
        # The error as a factor either way: half as long and twice as long are equally wrong.
        factors = [math.exp(abs(math.log1p(result.errors[index]))) - 1 for result in results]
        inside = sum(result.inside[index] for result in results)
        words.append(
            f"median error of {name} {percent(statistics.median(factors))}, largest {percent(max(factors))}, "
            f"inside the interval {inside} of {len(results)}"
        )
    return "; ".join(words) + "."


def _inside(interval: Interval, value: float) -> bool:
    return interval.low <= value <= interval.high


def _span(interval: Interval, show: object) -> str:
    assert callable(show)
    return f"{show(interval.value)} ({show(interval.low)} to {show(interval.high)})"


if __name__ == "__main__":
    main()
