"""Published speeds of llama.cpp with one request at a time on cards, Macs and processors, and what gpuwise forecasts of them.

    python -m benchmarks.serving.local --reference FOLDER [--fit] [--write]

Rows: see benchmarks.serving.local_rows. Runs whose weights do not fit the device are left out. --fit prints the figures of
llama.cpp and llamafile in src/gpuwise/serving/data/engines.toml anew, from two families on a few cards and Macs
(local_rows.FITTED) and half of the processors; --write puts the table into docs/serving-accuracy.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from benchmarks.serving.local_rows import ANY, BF16, LINUX, WINDOWS, LocalRun, runs
from benchmarks.serving.models import generation_of
from benchmarks.serving.page import publish, table_of
from gpuwise.api.devices import device_of
from gpuwise.api.engine_model import engine_target
from gpuwise.cost.rates import family as family_of
from gpuwise.hardware import load_catalog
from gpuwise.serving.engine_costs import EngineCosts, PlatformCosts
from gpuwise.serving.engines import engine_of
from gpuwise.serving.formats import format_of, stored
from gpuwise.serving.step_time import EngineStep

CACHE_BYTES = 2.0  # of an element: llama.cpp keeps keys and values in fp16
LONGEST_CHUNK = 512
BEGIN, END = "<!-- local: python -m benchmarks.serving.local -->", "<!-- end of local -->"


@cache
def _step(chip: str, family: str, format: str) -> EngineStep | None:
    """Iterations of the run without what llama.cpp adds; None where its weights do not fit."""
    device = device_of(chip, load_catalog())
    cluster = device.cluster
    precision = "fp32" if family_of(cluster.chip) == "cpu" else "fp16"
    generation = generation_of(family, precision=precision, target=engine_target(device.chip)).cached_in(CACHE_BYTES)
    weights = stored(generation, format_of(format))
    if cluster.capacity_bytes is not None and weights.bytes > 0.9 * cluster.capacity_bytes:
        return None
    return EngineStep(generation, cluster, weights=weights)


def forecast_of(run: LocalRun, costs: EngineCosts) -> tuple[float, float] | None:
    """Written and read tokens a second; None where the weights do not fit."""
    step = _step(run.chip, run.family, run.format)
    if step is None:
        return None
    step = step.with_costs(costs.beside(run.host))
    written = [1 / np.mean([step([], 1, int(past)) for past in np.linspace(n, n + new, 5)]) for n, new in run.mixes]
    read = [n / _reading_s(step, n) for n, _ in run.mixes]
    return float(np.mean(written)), float(np.mean(read))


def _reading_s(step: EngineStep, tokens: int) -> float:
    return sum(step([(min(LONGEST_CHUNK, tokens - past), past)], 0, 0) for past in range(0, tokens, LONGEST_CHUNK))


def fitted_costs(chosen: list[LocalRun], engine: str) -> EngineCosts:
    """Seconds between kernels, and how fast products of prompts are: each the figure under which the median of forecast over
    measured is 1 on the fitted runs that it is of. The shares of a CPU's bandwidth and peak: those with the smallest mean error
    of its logarithm, each processor counting the same. What no run of the engine shows stays as it is."""
    costs = engine_of(engine).costs

    def of(kind: str, host: str) -> list[LocalRun]:
        own = (run for run in chosen if (run.engine, run.kind, run.host) == (engine, kind, host))
        return [run for run in own if not run.is_of_launches]

    usual, macs = of("NVIDIA", LINUX), of("Mac", ANY)
    if macs:  # which have the seconds of NVIDIA's cards until here
        costs = replace(costs, platforms=tuple(each for each in costs.platforms if each[0] != "Apple"))
    costs = _solved(costs, usual + macs, "written", _SECONDS, lambda s: replace(costs, kernel_s=s))
    if macs:
        costs = costs.with_platform("Apple", PlatformCosts(costs.kernel_s))
    costs = _solved(costs, usual, "read", _PER_CLOCK, lambda x: replace(costs, products_per_clock=x))
    costs = _solved(costs, macs, "read", _TIMES, lambda x: replace(costs, other_products=x))
    waiting = [run for run in chosen if run.is_of_launches and run.engine == engine]
    costs = _solved(costs, waiting, "written", _SECONDS, lambda s: replace(costs, launch_s=s, decoding_launch_s=s))
    for maker, host, name in (("NVIDIA", WINDOWS, f"NVIDIA, {WINDOWS}"), ("AMD", LINUX, "AMD")):
        own = of(maker, host)
        costs = _solved(costs, own, "written", _SECONDS, partial(_with, costs, name, PlatformCosts(), "kernel_s"))
        kernels = dict(costs.platforms).get(name, PlatformCosts())
        costs = _solved(costs, own, "read", _PER_CLOCK, partial(_with, costs, name, kernels, "products_per_clock"))
    for maker, host in product(("NVIDIA", "AMD"), (LINUX, WINDOWS)):  # hosts that compute attention; all else stays as it is
        beside = costs.beside(host).on(maker)
        same = PlatformCosts(beside.kernel_s, beside.products_per_clock)
        name, own = f"{maker}, {host}{BF16}", of(maker, host + BF16)
        costs = _solved(costs, own, "written", 300 * _SECONDS, partial(_with, costs, name, same, "attention_s"))
    if cpus := of("CPU", ANY):
        cpu_share, cpu_products = _shares_of_cpus(cpus, costs)
        costs = replace(costs, cpu_share=cpu_share, cpu_products=cpu_products)
    return costs


def _with(costs: EngineCosts, name: str, own: PlatformCosts, figure: str, value: float) -> EngineCosts:
    """The costs with those of a platform, one of whose figures has this value."""
    return costs.with_platform(name, replace(own, **{figure: value}))


def _shares_of_cpus(chosen: list[LocalRun], costs: EngineCosts) -> tuple[float, float]:
    def error(logs: np.ndarray) -> float:
        share, products = np.exp(logs)
        each = replace(costs, cpu_share=float(share), cpu_products=float(products))
        forecasts = [(run, forecast_of(run, each)) for run in chosen]
        rows = [(run.device, abs(np.log(written[0] / run.written_per_s))) for run, written in forecasts if written is not None]
        return float(pd.DataFrame(rows, columns=["device", "error"]).groupby("device").error.mean().mean())

    best = minimize(error, np.log([1.0, 0.35]), method="Nelder-Mead", options={"maxfev": 60, "xatol": 0.01, "fatol": 1e-4})
    return float(np.exp(best.x[0])), float(np.exp(best.x[1]))


_SECONDS, _PER_CLOCK, _TIMES = np.geomspace(1e-7, 3e-5, 100), np.geomspace(10, 1000, 100), np.geomspace(0.2, 8, 60)


def _solved(
    costs: EngineCosts,
    chosen: list[LocalRun],
    figure: str,
    values: np.ndarray,
    costs_of: Callable[[float], EngineCosts],
) -> EngineCosts:
    """The costs of the value under which the median of forecast over measured is nearest to 1; as they are without runs."""
    chosen = [run for run in chosen if figure == "written" or run.read_per_s > 0]
    chosen = [run for run in chosen if forecast_of(run, costs) is not None]
    if not chosen:
        return costs

    def error(each: EngineCosts) -> float:
        ratios = []
        for run in chosen:
            written, read = forecast_of(run, each) or (np.nan, np.nan)
            ratios.append(written / run.written_per_s if figure == "written" else read / run.read_per_s)
        return abs(float(np.log(np.median(ratios))))

    return min((costs_of(float(x)) for x in values), key=error)


def rows_of(chosen: list[LocalRun]) -> pd.DataFrame:
    """A row for each run and figure that was measured: forecast over measured, and whether that is in the engine's interval."""
    rows = []
    for run in chosen:
        engine = engine_of(run.engine)
        if (forecast := forecast_of(run, engine.costs)) is None:
            continue
        low, high = engine.spread  # of measured over forecast times
        base = {
            "kind": run.kind,
            "engine": run.engine,
            "host": run.host,
            "split": "fitted" if run.is_fitted else "kept out",
            "device": run.device,
            "family": run.family,
        }
        for name, value, measured in zip(
            ("written tokens/s", "read tokens/s"), forecast, (run.written_per_s, run.read_per_s), strict=True
        ):
            if measured > 0:
                rows.append({**base, "figure": name, "ratio": value / measured, "inside": low <= value / measured <= high})
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    chosen = list(runs(options.reference))
    if options.fit:
        for engine in ("llamafile", "llama.cpp"):
            print(f"{engine}: {fitted_costs([run for run in chosen if run.is_fitted], engine)}", flush=True)
    publish(table_of(rows_of(chosen), ["kind", "engine", "host", "split", "figure"]), BEGIN, END, write=options.write)


if __name__ == "__main__":
    main()
