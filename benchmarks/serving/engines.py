"""Forecasts of published runs at a fixed concurrency, and of single batches by their phases.

    python -m benchmarks.serving.engines --reference FOLDER [--rows N] [--fit] [--write]

--rows scores a sample. --fit prints what engines add to passes that read prompts and to requests (launch_us, request_us; of
SGLang linear_layer_us, request_us, linear_attention_us), fitted on the runs of one family on one device each (FITTED); all
others are kept out. --write puts the tables into docs/serving-accuracy.md. All rows take half an hour of one core, a third of
it the recording of the models.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from benchmarks.serving.online import FIGURES, OnlineRun, forecast_of, online_runs
from benchmarks.serving.page import error_row, publish, table_of
from benchmarks.serving.phases import phase_rows
from gpuwise.serving.engine_costs import EngineCosts
from gpuwise.serving.engines import engine_of

FITTED = {
    "vllm": ("llama-3-70b", "B200 SXM"),
    "tensorrt-llm": ("qwen3-32b", "H100 SXM"),
    "sglang": ("qwen3.5-397b-a17b", "B200 SXM"),
}
BEGIN, END = "<!-- engines: python -m benchmarks.serving.engines -->", "<!-- end of engines -->"
MOST_FITTED = 24  # runs
SCALES = {"launch_s": 1e-5, "linear_layer_s": 1e-3, "request_s": 1e-2, "linear_attention_s": 1e-5}  # of what is fitted
START = {"launch_s": 6.0, "linear_layer_s": 4.0, "request_s": 2.0, "linear_attention_s": 4.0}


def is_fitted(run: OnlineRun) -> bool:
    return (run.family, run.device) == FITTED[run.engine]


def sample(runs: Sequence[OnlineRun], count: int) -> list[OnlineRun]:
    """So many of the runs, or all."""
    chosen = np.random.default_rng(0).permutation(len(runs))[:count]
    return [runs[i] for i in sorted(chosen)]


def fitted_costs(engine: str, runs: Sequence[OnlineRun]) -> EngineCosts:
    """The engine's costs with those that have the least mean |log(forecast / measured)| of TTFT and TPOT over the runs."""
    shipped = engine_of(engine).costs
    names = ("linear_layer_s", "request_s", "linear_attention_s") if engine == "sglang" else ("launch_s", "request_s")

    def costs(x: np.ndarray) -> EngineCosts:
        return replace(shipped, **{name: abs(float(value)) * SCALES[name] for name, value in zip(names, x, strict=True)})

    def error(x: np.ndarray) -> float:
        forecasts = [forecast_of(run, costs(x)) for run in runs]
        ratios = [
            [forecast[name] / getattr(run, name) for name in ("ttft_s", "tpot_s")]
            for run, forecast in zip(runs, forecasts, strict=True)
        ]
        return float(np.nanmean(np.abs(np.log(ratios))))

    start = np.array([START[name] for name in names])
    return costs(minimize(error, start, method="Nelder-Mead", options={"maxfev": 40, "xatol": 0.05}).x)


def rows_of(runs: Sequence[OnlineRun]) -> pd.DataFrame:
    rows = []
    for run in runs:
        forecast, engine = forecast_of(run), engine_of(run.engine)
        columns = {"engine": run.engine, "device": run.device, "family": run.family}
        for name in FIGURES:
            spread = engine.first_token_spread if name == "ttft_s" else engine.spread
            rows.append(error_row(name, forecast[name] / getattr(run, name), spread, fitted=is_fitted(run), **columns))
    return pd.DataFrame(rows)


def tables(online: pd.DataFrame, phases: pd.DataFrame) -> str:
    answered = online.dropna(subset="ratio")
    missing = len(online) - len(answered)
    lines = [
        f"{len(online) // len(FIGURES):,} runs, {missing // len(FIGURES):,} of them without an answer.",
        table_of(answered, ["split", "figure"]),
        table_of(answered, ["engine", "device", "family", "split", "figure"]),
        "One batch, by its phases:",
        table_of(phases, ["device", "split", "figure"]),
    ]
    return "\n\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=1 << 30)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    runs = list(online_runs(options.reference))
    for engine in FITTED if options.fit else ():
        each = fitted_costs(engine, sample([run for run in runs if run.engine == engine and is_fitted(run)], MOST_FITTED))
        print(
            f"{engine}: {each.launch_s * 1e6:.0f} µs a launch, {each.linear_layer_s * 1e6:,.0f} µs a linear layer, "
            f"{each.request_s * 1e6:,.0f} µs a request, {each.linear_attention_s * 1e6:.1f} µs of linear attention",
            flush=True,
        )
    text = tables(rows_of(sample(runs, options.rows)), phase_rows(options.reference))
    publish(text, BEGIN, END, write=options.write)


if __name__ == "__main__":
    main()
