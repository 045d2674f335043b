"""Published speeds of llama.cpp with one request at a time on cards, Macs and processors, and what gpuwise forecasts of them.

    python -m benchmarks.serving.local --reference FOLDER [--fit] [--write]

Rows: localscore.ai (llamafile, nine mixes of lengths) and llmfit (short prompts). Crowds measured them: of repeated runs of a
device and model the upper quartile stands, since what slows a run down is the machine around the device. Runs whose weights do
not fit the device are left out. --fit prints the figures of llama.cpp in src/gpuwise/serving/data/engines.toml anew, from
two families on a few cards and Macs (FITTED) and half of the processors; --write puts the table into docs/serving-accuracy.md.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from benchmarks.serving.models import CONFIGS, generation_of
from benchmarks.serving.page import publish, table_of
from gpuwise.api.devices import device_of
from gpuwise.cost.rates import family as family_of
from gpuwise.hardware import load_catalog
from gpuwise.serving.engine_costs import EngineCosts
from gpuwise.serving.engines import engine_of
from gpuwise.serving.formats import format_of, stored
from gpuwise.serving.step_time import EngineStep

ENGINE = "llama.cpp"
# Tokens read and written by localscore's nine tests, of whose speeds it publishes the mean
# (https://www.localscore.ai/about, cmd/localscore of Mozilla-Ocho/llamafile).
MIXES = (
    (1024, 16),
    (4096, 256),
    (2048, 256),
    (2048, 768),
    (1024, 1024),
    (1280, 3072),
    (384, 1152),
    (64, 1024),
    (16, 1536),
)
SHORT = ((64, 256),)  # llmfit: short prompts, 253 written tokens on average
QUANTIZATIONS = {
    "Q4_K - Medium": "gguf-q4_k_m",
    "Q4_K_M": "gguf-q4_k_m",
    "q4_K_M": "gguf-q4_k_m",
    "Q5_K - Medium": "gguf-q5_k_m",
    "Q6_K": "gguf-q6_k",
    "Q8_0": "gguf-q8_0",
    "q8_0": "gguf-q8_0",
    "Q4_0": "gguf-q4_0",
    "Q3_K - Large": "gguf-q3_k_l",
    "F16": "gguf-f16",
}
FITTED = (
    ("llama-3.2-1b", "llama-3-8b"),
    (
        "NVIDIA RTX A4000",
        "NVIDIA RTX A5000",
        "NVIDIA RTX A6000",
        "NVIDIA GeForce RTX 3060",
        "NVIDIA GeForce RTX 4060 Ti",
        "Apple M3 Max 12P+4E+40GPU",
        "Apple M4 4P+6E+10GPU",
    ),
)
CACHE_BYTES = 2.0  # of an element: llama.cpp keeps keys and values in fp16
LONGEST_CHUNK = 512
BEGIN, END = "<!-- local: python -m benchmarks.serving.local -->", "<!-- end of local -->"


@dataclass(frozen=True)
class LocalRun:
    """Repeated runs of a model on a device.

    Attributes:
        kind: "NVIDIA", "AMD", "Intel", "Mac" or "CPU".
        chip: id of the catalog.
        mixes: tokens read and written by each test.
        written_per_s, read_per_s: upper quartiles of the runs, tokens a second; NaN where nobody published any.
    """

    source: str
    kind: str
    device: str
    chip: str
    family: str
    format: str
    mixes: tuple[tuple[int, int], ...]
    runs: int
    written_per_s: float
    read_per_s: float

    @property
    def is_fitted(self) -> bool:
        return self.family in FITTED[0] and (self.device in FITTED[1] or (self.kind == "CPU" and self.device in fitted_cpus()))


@lru_cache
def devices() -> dict[str, str]:
    """Names of the tables -> ids of the catalog."""
    return tomllib.loads(Path(__file__).with_name("local_devices.toml").read_text(encoding="utf-8"))["devices"]


@lru_cache
def fitted_cpus() -> frozenset[str]:
    """Every other processor by name: hosts differ more than a few of them show."""
    cpus = (name for name, chip in devices().items() if family_of(load_catalog().chip(chip)) == "cpu")
    return frozenset(sorted(cpus)[::2])


def runs(reference: Path) -> Iterator[LocalRun]:
    table = pd.read_csv(reference / "serving" / "local_llm.csv", low_memory=False)
    usable = table.family.isin(CONFIGS) & table.quantization.isin(QUANTIZATIONS) & table.device.isin(devices())
    table = table[usable & table.source.isin(("localscore", "llmfit")) & (table.generated_tokens_per_s > 0)]
    for (source, kind, device, family, quantization), part in table.groupby(
        ["source", "kind", "device", "family", "quantization"]
    ):
        upper = part[["generated_tokens_per_s", "prompt_tokens_per_s"]].quantile(0.75)
        yield LocalRun(
            source=source,
            kind=_kind(kind, device),
            device=device,
            chip=devices()[device],
            family=family,
            format=QUANTIZATIONS[quantization],
            mixes=MIXES if source == "localscore" else SHORT,
            runs=len(part),
            written_per_s=float(upper.generated_tokens_per_s),
            read_per_s=float(upper.prompt_tokens_per_s),
        )


def _kind(kind: str, device: str) -> str:
    if kind == "cpu":
        return "CPU"
    maker = next((maker for maker in ("Apple", "AMD", "Radeon", "Intel") if maker in device), "NVIDIA")
    return {"Apple": "Mac", "Radeon": "AMD"}.get(maker, maker)


@cache
def _step(chip: str, family: str, format: str) -> EngineStep | None:
    """Iterations of the run without what llama.cpp adds; None where its weights do not fit."""
    device = device_of(chip, load_catalog())
    cluster = device.cluster
    precision = "fp32" if family_of(cluster.chip) == "cpu" else "fp16"
    generation = generation_of(family, precision=precision, target=device.target).cached_in(CACHE_BYTES)
    weights = stored(generation, format_of(format))
    if cluster.capacity_bytes is not None and weights.bytes > 0.9 * cluster.capacity_bytes:
        return None
    return EngineStep(generation, cluster, weights=weights, most_tokens=LONGEST_CHUNK + 1)


def forecast_of(run: LocalRun, costs: EngineCosts) -> tuple[float, float] | None:
    """Written and read tokens a second; None where the weights do not fit."""
    step = _step(run.chip, run.family, run.format)
    if step is None:
        return None
    step = step.with_costs(costs)
    written = [1 / np.mean([step([], 1, int(past)) for past in np.linspace(n, n + new, 5)]) for n, new in run.mixes]
    read = [n / _reading_s(step, n) for n, _ in run.mixes]
    return float(np.mean(written)), float(np.mean(read))


def _reading_s(step: EngineStep, tokens: int) -> float:
    return sum(step([(min(LONGEST_CHUNK, tokens - past), past)], 0, 0) for past in range(0, tokens, LONGEST_CHUNK))


def fitted_costs(chosen: list[LocalRun]) -> EngineCosts:
    """Seconds between kernels, and how long products of prompts take: each the figure under which the median of forecast over
    measured is 1 on the fitted runs that it is of. The shares of a CPU's bandwidth and peak: those with the smallest mean error
    of its logarithm, each processor counting the same."""
    cards, macs, cpus = ([run for run in chosen if run.kind == kind] for kind in ("NVIDIA", "Mac", "CPU"))
    costs = replace(
        engine_of(ENGINE).costs, kernel_s=_solved(cards + macs, lambda x: EngineCosts(kernel_s=x * 1e-6), "written") / 1e6
    )
    costs = replace(costs, int8_products=_solved(cards, lambda x: replace(costs, int8_products=x), "read"))
    costs = replace(costs, other_products=_solved(macs, lambda x: replace(costs, other_products=x), "read"))
    cpu_share, cpu_products = _shares_of_cpus(cpus, costs)
    return replace(costs, cpu_share=cpu_share, cpu_products=cpu_products)


def _shares_of_cpus(chosen: list[LocalRun], costs: EngineCosts) -> tuple[float, float]:
    def error(logs: np.ndarray) -> float:
        share, products = np.exp(logs)
        each = replace(costs, cpu_share=float(share), cpu_products=float(products))
        forecasts = [(run, forecast_of(run, each)) for run in chosen]
        rows = [(run.device, abs(np.log(written[0] / run.written_per_s))) for run, written in forecasts if written is not None]
        return float(pd.DataFrame(rows, columns=["device", "error"]).groupby("device").error.mean().mean())

    best = minimize(error, np.log([1.0, 0.35]), method="Nelder-Mead", options={"maxfev": 60, "xatol": 0.01, "fatol": 1e-4})
    return float(np.exp(best.x[0])), float(np.exp(best.x[1]))


def _solved(chosen: list[LocalRun], costs_of: Callable[[float], EngineCosts], figure: str) -> float:
    def error(x: float) -> float:
        forecasts = [(run, forecast_of(run, costs_of(x))) for run in chosen]
        ratios = [
            forecast[0] / run.written_per_s if figure == "written" else forecast[1] / run.read_per_s
            for run, forecast in forecasts
            if forecast is not None
        ]
        return abs(float(np.log(np.median(ratios))))

    return float(min(np.geomspace(0.2, 8, 60), key=error))


def rows_of(chosen: list[LocalRun], costs: EngineCosts) -> pd.DataFrame:
    rows, (low, high) = [], engine_of(ENGINE).spread  # of measured over forecast times
    for run in chosen:
        if (forecast := forecast_of(run, costs)) is None:
            continue
        base = {
            "kind": run.kind,
            "table": run.source,
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
        each = fitted_costs([run for run in chosen if run.is_fitted])
        print(f"kernel_us = {each.kernel_s * 1e6:.2f}\nint8_products = {each.int8_products:.2f}")
        print(f"other_products = {each.other_products:.2f}\ncpu_share = {each.cpu_share:.2f}")
        print(f"cpu_products = {each.cpu_products:.3f}", flush=True)
    rows = rows_of(chosen, engine_of(ENGINE).costs)
    text = table_of(rows, ["kind", "table", "split", "figure"])
    publish(text, BEGIN, END, write=options.write)


if __name__ == "__main__":
    main()
