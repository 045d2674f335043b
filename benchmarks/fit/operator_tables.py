"""Tables of measured fp32 operators (sitar-lab/NeuSight, MIT) as shapes of a trace, with the chip and time of each row.

Their times hold the host's: a call takes at least `least_s` at every size, and a long kernel begins half of that
after the clock. Both belong to the machine and the way of measuring, and are read off each table's smallest rows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.fit.split import kept_out_shapes
from gpuwise.cost.kernels.shapes import Hardware, Shapes
from gpuwise.cost.kernels.times import hardware_of
from gpuwise.cost.parameters import parameters
from gpuwise.cost.rates import units_for
from gpuwise.hardware.catalog import Catalog

CHIPS = {
    "NVIDIA A100-PCIE-40GB": "a100-40gb-pcie",
    "NVIDIA A100 80GB PCIe": "a100-80gb-pcie",
    "Tesla T4": "t4",
    "Tesla P4": "p4",
    "Tesla V100-PCIE-32GB": "v100-pcie-32gb",
    "Tesla P100-PCIE-16GB": "p100-pcie-16gb",
    "AMD Instinct MI100": "mi100",
    "AMD Instinct MI210": "mi210",
}
CLASSES = {"softmax": "softmax", "ln": "norm_layer"}
# Rows of the tables of embeddings, by the end of a module's name.
EMBEDDINGS = ("wte", "word_embeddings", "embed_tokens", "token_type_embeddings")
BINARY = ("add", "mul", "div", "pow")  # two inputs; their namesakes with a u take one and a number
# A long kernel begins this share of a small call's time after the clock: rows of 40 to 400 µs extrapolated to no bytes give
# 0.52 to 0.62 of the smallest rows for each of the elementwise operators on each GPU.
LAUNCH_SHARE = 0.53
SMALL_BYTES = 3e5


@dataclass(frozen=True)
class Rows:
    """Measurements of one class of kernels. chip: id; op: what was run; all of shape (rows,). least_s, launch_s: the host's."""

    chip: np.ndarray
    op: np.ndarray
    shapes: Shapes
    seconds: np.ndarray
    least_s: np.ndarray
    launch_s: np.ndarray
    kept_out: np.ndarray

    def of(self, rows: np.ndarray) -> Rows:
        shapes = Shapes(**{name: np.broadcast_to(value, self.chip.shape)[rows] for name, value in vars(self.shapes).items()})
        return Rows(
            self.chip[rows],
            self.op[rows],
            shapes,
            self.seconds[rows],
            self.least_s[rows],
            self.launch_s[rows],
            self.kept_out[rows],
        )

    @classmethod
    def joined(cls, parts: list[Rows]) -> Rows:
        shapes = Shapes(
            **{
                name: np.concatenate([np.broadcast_to(getattr(p.shapes, name), p.shapes.m.shape) for p in parts])
                for name in vars(parts[0].shapes)
            }
        )
        columns = {f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(cls) if f.name != "shapes"}
        return cls(shapes=shapes, **columns)

    def hardware(self, catalog: Catalog, *, kind: str) -> Hardware:
        """Figures of each row's chip, for fp32."""
        return hardware_of_chips(self.chip, catalog, kind=kind)


def hardware_of_chips(chips: np.ndarray, catalog: Catalog, *, kind: str) -> Hardware:
    """For fp32 on CUDA cores, without TF32."""
    names, index = np.unique(chips, return_inverse=True)
    results = []
    for name in names:
        chip = catalog.chip(str(name))
        units = units_for(chip, dtype="float32", kind="gemm", precision="fp32", parameters=parameters())
        results.append(hardware_of(chip, parameters(), units=units if kind == "conv" else None))
    return Hardware(
        **{
            field: np.array([float(getattr(h, field)) for h in results])[index]
            for field in ("peak_flops_per_s", "bandwidth_bytes_per_s", "units", "cache_bytes")
        }
    )


def vector(folder: Path) -> dict[str, Rows]:
    """Elementwise operators, softmax over the last dimension and layer norm, forward, by class."""
    table = pd.read_parquet(folder / "kernels" / "fp32_nvidia_train_vector.parquet")
    table = table.assign(chip=table.gpu.map(CHIPS), cls=table.op.map(CLASSES).fillna("elementwise"), s=table.latency_ms / 1e3)
    numbers = table.B * table.H
    norm = table.op == "ln"
    table["read"] = 4.0 * (numbers * np.where(table.op.isin(BINARY), 2, 1) + np.where(norm, 2 * table.H, 0))
    table["written"] = 4.0 * (numbers + np.where(norm, 2 * table.B, 0))
    small = table[table.read + table.written < SMALL_BYTES].groupby(["chip", "op"]).s.median().rename("least")
    table = table.join(small, on=["chip", "op"])
    table["kept"] = kept_out_shapes(table.B, table.H)
    return {
        name: Rows(
            part.chip.to_numpy(str),
            part.op.to_numpy(str),
            _moved(part.read, part.written, *((part.B, part.H) if name == "softmax" else ())),
            part.s.to_numpy(),
            part.least.to_numpy(),
            part.least.to_numpy() * LAUNCH_SHARE,
            part.kept.to_numpy(),
        )
        for name, part in table.groupby("cls")
    }


