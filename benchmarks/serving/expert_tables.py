"""Forecasts of vLLM's products of experts beside published tables of them, and what a call takes.

    python -m benchmarks.serving.expert_tables --reference FOLDER

Prints, by numbers and device, the median of forecast over measured by tokens, and the median of what a call of one of the two
grouped products takes beside the products, on up to FEW tokens: gpuwise.serving.expert_kernels has its figures from these. The
tables (ai-dynamo/aiconfigurator, Apache-2.0) time both products of a layer, with what is around them. Nothing is kept out.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from gpuwise.cost.calibration import calibration
from gpuwise.cost.kernels.shapes import Shapes
from gpuwise.cost.kernels.times import class_times
from gpuwise.cost.parameters import parameters
from gpuwise.hardware import load_catalog
from gpuwise.hardware.types import Chip
from gpuwise.serving.expert_kernels import GROUPED_FEW, grouped_call_s, grouped_share
from gpuwise.serving.formats import StoredWeights
from gpuwise.serving.kernels import MATRIX_VECTOR_TOKENS
from gpuwise.serving.sharing import distinct_experts

CHIPS = {"a100_sxm": "a100-80gb-sxm", "h100_sxm": "h100-80gb-sxm", "b200_sxm": "b200-180gb-sxm", "gb200": "gb200-186gb"}
# Bytes of an element with its scales, and the type that products compute in, "" for bf16.
NUMBERS = {
    "bfloat16": (2.0, ""),
    "fp8": (1.0, "float8_e4m3fn"),
    "fp8_block": (1.0, "float8_e4m3fn"),
    "nvfp4": (0.5625, "float4_e2m1fn_x2"),
    "int4_wo": (0.53, ""),
    "w4a16_mxfp4": (0.53, ""),
}
FEW, TOKENS = 64, [0, 8, 64, 256, 1024, 4096]


def products_s(chip: Chip, row: pd.Series, weight_bytes: float, arithmetic: str) -> float:
    """Seconds of both products of one layer on one device, without what a call adds."""
    tokens, experts = int(row.num_tokens), row.num_experts / row.moe_ep_size
    rows = max(1.0, tokens * row.topk / row.moe_ep_size)
    read = max(1, round(distinct_experts(experts, row.topk / row.moe_ep_size, tokens)))
    inner, width = row.inter_size / row.moe_tp_size, float(row.hidden_size)
    figures = calibration(chip).of_few_rows() if tokens <= MATRIX_VECTOR_TOKENS else calibration(chip)
    seconds = 0.0
    for n, k in ((2 * inner, width), (width, inner)):
        none, one = np.zeros(1), np.ones(1)
        moved, written = 2 * (read * n * k + rows * k) * one, 2 * rows * n * one
        counts = [value * one for value in (read, -(-rows // read), n, k)]
        shapes = Shapes(2 * rows * n * k * one, moved, written, one, *counts, none, 2 * one)
        shapes = shapes.with_weights(weight_bytes) if weight_bytes < 2 else shapes
        shapes = shapes.computed_in(arithmetic) if arithmetic else shapes
        times = class_times(
            "gemm_batched",
            arithmetic or "bfloat16",
            shapes,
            chip,
            precision="bf16",
            parameters=parameters(),
            calibration=figures,
            busy=None,
        )
        seconds += float(times.device_s[0])
    return seconds


def rows_of(reference: Path) -> pd.DataFrame:
    """Rows of the tables with `ratio`, forecast over measured, and `call_us`, of one of the two calls."""
    table = pd.read_parquet(reference / "kernels" / "moe.parquet")
    table = table[table.device.isin(CHIPS) & table.moe_dtype.isin(NUMBERS) & (table.num_tokens <= TOKENS[-1])]
    catalog, results = load_catalog(), []
    for _, row in table.iterrows():
        chip, (weight_bytes, arithmetic) = catalog.chip(CHIPS[row.device]), NUMBERS[row.moe_dtype]
        products, measured_s = products_s(chip, row, weight_bytes, arithmetic), row.latency / 1e3
        call_s = grouped_call_s(chip, StoredWeights(0), weight_bytes if weight_bytes < 2 else 0.0, arithmetic)
        ratio = (2 * call_s + grouped_share(int(row.num_tokens)) * products) / measured_s
        results.append((row.moe_dtype, row.device, row.num_tokens, ratio, (measured_s - GROUPED_FEW * products) / 2 * 1e6))
    return pd.DataFrame(results, columns=["numbers", "device", "tokens", "ratio", "call_us"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True)
    rows = rows_of(parser.parse_args().reference)
    by = ["numbers", "device"]
    ratios = rows.assign(tokens=pd.cut(rows.tokens, TOKENS)).pivot_table("ratio", by, "tokens", "median", observed=True)
    print(f"forecast / measured, {len(rows):,} rows\n{ratios.round(2).to_string()}\n")
    few = rows[rows.tokens <= FEW]
    print(f"µs of a call, up to {FEW} tokens\n{few.groupby(by).call_us.median().round(1).to_string()}")


if __name__ == "__main__":
    main()
