"""The attention tables of ai-dynamo/aiconfigurator as frames, and frames as shapes and hardware."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from gpuwise.cost.kernels.attention_decode import MOST_HEADS_OF_ENGINES
from gpuwise.cost.kernels.shapes import Hardware, Shapes
from gpuwise.cost.kernels.times import hardware_of
from gpuwise.cost.parameters import parameters
from gpuwise.cost.rates import units_for
from gpuwise.hardware.catalog import Catalog

CHIPS = {
    "a100_sxm": "a100-80gb-sxm",
    "h100_sxm": "h100-80gb-sxm",
    "b200_sxm": "b200-180gb-sxm",
    "gb200": "gb200-186gb",
    "rtx_pro_6000_server": "rtx-pro-6000-blackwell-server",
}
COLUMNS = ["chip", "batch_size", "queries", "keys", "num_heads", "num_key_value_heads", "head_dim", "causal", "window_size"]
A100_CACHE_BYTES = 40 * 2**20  # NVIDIA A100 datasheet
DTYPES = {"bf16": "bfloat16", "fp8": "float8_e4m3fn"}


def engine_rows(reference: Path, table: str, cache: str) -> pd.DataFrame:
    """Rows of one table with the columns: chip, batch_size, queries, keys, num_heads, num_key_value_heads, head_dim, causal,
    window_size (0: none), seconds. cache: the type of keys and values, bfloat16 or fp8.

    Chips that the catalog lacks (Arc Pro B60) are left out, and what was measured twice. Of decoding: see _another_kernel.
    """
    t = pd.read_parquet(reference / "kernels" / f"attention_{table}.parquet")
    t = t[t.device.isin(CHIPS)]
    t = t.assign(chip=t.device.map(CHIPS), seconds=t.latency / 1e3, causal=table == "prefill")
    if table == "encoder":
        t = t.assign(num_key_value_heads=t.num_heads, kv_cache_dtype="bfloat16", window_size=0.0)
    t = t[t.kv_cache_dtype == cache].assign(window_size=lambda t: t.window_size.fillna(0.0))
    t = t.assign(queries=1, keys=t.step + 1) if table == "decode" else t.assign(queries=t.isl, keys=t.isl)
    if table == "decode":
        t = t[~_another_kernel(t)]
    return t[[*COLUMNS, "seconds"]].drop_duplicates(COLUMNS).reset_index(drop=True)


def _another_kernel(t: pd.DataFrame) -> pd.Series:
    """Decoding that no figure is fitted to nor scored by. More query heads a key head than the engine packs (attention_decode);
    and the A100's beyond four of its caches, of which four in ten are faster than its memory: they read pages again."""
    seen = t["keys"].where(t.window_size == 0, np.minimum(t.window_size, t["keys"]))
    element = np.where(t.kv_cache_dtype == "fp8", 1, 2)
    kv_bytes = 2 * element * t.batch_size * t.num_key_value_heads * seen * t.head_dim
    again = (t.chip == "a100-80gb-sxm") & (kv_bytes > 4 * A100_CACHE_BYTES)
    return again | (t.num_heads > MOST_HEADS_OF_ENGINES * t.num_key_value_heads)


def shapes(frame: pd.DataFrame, numerics: str) -> Shapes:
    """As a trace has them. A decoding kernel with a window reads no other keys; a forward one keeps all of them."""
    batch, queries, keys, heads, kv_heads, head, window = (
        frame[name].to_numpy(float)
        for name in ("batch_size", "queries", "keys", "num_heads", "num_key_value_heads", "head_dim", "window_size")
    )
    causal = frame.causal.to_numpy(float)
    backward = frame.backward.to_numpy(bool) if "backward" in frame else np.zeros(len(frame), dtype=bool)
    backward = np.nan_to_num(backward.astype(float)).astype(bool)
    seen = np.where(window > 0, np.minimum(window, keys), keys)
    keys = np.where(queries < keys, seen, keys)
    met = np.where(causal > 0, np.where(seen < keys, seen - seen**2 / (2 * keys), keys / 2), seen)
    element = 1.0 if numerics == "fp8" else 2.0
    query, key = element * batch * queries * heads * head, element * batch * keys * kv_heads * head
    products = np.where(backward, 5, 2)
    return Shapes(
        flops=2 * products * batch * heads * queries * met * head,
        bytes_read=np.where(backward, 3, 1) * query + 2 * key,
        bytes_written=query + np.where(backward, 2 * key, 0),
        kernels=np.where(backward, 3.0, 1.0),
        batch=batch * heads,
        m=queries,
        n=keys,
        k=head,
        causal=causal,
        element_bytes=np.full(len(frame), element),
    )


def hardware(frame: pd.DataFrame, catalog: Catalog, numerics: str) -> Hardware:
    """Figures of each row's chip."""
    results = {}
    for name in frame.chip.unique():
        chip = catalog.chip(name)
        units = units_for(chip, dtype=DTYPES[numerics], kind="attention", precision="bf16", parameters=parameters())
        results[name] = hardware_of(chip, parameters(), units=units, busy=0.0)

    def column(figure: str) -> np.ndarray:
        return frame.chip.map({name: float(getattr(one, figure)) for name, one in results.items()}).to_numpy(float)

    figures = ("peak_flops_per_s", "bandwidth_bytes_per_s", "units", "cache_bytes", "clock_hz")
    return Hardware(**{figure: column(figure) for figure in figures})
