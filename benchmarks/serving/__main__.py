"""Serving forecasts against published runs, and a fit of what engines add to an iteration.

    python -m benchmarks.serving --reference FOLDER [--fit] [--write]

--fit prints the figures of src/gpuwise/serving/data/engines.toml anew; --write puts the table into
docs/serving-accuracy.md. Fitted: of each engine the runs of one family on some devices (FITTED); all others are
kept out. The kernels' figures are those of training and of kernel tables; nothing here moves them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from benchmarks.serving.page import error_row, publish, table_of
from benchmarks.serving.runs import Run, forecast_of, generation_runs, request_runs
from gpuwise.serving.engine_costs import EngineCosts
from gpuwise.serving.engines import engine_of, engines

FITTED = {
    "vllm": ("llama-3-8b", ("RTX PRO 6000",)),
    "vllm-2024": ("llama-2-7b", ("A100 SXM 40GB", "H100 SXM")),
    "tensorrt-llm": ("llama-2-7b", ("A100 SXM 40GB", "H100 SXM")),
}
BEGIN, END = "<!-- accuracy: python -m benchmarks.serving -->", "<!-- end of accuracy -->"


def is_fitted(run: Run) -> bool:
    family, devices = FITTED[run.engine]
    return run.family == family and run.device in devices


def fitted_costs(runs: Sequence[Run]) -> EngineCosts:
    """What the engine adds, by the median of |log(forecast / measured)| over the fitted runs."""

    def error(x: np.ndarray) -> float:
        costs = EngineCosts(*(float(v) for v in np.abs(x) / 1e3))
        errors = [
            abs(np.log(forecast_of(served, name) / value))
            for run, served in ((run, run.served(costs)) for run in runs)
            for name, value in run.measured.items()
        ]
        return float(np.mean(errors))

    best = minimize(error, np.array([0.8, 0.02]), method="Nelder-Mead", options={"maxfev": 60, "xatol": 1e-3})
    return EngineCosts(*(float(v) for v in np.abs(best.x) / 1e3))


def rows_of(runs: Sequence[Run], costs: dict[str, EngineCosts]) -> pd.DataFrame:
    rows = []
    for run in runs:
        served, spread = run.served(costs[run.engine]), engine_of(run.engine).spread
        columns = {"table": run.table, "engine": run.engine, "device": run.device, "family": run.family}
        for name, value in run.measured.items():
            rows.append(error_row(name, forecast_of(served, name) / value, spread, fitted=is_fitted(run), **columns))
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    runs = [*generation_runs(options.reference), *request_runs(options.reference)]
    for engine in FITTED if options.fit else ():
        each = fitted_costs([run for run in runs if run.engine == engine and is_fitted(run)])
        print(f"{engine}: {each.iteration_s * 1e6:.0f} µs an iteration, {each.sequence_s * 1e6:.1f} µs a sequence", flush=True)
    shipped = {name: engine.costs for name, engine in engines().items()}
    rows = rows_of(runs, shipped)
    batches = table_of(rows[rows.table == "generation"], ["engine", "device", "family", "split"])
    loads = table_of(rows[rows.table == "requests"], ["engine", "device", "family", "split", "figure"])
    text = f"{batches}\n\n{loads}"
    publish(text, BEGIN, END, write=options.write)


if __name__ == "__main__":
    main()
