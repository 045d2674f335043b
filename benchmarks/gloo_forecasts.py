"""Forecasts of ranks on this CPU against real steps over gloo, a dozen strategies on two ranks and on four:

    python -m benchmarks.gloo_forecasts [--rounds N] [--only TEXT] [--full | --unmeasured] [--write]

Measures this machine in a configuration folder of its own (`gpuwise measure --quick`; --full: all of it, five minutes;
--unmeasured: forecasts rest on datasheets and rough figures). Then writes every forecast down, then runs the strategies in
turns, forwards and backwards, in processes of their own, and compares medians. --only: strategies whose name contains the
text. --write: puts the rows into benchmarks/results/gloo_forecasts.json and makes docs/gloo-forecasts.md of them. Under five
minutes on two cores; leave the machine alone meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import warnings
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.support.gloo_steps import ALONE, STRATEGIES, forecasts, seconds_of
from gpuwise.hardware.detect import detect_cpu
from gpuwise.hardware.waiting import passive_waiting

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "gloo_forecasts.json"
PAGE = ROOT / "docs" / "gloo-forecasts.md"
GOAL = 0.15


def compared(names: list[str], rounds: int) -> list[dict[str, Any]]:
    """One row a strategy: forecast, made before anything ran, and the medians of the rounds."""
    forecast_rows = forecasts(names)
    for name, forecast in forecast_rows.items():
        print(f"forecast {name:<44} {1e3 * forecast['seconds']:9.1f} ms", flush=True)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for name, step_s in seconds_of(names if turn % 2 == 0 else names[::-1]).items():
            seconds[name].append(step_s)
    rows = []
    for name in names:
        row = {"name": name, "ranks": STRATEGIES[name].strategy.mesh.devices, **forecast_rows[name], "rounds_s": seconds[name]}
        rows.append(row)
        print(f"{name:<44} {1e3 * row['seconds']:9.1f} ms, measured {1e3 * _measured_s(row):9.1f} ms, {error(row):+.1%}")
    return rows


def error(row: Mapping[str, Any]) -> float:
    """Forecast over measured, less one."""
    return float(row["seconds"]) / _measured_s(row) - 1


def _measured_s(row: Mapping[str, Any]) -> float:
    return statistics.median(row["rounds_s"])


def summary(rows: list[dict[str, Any]]) -> str:
    parallel = [row for row in rows if row["name"] != ALONE]
    sizes = [abs(error(row)) for row in parallel]
    inside = sum(row["low"] <= _measured_s(row) <= row["high"] for row in parallel)
    return (
        f"{len(parallel)} strategies: median error {statistics.median(sizes):.1%} (goal {GOAL:.0%}), largest {max(sizes):.1%}; "
        f"{inside} measured steps lie inside the interval"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="strategies whose name contains this text")
    figures = parser.add_mutually_exclusive_group()
    figures.add_argument("--full", action="store_true", help="measure the machine for five minutes")
    figures.add_argument("--unmeasured", action="store_true", help="do not measure the machine")
    parser.add_argument("--write", action="store_true", help="write results and page")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ |= passive_waiting()  # of the processes that this one starts
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"GPUWISE_CONFIG_DIR": folder, "XDG_STATE_HOME": folder}
        import gpuwise

        if not options.unmeasured:
            gpuwise.measure(quick=not options.full)
        rows = compared([name for name in STRATEGIES if options.only.lower() in name or name == ALONE], options.rounds)
    cpu = detect_cpu()
    results = {
        "machine": f"{cpu.name}, {cpu.cores} cores" + ", not measured" * options.unmeasured,
        "load": round(load, 1),
        "load_after": round(os.getloadavg()[0], 1),
        "date": date.today().isoformat(),
        "rows": rows,
    }
    print(summary(rows))
    if options.write:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        PAGE.write_text(page(results), encoding="utf-8")


def page(results: Mapping[str, Any]) -> str:
    """docs/gloo-forecasts.md."""
    table = [
        "| strategy | ranks | forecast | measured | error | smallest to largest |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in results["rows"]:
        spread = f"{1e3 * min(row['rounds_s']):.0f} to {1e3 * max(row['rounds_s']):.0f} ms"
        cells = [row["name"], str(row["ranks"]), f"{1e3 * row['seconds']:.0f} ms", f"{1e3 * _measured_s(row):.0f} ms"]
        table.append("| " + " | ".join([*cells, f"{error(row):+.1%}", spread]) + " |")
    parts = [
        "<!-- Generated. Do not edit: run `python -m benchmarks.gloo_forecasts --write`. -->\n"
        "# Forecasts of ranks on a CPU against real steps over gloo",
        "A small decoder trains on ranks that are processes of one machine, measured first (`gpuwise measure`). Every forecast "
        "was written down before anything ran. Measured is the median of rounds in turns, each the median of several "
        "steps of the slowest rank.",
        f"{results['machine']}; load {results['load']} before and {results['load_after']} at the end, which includes the ranks "
        f"themselves; {results['date']}.",
        summary(results["rows"]) + ".",
        "\n".join(table),
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
