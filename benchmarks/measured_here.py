"""How right forecasts are on this machine once it was measured: two measurements held against each other, then the suite.

    python -m benchmarks.measured_here [--write] [--quick] [--page]

Measures twice (about 10 minutes on two cores; --quick: 90 s), validates the suite with the second calibration (3 minutes) and,
with --write, replaces benchmarks/results/measured_here.json, docs/measured-here.md and its figures. --page alone writes the
page again from the results, with a section of benchmarks.small_passes. Leave the machine alone meanwhile. The configuration
and history of the user are not touched.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.support.small_passes_page import RESULTS as SMALL_PASSES
from benchmarks.support.small_passes_page import section

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "measured_here.json"
PAGE = ROOT / "docs" / "measured-here.md"
FIGURE = ROOT / "docs" / "figures" / "measured-here.svg"
COMMAND = "python -m benchmarks.measured_here --write"
DETAILS = ("detected", "rows")  # of measurements: left out of the results but for the figure's


def measured(quick: bool) -> dict[str, Any]:
    """Two measurements and the validation of the suite, in folders of their own."""
    import gpuwise
    from gpuwise.report.machine_picture import save_picture

    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"GPUWISE_CONFIG_DIR": folder, "XDG_STATE_HOME": folder}
        first, second = gpuwise.measure(quick=quick), gpuwise.measure(quick=quick)
        save_picture(second, FIGURE)
        validation = gpuwise.validate(
            suite=True, on_progress=lambda doing: print(doing.number, doing.job, doing.what, file=sys.stderr)
        )
    kept = [{key: value for key, value in one.to_dict().items() if key not in DETAILS} for one in (first, second)]
    return {"measurements": kept, "validation": lean(validation.to_dict())}


def lean(validation: dict[str, Any]) -> dict[str, Any]:
    """Without what only a reader of one trial wants."""
    for trial in validation["trials"]:
        if trial["forecast"]:
            trial["forecast"] = {
                key: trial["forecast"][key] for key in ("step_time_s", "memory", "provenance", "bound", "strategy")
            }
    return validation


def agreement(results: dict[str, Any]) -> list[tuple[str, float, float]]:
    """(figure, first, second) of what both measurements have: peaks in operations a second, memory in bytes a second."""
    first, second = results["measurements"]
    rows = []
    for name, key, unit in (("peaks", "dtype", "product"), ("memory", "name", "bandwidth")):
        other = {row[key]: row["measured"] for row in second[name]}
        rows += [(f"{row[key]} {unit}", row["measured"], other[row[key]]) for row in first[name] if row[key] in other]
    return rows


def page(results: dict[str, Any]) -> str:
    """The page, in Markdown."""
    validation, second = results["validation"], results["measurements"][1]
    trials, summary = validation["trials"], validation["summary"]
    about = f"{second['machine']}, PyTorch {second['torch_version']}, {second['taken'][:10]}"
    lines = [
        f"<!-- Generated. {COMMAND} writes it; changes by hand are lost. -->",
        "# Forecasts on a machine that was measured",
        "",
        f"Made by `{COMMAND}` on {about}. The networks that `gpuwise measure` observes are none of the suite's "
        "([measure.md](measure.md) says what is measured and how).",
        "",
        f"**Step time: {100 * summary['median_error']:.1f} % median error, {100 * summary['worst_error']:.1f} % at worst; "
        f"{summary['inside']} of {summary['measured']} inside the 90 % interval. Peak memory: "
        f"{100 * summary['worst_memory_error']:.2f} % at worst.**",
        "",
        "| job | samples | measured (10 to 90 %) | forecast (90 % interval) | error | peak memory, error |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        *[_row(trial) for trial in trials if trial["measured"]],
        "",
        *[f"- {trial['job']}: {trial['outcome']}: {trial['said']}" for trial in trials if not trial["measured"]],
        "## Two measurements",
        "",
        f"Largest difference of arithmetic and bandwidth: {100 * max(_apart(a, b) for _, a, b in agreement(results)):.1f} %, "
        f"median {100 * median(_apart(a, b) for _, a, b in agreement(results)):.1f} %.",
        "",
        "| figure | first | second | apart |",
        "| --- | ---: | ---: | ---: |",
        *[
            f"| {name} | {a / 1e9:.1f} G/s | {b / 1e9:.1f} G/s | {100 * _apart(a, b):.1f} % |"
            for name, a, b in agreement(results)
        ],
        "",
        "![Roofline of the machine](figures/measured-here.svg)",
        "",
        *_disturbed(results),
    ]
    text = "\n".join(lines).rstrip() + "\n"
    return f"{text}\n{section(json.loads(SMALL_PASSES.read_text()))}" if SMALL_PASSES.exists() else text


def write_page() -> None:
    """Writes the page again from the results, with a section of benchmarks.small_passes."""
    PAGE.write_text(page(json.loads(RESULTS.read_text())))


def _row(trial: dict[str, Any]) -> str:
    step, expected = trial["measured"]["step"], trial["forecast"]["step_time_s"]
    samples = trial["forecast"]["strategy"]["micro_batch"]
    memory = f"{trial['measured']['memory_bytes'] / 2**20:,.0f} MiB, {100 * trial['memory_error']:+.3f} %"
    measured = f"{_time(step['median_s'])} ({_time(step['low_s'])} to {_time(step['high_s'])})"
    forecast = f"{_time(expected['value'])} ({_time(expected['low'])} to {_time(expected['high'])})"
    return f"| {trial['job']} | {samples:,} | {measured} | {forecast} | {100 * trial['step_error']:+.1f} % | {memory} |"


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _apart(first: float, second: float) -> float:
    return abs(first - second) / ((first + second) / 2)


def _disturbed(results: dict[str, Any]) -> list[str]:
    """What disturbed the machine meanwhile, as it was noticed."""
    messages = {note: None for one in results["measurements"] for note in one["notes"]}
    messages |= {f"{trial['job']}: {note}": None for trial in results["validation"]["trials"] for note in trial["disturbed"]}
    return ["## What was noticed meanwhile", "", *[f"- {note}" for note in messages]] if messages else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="replace results, page and figure")
    parser.add_argument("--quick", action="store_true", help="quick measurements")
    parser.add_argument("--page", action="store_true", help="only write the page again")
    options = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if options.page else measured(options.quick)
    print(page(results))
    if options.write:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    if options.write or options.page:
        write_page()


if __name__ == "__main__":
    main()
