"""Fits the kernel figures of src/gpuwise/cost/data/efficiency.toml on public measurements.

    python -m benchmarks.fit_efficiency --reference FOLDER [--end-to-end CACHE] [--write]

FOLDER holds kernels/*.parquet and published/ (its README names origin and licence). Each piece fits a few figures of one
table by least squares on the logarithm of the time, with a soft loss; devices kept out by
benchmarks.reference.KEPT_OUT_DEVICES are never seen by the fit and their errors are printed apart. --end-to-end then
fits what no kernel table holds on published steps (benchmarks.support.fit_end_to_end; it records their models into CACHE).
--write changes the figures and their [evidence] in place.
"""

from __future__ import annotations

import argparse
import copy
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from benchmarks.support import reference
from benchmarks.support.figures import error_line, get, put, write_evidence, write_figures
from benchmarks.support.reference import Rows
from gpuwise.cost.kernels import arithmetic_s, outputs_of, roof_s, traffic_s
from gpuwise.cost.parameters import Parameters, from_dict
from gpuwise.cost.rates import sustained_share
from gpuwise.hardware.catalog import Catalog

DATA = Path(__file__).parent.parent / "src" / "gpuwise" / "cost" / "data" / "efficiency.toml"


@dataclass(frozen=True)
class Piece:
    """Figures fitted together: dotted keys of the data file, each with its bounds, on the rows of one table.

    rate and peak: the class of units and the precision of the chip's peak it is held against (None: memory only).
    overhead: whether the table's times hold a constant of its own way of measuring, fitted and thrown away.
    """

    name: str
    source: str
    rows: Callable[[Path, Catalog], Rows]
    keys: dict[str, tuple[float, float]]
    rate: str | None
    peak: str | None
    overhead: bool


NEUSIGHT = "sitar-lab/NeuSight (MIT), fp32 tables, torch 2.1"
AICONFIGURATOR = "ai-dynamo/aiconfigurator (Apache-2.0, 2026-08)"
PIECES = [
    Piece(
        "bf16 matrix products",
        f"{AICONFIGURATOR}, gemm",
        reference.tensor_gemm,
        {
            "rates.tensor.gemm": (0.3, 1),
            "rates.tensor.fill": (0, 2e4),
            "bandwidth.gpu.gemm": (0.3, 1),
            "kernel_floor_s.gpu": (1e-6, 6e-6),
        },
        "tensor",
        "bf16",
        False,
    ),
    Piece(
        "bf16 attention, forward",
        f"{AICONFIGURATOR}, attention prefill and encoder",
        reference.tensor_attention,
        {"rates.tensor.attention": (0.1, 1)},
        "tensor",
        "bf16",
        True,
    ),
    Piece(
        "fp32 matrix products",
        f"{NEUSIGHT}, matmul",
        reference.vector_gemm,
        {"rates.vector.gemm": (0.3, 1), "rates.vector.fill": (0, 2e4), "power_exponent": (0, 2)},
        "vector",
        "fp32",
        True,
    ),
    Piece(
        "fp32 convolutions, forward",
        f"{NEUSIGHT}, conv",
        reference.vector_conv,
        {"rates.vector.conv": (0.3, 1.5)},
        "vector",
        "fp32",
        True,
    ),
    *(
        Piece(
            f"fp32 {kind}, forward",
            f"{NEUSIGHT}, vector",
            lambda folder, catalog, kind=kind: reference.vector_elementwise(folder, catalog, kind),
            {f"bandwidth.gpu.{kind}": (0.2, 1)},
            None,
            None,
            True,
        )
        for kind in ("elementwise", "softmax", "norm")
    ),
]


def predict_s(piece: Piece, rows: Rows, parameters: Parameters, overhead_s: float) -> np.ndarray:
    """The model's own formulas on rows of several chips at once."""
    memory = traffic_s(
        rows.moved_bytes,
        bandwidth_bytes_per_s=rows.of_chip(lambda c: c.memory_bandwidth_bytes_per_s),
        efficiency=parameters.bandwidth["gpu"][rows.kind],
        cache_bytes=rows.of_chip(lambda c: c.l2_bytes or 0),
        parameters=parameters,
    )
    compute = np.zeros_like(memory)
    if piece.rate is not None:
        efficiency = parameters.rates[piece.rate].efficiency[rows.kind]
        compute = arithmetic_s(
            rows.flops,
            outputs_of(rows.kind, rows.batch, rows.m, rows.n, rows.k),
            rows.of_chip(lambda c: c.sm_count),
            peak_flops_per_s=rows.of_chip(lambda c: c.peak_flops_per_s[piece.peak]),
            efficiency=efficiency * rows.of_chip(lambda c: sustained_share(c, parameters)),
            fill=parameters.rates[piece.rate].fill,
        )
    return parameters.kernel_floor_s["gpu"] + overhead_s + roof_s(compute, memory, parameters.roof_sharpness)


def fit(piece: Piece, rows: Rows, data: dict[str, Any]) -> tuple[dict[str, float], np.ndarray]:
    """The fitted figures by dotted key, and log(measured / forecast) of every row."""
    low, high = (np.array([bounds[i] for bounds in piece.keys.values()] + [(0.0, 1e-4)[i]] * piece.overhead) for i in (0, 1))
    start = np.clip(
        [get(data, key) for key in piece.keys] + [2e-5] * piece.overhead,
        low + 1e-3 * (high - low),
        high - 1e-3 * (high - low),
    )

    def residual(x: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        changed = copy.deepcopy(data)
        for key, value in zip(piece.keys, x, strict=False):
            put(changed, key, float(value))
        overhead = float(x[-1]) if piece.overhead else 0.0
        return np.log(rows.seconds / predict_s(piece, rows, from_dict(changed), overhead))[chosen]

    seen = ~rows.kept_out
    scale = high - low
    result = least_squares(
        lambda z: residual(z * scale, seen),
        start / scale,
        bounds=(low / scale, high / scale),
        loss="soft_l1",
        f_scale=0.1,
        diff_step=1e-4,
    )
    figures = dict(zip(piece.keys, (result.x * scale).tolist(), strict=False))
    return figures, residual(result.x * scale, np.full(len(seen), True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True, help="folder of the reference measurements")
    parser.add_argument("--end-to-end", type=Path, metavar="CACHE", help="fit published steps too; recordings are kept here")
    parser.add_argument("--write", action="store_true", help="change efficiency.toml in place")
    options = parser.parse_args()
    catalog = Catalog()
    text = DATA.read_text(encoding="utf-8")
    for piece in PIECES:
        rows = piece.rows(options.reference, catalog)
        data = tomllib.loads(text)
        figures, errors = fit(piece, rows, data)
        text = write_figures(text, figures)
        entry = {
            "figures": ", ".join(figures),
            "source": piece.source,
            "seen": error_line(errors[~rows.kept_out]),
            "kept_out": error_line(errors[rows.kept_out]),
        }
        text = write_evidence(text, {piece.name: entry})
        print(f"{piece.name}: " + ", ".join(f"{k} = {v:.3g}" for k, v in figures.items()))
        for index, chip in enumerate(rows.chips):
            of = rows.device == index
            print(f"  {'kept out' if rows.kept_out[of].all() else 'seen    '} {chip.id:32} {error_line(errors[of])}")
    if options.end_to_end:
        from benchmarks.support.fit_end_to_end import fit_published  # it imports this module, and PyTorch

        text = fit_published(text, reference=options.reference, cache=options.end_to_end, catalog=catalog)
    if options.write:
        DATA.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
