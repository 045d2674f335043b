"""Rows of the public reference measurements as arrays, each with the Chip it ran on, and the rule of what is kept out.

The reference folder is not part of the project; its README names the origin and licence of each table. A row is kept
out of every fit when its device is in KEPT_OUT_DEVICES, or its model's name falls in a third chosen by checksum.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np
import pandas as pd

from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.types import Chip

# One whole device of each kind of data: Blackwell data centre (bf16), Pascal (fp32), and cards known end to end only.
KEPT_OUT_DEVICES = frozenset(
    {"b200-180gb-sxm", "gb200-186gb", "p100-pcie-16gb", "v100-sxm2-16gb", "rtx-a6000", "h100-80gb-pcie", "mi210", "l4"}
)

DEVICES = {
    "a100_sxm": "a100-80gb-sxm",
    "h100_sxm": "h100-80gb-sxm",
    "b200_sxm": "b200-180gb-sxm",
    "gb200": "gb200-186gb",
    "rtx_pro_6000_server": "rtx-pro-6000-blackwell-server",
    "NVIDIA A100-PCIE-40GB": "a100-40gb-pcie",
    "NVIDIA A100 80GB PCIe": "a100-80gb-pcie",
    "Tesla T4": "t4",
    "Tesla P4": "p4",
    "Tesla V100-PCIE-32GB": "v100-pcie-32gb",
    "Tesla P100-PCIE-16GB": "p100-pcie-16gb",
    "AMD Instinct MI100": "mi100",
    "AMD Instinct MI210": "mi210",
}


@dataclass(frozen=True)
class Rows:
    """Kernel measurements of one table: shapes as a Trace has them, one array entry a row."""

    kind: str
    chips: list[Chip]
    device: np.ndarray  # index into chips
    flops: np.ndarray
    moved_bytes: np.ndarray
    batch: np.ndarray
    m: np.ndarray
    n: np.ndarray
    k: np.ndarray
    seconds: np.ndarray
    kept_out: np.ndarray

    def of_chip(self, figure) -> np.ndarray:  # type: ignore[no-untyped-def]
        """A figure of each row's chip; `figure` is a function of a Chip."""
        return np.array([float(figure(chip)) for chip in self.chips])[self.device]


def kept_out_model(name: str) -> bool:
    return crc32(name.encode()) % 3 == 0


def _rows(table: pd.DataFrame, kind: str, catalog: Catalog, *, device: str, limit: int) -> Rows:
    """`table` holds flops, moved, batch, m, n, k, seconds; at most `limit` rows a device, drawn with a fixed seed."""
    table = table[table[device].isin(DEVICES)]
    table = table.groupby(device, group_keys=False).sample(frac=1, random_state=0).groupby(device).head(limit)
    names = sorted(set(table[device].map(DEVICES)))
    index = table[device].map(DEVICES).map(names.index).to_numpy()
    columns = {name: table[name].to_numpy(float) for name in ("flops", "batch", "m", "n", "k", "seconds")}
    kept = np.array([name in KEPT_OUT_DEVICES for name in names])[index]
    return Rows(
        kind=kind,
        chips=[catalog.chip(name) for name in names],
        device=index,
        moved_bytes=table["moved"].to_numpy(float),
        kept_out=kept,
        **columns,
    )


def tensor_gemm(folder: Path, catalog: Catalog, limit: int = 3000) -> Rows:
    """bf16 matrix products under CUDA graphs (aiconfigurator)."""
    t = pd.read_parquet(folder / "kernels" / "gemm.parquet").query("gemm_dtype == 'bfloat16' and m >= 16")
    t = t.assign(batch=1, flops=2.0 * t.m * t.n * t.k, moved=2.0 * (t.m * t.n + t.m * t.k + t.n * t.k), seconds=t.latency / 1e3)
    return _rows(t, "gemm", catalog, device="device", limit=limit)


def tensor_attention(folder: Path, catalog: Catalog, limit: int = 2000) -> Rows:
    """bf16 attention over whole sequences, forward: causal prefill and full encoder (aiconfigurator)."""
    prefill = pd.read_parquet(folder / "kernels" / "attention_prefill.parquet")
    prefill = prefill[(prefill.kv_cache_dtype == "bfloat16") & ~(prefill.window_size > 0)].assign(share=0.5)
    encoder = pd.read_parquet(folder / "kernels" / "attention_encoder.parquet").assign(share=1.0)
    encoder["num_key_value_heads"] = encoder.num_heads
    t = pd.concat([prefill, encoder], ignore_index=True).query(
        "isl >= 256 and isl <= 16384 and head_dim >= 16 and num_heads >= 4"
    )
    rows = t.batch_size.astype(float) * t.isl * t.head_dim
    t = t.assign(
        batch=t.batch_size * t.num_heads,
        m=t.isl,
        n=t.isl,
        k=t.head_dim,
        seconds=t.latency / 1e3,
        flops=4 * t.share * rows * t.num_heads * t.isl,
        moved=4 * rows * (t.num_heads + t.num_key_value_heads),
    )
    return _rows(t, "attention", catalog, device="device", limit=limit)


def vector_gemm(folder: Path, catalog: Catalog, limit: int = 2500) -> Rows:
    """fp32 matrix products on CUDA cores (NeuSight)."""
    t = pd.read_parquet(folder / "kernels" / "fp32_nvidia_train_matmul.parquet").rename(columns=str.lower)
    moved = 4.0 * t.b * (t.m * t.n + t.m * t.k + t.n * t.k)
    t = t.assign(batch=t.b, flops=2.0 * t.b * t.m * t.n * t.k, moved=moved, seconds=t.latency_ms / 1e3)
    return _rows(t, "gemm", catalog, device="gpu", limit=limit)


def vector_conv(folder: Path, catalog: Catalog, limit: int = 2500) -> Rows:
    """fp32 convolutions on CUDA cores, forward (NeuSight)."""
    t = pd.read_parquet(folder / "kernels" / "fp32_nvidia_train_conv.parquet")
    out = (t.Input_Size + 2 * t.Padding - t.kernel_size) // t.Stride + 1
    m, n, k = t.B * out**2, t.Output_Channel, t.Input_Channel * t.kernel_size**2
    moved = 4.0 * (t.B * t.Input_Channel * t.Input_Size**2 + m * n + n * k)
    t = t.assign(batch=1, m=m, n=n, k=k, flops=2.0 * m * n * k, moved=moved, seconds=t.latency_ms / 1e3)
    return _rows(t, "conv", catalog, device="gpu", limit=limit)


def vector_elementwise(folder: Path, catalog: Catalog, kind: str, limit: int = 2500) -> Rows:
    """fp32 elementwise operations, softmax or layer norm, forward (NeuSight). kind: elementwise, softmax or norm."""
    t = pd.read_parquet(folder / "kernels" / "fp32_nvidia_train_vector.parquet")
    kinds = t.op.map({"ln": "norm", "softmax": "softmax"}).fillna("elementwise")
    arrays = np.where(t.op.isin(["add", "mul", "div", "pow"]), 3, 2)
    t = t.assign(batch=1, m=t.B, n=t.H, k=1, flops=0.0, moved=4.0 * arrays * t.B * t.H, seconds=t.latency_ms / 1e3)
    return _rows(t[kinds == kind], kind, catalog, device="gpu", limit=limit)
