"""Fits the law of power (gpuwise.cost.power) to mean powers of engines that serve dense language models.

    python -m benchmarks.fit_power --reference FOLDER

Bytes and operations of a row follow from weights, keys and values and the measured rate of tokens: ml-energy/leaderboard
(0cd52da, 2026-02: H100, B200) and Mutinifni/splitwise-sim (8f99e7d, 2024-04: A100). Mixtures of experts and hybrids are out,
because the experts a batch reads are unknown. Prints the figures for `[power]` of cost/data/efficiency.toml, and the errors on
each device and on each family of models by fits without it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from gpuwise.hardware.catalog import Catalog

CHIPS = {"H100": "h100-80gb-sxm", "B200": "b200-180gb-sxm", "A100 SXM 80GB": "a100-80gb-sxm"}
# Layers of the models, from their published configurations; all have 8 key heads of 128.
LAYERS = {
    "Qwen/Qwen3-14B": 40,
    "Qwen/Qwen3-32B": 64,
    "Qwen/Qwen3-VL-8B-Instruct": 36,
    "Qwen/Qwen3-VL-32B-Instruct": 64,
    "meta-llama/Llama-3.1-8B-Instruct": 32,
    "meta-llama/Llama-3.1-70B-Instruct": 80,
    "meta-llama/Llama-3.3-70B-Instruct": 80,
    "meta-llama/Llama-3.1-405B-Instruct": 126,
    "meta-llama/Llama-3.1-405B-Instruct-FP8": 126,
}
TOKEN_BYTES_PER_LAYER = 2 * 2 * 8 * 128  # of keys and values in bf16
QUESTION_TOKENS = 300  # read before the answer: assumed, tables have answers alone
START = (0.2, 0.5, 1.4)  # waiting, bandwidth, arithmetic_root


def rows(reference: Path) -> pd.DataFrame:
    """Columns: device, family, arithmetic and bandwidth (shares of the sheet), power (share of the TDP)."""
    serving, catalog = reference / "serving", Catalog()
    energy = pd.read_csv(serving / "energy.csv")
    energy = energy[energy.model.isin(LAYERS) & (energy.batch_size > 0)]
    element = np.where(energy.precision == "fp8", 1, 2)
    weights, step_s = energy.params_b * 1e9, energy.batch_size / energy.output_tokens_per_s
    held = energy.output_tokens_mean / 2 + QUESTION_TOKENS
    keys = energy.model.map(LAYERS) * TOKEN_BYTES_PER_LAYER * held * energy.batch_size
    engines = pd.DataFrame(
        {
            "device": energy.device,
            "family": energy.family,
            "flops_per_s": 2 * weights * energy.batch_size / step_s / energy.tp / (2 / element),  # fp8 has twice the peak
            "bytes_per_s": (weights * element + keys) / step_s / energy.tp,
            "power_w": energy.power_w_all_devices / energy.devices,
        }
    )
    phases = pd.read_csv(serving / "phases.csv")
    phases = phases[phases.average_power_of_tdp.notna() & (phases.input_tokens < 8192)]  # of longer ones the devices idled
    seconds = (phases.prompt_ms + phases.token_ms * phases.output_tokens) / 1e3
    keys = 80 * TOKEN_BYTES_PER_LAYER * (phases.input_tokens + phases.output_tokens / 2) * phases.batch_size
    tokens = phases.batch_size * (phases.input_tokens + phases.output_tokens)
    split = pd.DataFrame(
        {
            "device": phases.device,
            "family": phases.family,
            "flops_per_s": 2 * 70e9 * tokens / seconds / phases.tp,
            "bytes_per_s": (140e9 * (1 + phases.output_tokens) + keys * phases.output_tokens) / seconds / phases.tp,
            "power_w": phases.average_power_of_tdp * (catalog.chip(CHIPS["A100 SXM 80GB"]).tdp_w or 0),
        }
    )
    result = pd.concat([engines, split], ignore_index=True)
    chip = result.device.map({name: catalog.chip(id_) for name, id_ in CHIPS.items()})
    return result.assign(
        arithmetic=result.flops_per_s / chip.map(lambda one: one.peak_flops_per_s["bf16"]),
        bandwidth=result.bytes_per_s / chip.map(lambda one: one.memory_bandwidth_bytes_per_s),
        power=result.power_w / chip.map(lambda one: one.tdp_w),
    )


def forecast(figures: np.ndarray, table: pd.DataFrame) -> np.ndarray:
    """As gpuwise.cost.power.share_of_tdp, of every row."""
    waiting, bandwidth, root = figures
    power: np.ndarray = np.minimum(1.0, waiting + bandwidth * table.bandwidth + root * np.sqrt(table.arithmetic)).to_numpy()
    return power


def fitted(table: pd.DataFrame) -> np.ndarray:
    """Every family on every device counts the same."""
    weight = table.groupby(["device", "family"]).power.transform("size").to_numpy() ** -0.5

    def residuals(figures: np.ndarray) -> np.ndarray:
        return weight * np.log(forecast(figures, table) / table.power.to_numpy())

    figures: np.ndarray = least_squares(residuals, START, loss="soft_l1", f_scale=0.1, bounds=(0, 3)).x
    return figures


def left_out(table: pd.DataFrame, column: str) -> pd.Series:
    """Measured over forecast of every row, by a fit without the rows of its device or family."""
    ratio = pd.Series(0.0, index=table.index)
    for name in table[column].unique():
        own = table[column] == name
        ratio[own] = table.power[own] / forecast(fitted(table[~own]), table[own])
    return ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True, help="folder of the reference measurements")
    table = rows(parser.parse_args().reference)
    names = ("waiting", "bandwidth", "arithmetic_root")
    print(f"{len(table)} rows:", ", ".join(f"{n} = {x:.3f}" for n, x in zip(names, fitted(table), strict=True)))
    for column in ("family", "device"):
        ratio = left_out(table, column)
        error, (low, high) = (1 / ratio - 1).abs(), ratio.quantile([0.05, 0.95])
        most = error.quantile(0.9)
        print(f"{column} left out: median {error.median():.1%}, 90th percentile {most:.1%}, {low:.2f} to {high:.2f}")
        for name, part in error.groupby(table[column]):
            print(f"  {name}: {len(part)} rows, median {part.median():.1%}")


if __name__ == "__main__":
    main()
