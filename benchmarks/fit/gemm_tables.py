"""Tables of measured matrix products as shapes of a trace, with the chip and time of each row.

Products of inference engines (ai-dynamo/aiconfigurator, Apache-2.0): vLLM's linear layers in a CUDA graph, six weights in
turn on one input, without the host. Their fp8 layers cast the input first, which a trace has as an operation of its
own: the cast is fitted beside them. fp8_block rows ran without a graph and hold the host's 80 to 250 µs: not fitted.

fp32 products on CUDA cores (sitar-lab/NeuSight, MIT): M × N times N × K, with the host's time, as in operator_tables.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.fit.operator_tables import CHIPS, LAUNCH_SHARE, Rows
from benchmarks.fit.split import kept_out_shapes
from gpuwise.cost.kernels.shapes import Hardware, Shapes
from gpuwise.cost.kernels.times import hardware_of
from gpuwise.cost.parameters import parameters
from gpuwise.cost.rates import units_for
from gpuwise.hardware.catalog import Catalog

ENGINE_CHIPS = {
    "a100_sxm": "a100-80gb-sxm",
    "h100_sxm": "h100-80gb-sxm",
    "b200_sxm": "b200-180gb-sxm",
    "gb200": "gb200-186gb",
    "rtx_pro_6000_server": "rtx-pro-6000-blackwell-server",
}
# What the tables call their types, and bytes of an operand; results have 2.
ENGINE_TYPES = {"bf16": ("bfloat16", 2.0), "fp8": ("fp8", 1.0)}
DTYPES = {"bf16": "bfloat16", "fp8": "float8_e4m3fn", "fp32": "float32"}
SMALL_FLOPS = 1e7


def engine_products(folder: Path, figure: str) -> Rows:
    """Products of inference engines in bf16 or fp8."""
    name, element = ENGINE_TYPES[figure]
    table = pd.read_parquet(folder / "kernels" / "gemm.parquet")
    table = table[table.device.isin(ENGINE_CHIPS) & (table.gemm_dtype == name)]
    none = np.zeros(len(table))
    return Rows(
        table.device.map(ENGINE_CHIPS).to_numpy(str),
        np.full(len(table), "linear"),
        _products(none + 1, *(table[c].to_numpy(float) for c in ("m", "n", "k")), element=element, result=2.0),
        table.latency.to_numpy() / 1e3,
        none,
        none,
        kept_out_shapes(table.m, table.n, table.k),
    )


def fp32_products(folder: Path, op: str) -> Rows:
    """fp32 products. op: linear, or bmm for batched ones."""
    table = pd.read_parquet(folder / "kernels" / "fp32_nvidia_train_matmul.parquet").query("op == @op")
    table = table.assign(chip=table.gpu.map(CHIPS), s=table.latency_ms / 1e3)
    shapes = _products(*(table[c].to_numpy(float) for c in ("B", "M", "K", "N")), element=4.0, result=4.0)
    least = table[shapes.flops < SMALL_FLOPS].groupby("chip").s.median()
    least_s = table.chip.map(least).to_numpy()
    return Rows(
        table.chip.to_numpy(str),
        table.op.to_numpy(str),
        shapes,
        table.s.to_numpy(),
        least_s,
        least_s * LAUNCH_SHARE,
        kept_out_shapes(table.B, table.M, table.N, table.K),
    )


def _products(batch: np.ndarray, m: np.ndarray, n: np.ndarray, k: np.ndarray, *, element: float, result: float) -> Shapes:
    one = np.ones(len(m))
    read, written = element * batch * (m * k + n * k), result * batch * m * n
    return Shapes(2 * batch * m * n * k, read, written, one, batch, m, n, k, 0 * one, element * one)


def hardware_of_rows(chips: np.ndarray, catalog: Catalog, figure: str) -> Hardware:
    """Figures of each row's chip."""
    names, index = np.unique(chips, return_inverse=True)
    results = []
    for name in names:
        chip = catalog.chip(str(name))
        units = units_for(chip, dtype=DTYPES[figure], kind="gemm", precision="fp32", parameters=parameters())
        results.append(hardware_of(chip, parameters(), units=units, busy=0.0))
    return Hardware(**{field: np.array([float(getattr(h, field)) for h in results])[index] for field in vars(results[0])})