def convolutions(folder: Path) -> Rows:
    """3×3 convolutions at stride 1, forward. The smallest call takes 59 to 73 µs on each of the four GPUs: the host's."""
    table = pd.read_parquet(folder / "kernels" / "fp32_nvidia_train_conv.parquet")
    images, channels, n, side = (table[c].to_numpy(float) for c in ("B", "Input_Channel", "Output_Channel", "Input_Size"))
    m, k, one = images * side**2, channels * 9, np.ones(len(table))
    shapes = Shapes(2 * m * n * k, 4 * (m * channels + n * k), 4 * m * n, one, one, m, n, k, 0 * one, 4 * one, images)
    kept = kept_out_shapes(images, channels, n, side)
    chip = table.gpu.map(CHIPS).to_numpy(str)
    return Rows(chip, np.full(len(table), "conv"), shapes, table.latency_ms.to_numpy() / 1e3, 60e-6 * one, 60e-6 * one, kept)


def in_models(folder: Path) -> dict[str, Rows]:
    """Operators inside BERT, GPT-2, GPT-3 and OPT, forward and backward, by class. Kept out by shape."""
    table = pd.read_parquet(folder / "kernels" / "fp32_model_op_traces.parquet")
    results: dict[str, list[tuple[object, ...]]] = {}
    for row in table.itertuples():
        for name, way, read, written, m, k, seconds in _operations(row):
            results.setdefault(name, []).append((CHIPS[row.gpu], way, 4.0 * read, 4.0 * written, m, k, seconds / 1e3))
    rows = {}
    for name, values in results.items():
        part = pd.DataFrame(values, columns=["chip", "way", "read", "written", "m", "k", "s"])
        part = part.groupby(["chip", "way", "read", "written", "m", "k"], as_index=False).s.median()
        least = np.where(part.way == "forward", 20e-6, 18e-6)  # the smallest calls of these tables: 18 to 25 µs
        rows[name] = Rows(
            part.chip.to_numpy(str),
            part.way.to_numpy(str),
            _moved(part.read, part.written, part.m, part.k),
            part.s.to_numpy(),
            least,
            least * LAUNCH_SHARE,
            kept_out_shapes(part.read, part.written),
        )
    return rows


def _operations(row: object) -> list[tuple[str, str, float, float, float, float, float]]:
    """(class, way, numbers read, written, rows, length, milliseconds) of what a row of the table ran as one kernel or two."""
    target, shapes = str(row.target).lower(), json.loads(row.input_shapes)  # type: ignore[attr-defined]
    if not shapes or row.dtype != "torch.float32":  # type: ignore[attr-defined]
        return []
    size = float(np.prod(shapes[0]))
    length = float(shapes[0][-1])
    forward, backward = float(row.fw_latency), float(row.bw_latency)  # type: ignore[attr-defined]
    ways: list[tuple[str, str, float, float, float, float, float]] = []
    if row.op == "call_module" and (target.endswith(("norm", "ln_1", "ln_2", "ln_f"))):  # type: ignore[attr-defined]
        rows = size / length
        ways = [
            ("norm_layer", "forward", size + 2 * length, size + 2 * rows, 0, 0, forward),
            ("norm_layer_backward", "backward", 2 * size + length + 2 * rows, size + 2 * length, rows, length, backward),
        ]
    elif target.split(".")[-1] in EMBEDDINGS:  # backward is left out: every index was a one, so that all of them collided
        width = float(row.output_shape.strip("()").split(",")[-1])  # type: ignore[attr-defined]
        ways = [("embedding", "forward", size * (width + 2), size * width, 0, 0, forward)]
    elif "gelu" in target or target.endswith("activation_fn"):
        ways = [
            ("elementwise", "forward", size, size, 0, 0, forward),
            ("elementwise", "backward", 2 * size, size, 0, 0, backward),
        ]
    elif "softmax" in target and row.op == "call_function":  # type: ignore[attr-defined]
        rows = size / length
        ways = [
            ("softmax", "forward", size, size, rows, length, forward),
            ("softmax_backward", "backward", 2 * size, size, rows, length, backward),
        ]
    elif " add>" in target and len(shapes) == 2 and shapes[0] == shapes[1]:
        ways = [("elementwise", "forward", 2 * size, size, 0, 0, forward)]
    return [way for way in ways if way[-1] > 0]


def _moved(read: pd.Series, written: pd.Series, m: pd.Series | float = 0.0, k: pd.Series | float = 0.0) -> Shapes:
    """Shapes of kernels without arithmetic. m: rows, k: numbers in a row, 0 where a trace would not have them."""
    none = np.zeros(len(read))
    rows, length = (none + np.asarray(x, dtype=float) for x in (m, k))
    bytes_read, bytes_written = read.to_numpy(float), written.to_numpy(float)
    return Shapes(
        flops=none,
        bytes_read=bytes_read,
        bytes_written=bytes_written,
        kernels=none + 1,
        batch=none,
        m=rows,
        n=none,
        k=length,
        causal=none,
        element_bytes=none + 4,
        images=none + 1,
    )
