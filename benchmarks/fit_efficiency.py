"""Fits the kernel figures of src/gpuwise/cost/data/efficiency.toml on public measurements.

    python -m benchmarks.fit_efficiency --reference FOLDER [--end-to-end CACHE] [--write]

FOLDER holds kernels/*.parquet and published/ (its README names origin and licence). Each piece fits a few figures of one
table by least squares on the logarithm of the time, with a soft loss; devices kept out by
benchmarks.reference.KEPT_OUT_DEVICES are never seen by the fit and their errors are printed apart. --end-to-end then fits
what no kernel table holds (convolutions and backward passes on tensor cores, TF32, the host) on published training steps
(benchmarks.published; it records their models into CACHE). --write changes the figures and their [evidence] in place.
"""

from __future__ import annotations

import argparse
import copy
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from benchmarks import reference
from benchmarks.reference import Rows
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
    Piece("bf16 matrix products", f"{AICONFIGURATOR}, gemm", reference.tensor_gemm,
          {"rates.tensor.gemm": (0.3, 1), "rates.tensor.fill": (0, 2e4), "bandwidth.gpu.gemm": (0.3, 1),
           "kernel_floor_s.gpu": (1e-6, 6e-6)}, "tensor", "bf16", False),
    Piece("bf16 attention, forward", f"{AICONFIGURATOR}, attention prefill and encoder", reference.tensor_attention,
          {"rates.tensor.attention": (0.1, 1)}, "tensor", "bf16", True),
    Piece("fp32 matrix products", f"{NEUSIGHT}, matmul", reference.vector_gemm,
          {"rates.vector.gemm": (0.3, 1), "rates.vector.fill": (0, 2e4), "power_exponent": (0, 2)}, "vector", "fp32", True),
    Piece("fp32 convolutions, forward", f"{NEUSIGHT}, conv", reference.vector_conv,
          {"rates.vector.conv": (0.3, 1.5)}, "vector", "fp32", True),
    *(Piece(f"fp32 {kind}, forward", f"{NEUSIGHT}, vector",
            lambda folder, catalog, kind=kind: reference.vector_elementwise(folder, catalog, kind),
            {f"bandwidth.gpu.{kind}": (0.2, 1)}, None, None, True) for kind in ("elementwise", "softmax", "norm")),
]  # fmt: skip


def predict_s(piece: Piece, rows: Rows, parameters: Parameters, overhead_s: float) -> np.ndarray:
    """The model's own formulas on rows of several chips at once."""
    memory = traffic_s(rows.moved_bytes, bandwidth_bytes_per_s=rows.of_chip(lambda c: c.memory_bandwidth_bytes_per_s),
                       efficiency=parameters.bandwidth["gpu"][rows.kind], cache_bytes=rows.of_chip(lambda c: c.l2_bytes or 0),
                       parameters=parameters)  # fmt: skip
    compute = np.zeros_like(memory)
    if piece.rate is not None:
        efficiency = parameters.rates[piece.rate].efficiency[rows.kind]
        compute = arithmetic_s(rows.flops, outputs_of(rows.kind, rows.batch, rows.m, rows.n, rows.k),
                               rows.of_chip(lambda c: c.sm_count), peak_flops_per_s=rows.of_chip(lambda c: c.peak_flops_per_s[piece.peak]),
                               efficiency=efficiency * rows.of_chip(lambda c: sustained_share(c, parameters)),
                               fill=parameters.rates[piece.rate].fill)  # fmt: skip
    return parameters.kernel_floor_s["gpu"] + overhead_s + roof_s(compute, memory, parameters.roof_sharpness)


def fit(piece: Piece, rows: Rows, data: dict[str, Any]) -> tuple[dict[str, float], np.ndarray]:
    """The fitted figures by dotted key, and log(measured / forecast) of every row."""
    low, high = (
        np.array([bounds[i] for bounds in piece.keys.values()] + [(0.0, 1e-4)[i]] * piece.overhead) for i in (0, 1)
    )
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
    result = least_squares(lambda z: residual(z * scale, seen), start / scale, bounds=(low / scale, high / scale),
                           loss="soft_l1", f_scale=0.1, diff_step=1e-4)  # fmt: skip
    figures = dict(zip(piece.keys, (result.x * scale).tolist(), strict=False))
    return figures, residual(result.x * scale, np.full(len(seen), True))


# Figures no kernel table holds, each with its bounds.
END_TO_END = {
    "rates.tensor.conv": (0.2, 0.95), "rates.tensor.conv_backward": (0.2, 0.95),
    "rates.tf32.gemm": (0.4, 0.9), "rates.tf32.conv": (0.2, 0.9), "rates.vector.conv_backward": (0.3, 1),
    "bandwidth.gpu.conv": (0.2, 0.95), "bandwidth.gpu.conv_backward": (0.2, 0.95), "bandwidth.gpu.conv_depthwise": (0.05, 0.95),
    "bandwidth.gpu.conv_depthwise_backward": (0.05, 0.9), "bandwidth.gpu.norm_backward": (0.2, 0.9),
}  # fmt: skip


def fit_end_to_end(reference_folder: Path, cache: Path, catalog: Catalog, data: dict[str, Any]) -> tuple[dict[str, float], list[tuple[Any, float]]]:
    """The fitted figures, and (case, log(measured / forecast)) of every case, kept out or seen.

    Rows of one job, chip, precision and mode count as one: the median of their ratios decides.
    """
    from benchmarks.check_published import trace_of  # it imports this module
    from benchmarks.published import cases
    from gpuwise.cost.kernels import kernel_times
    from gpuwise.cost.price import host_s
    from gpuwise.errors import GpuwiseError

    known = [(case, *trace_of(case, cache)) for case in cases(reference_folder)
             if case.count * case.machines == 1 and catalog.chips.get(case.chip_id) and catalog.chip(case.chip_id).kind != "cpu"]  # fmt: skip

    def errors(parameters: Parameters) -> list[tuple[Any, float]]:
        found = []
        for case, trace, _ in known:
            chip = catalog.chip(case.chip_id)
            try:
                device = float(trace.counts() @ kernel_times(trace, chip, parameters).device_s)
            except GpuwiseError:
                continue
            found.append((case, float(np.log(case.seconds / max(device, host_s(trace, chip, parameters))))))
        return found

    low, high = (np.array([bounds[i] for bounds in END_TO_END.values()]) for i in (0, 1))
    start = np.clip([get(data, key) for key in END_TO_END], low + 0.01 * (high - low), high - 0.01 * (high - low))

    def changed(z: np.ndarray) -> dict[str, Any]:
        copied = copy.deepcopy(data)
        for key, value in zip(END_TO_END, low + z * (high - low), strict=True):
            put(copied, key, float(value))
        return copied

    def residual(z: np.ndarray) -> np.ndarray:
        groups: dict[tuple[str, ...], list[float]] = {}
        for case, error in errors(from_dict(changed(z))):
            if not case.kept_out:
                groups.setdefault((case.job, case.chip_id, case.strategy.precision, case.strategy.mode), []).append(error)
        return np.array([np.median(values) for values in groups.values()])

    result = least_squares(residual, (start - low) / (high - low), bounds=(0, 1), loss="soft_l1", f_scale=0.1,
                           diff_step=1e-2, max_nfev=8)  # fmt: skip
    final = changed(result.x)
    return {key: get(final, key) for key in END_TO_END}, errors(from_dict(final))


def spread(pairs: list[tuple[Any, float]]) -> tuple[float, float]:
    """90 % interval of measured / forecast over the kept-out cases."""
    kept = np.array([error for case, error in pairs if case.kept_out])
    low, high = np.exp(np.quantile(kept, [0.05, 0.95]))
    return min(0.9, float(low)), max(1.1, float(high))


def get(data: dict[str, Any], key: str) -> float:
    for part in key.split("."):
        data = data[part]
    return float(data)  # type: ignore[arg-type]


def put(data: dict[str, Any], key: str, value: float) -> None:
    *path, last = key.split(".")
    for part in path:
        data = data[part]
    data[last] = value


def error_line(errors: np.ndarray) -> str:
    if not len(errors):
        return "no rows"
    size = np.abs(np.expm1(-errors))
    return f"{len(errors)} rows, median error {np.median(size):.1%}, 90th percentile {np.quantile(size, 0.9):.1%}, bias {np.expm1(np.median(-errors)):+.1%}"


def write_figures(text: str, figures: Mapping[str, float | tuple[float, float]]) -> str:
    """The data file with these figures changed in place, comments kept."""
    for key, value in figures.items():
        section, _, name = key.rpartition(".")
        start = text.index(f"[{section}]\n") if section else 0
        end = text.find("\n[", start + 1)
        body = text[start : end if end >= 0 else None]
        shown = f"[{value[0]:.2g}, {value[1]:.2g}]" if isinstance(value, tuple) else f"{value:.3g}"
        changed, count = re.subn(rf"(?m)^{re.escape(name)} = .*$", f"{name} = {shown}", body)
        if count != 1:
            raise ValueError(f"{key} stands {count} times in the data file")
        text = text[:start] + changed + (text[end:] if end >= 0 else "")
    return text


def write_evidence(text: str, evidence: dict[str, dict[str, str]]) -> str:
    """The data file with its [evidence] tables (the last of the file) replaced for these pieces."""
    head, _, tail = text.partition("\n# What each fitted figure")
    known = tomllib.loads("# What each fitted figure" + tail).get("evidence", {}) if tail else {}
    known.update(evidence)
    lines = ["", "# What each fitted figure was fitted on, and what is left: of rows seen, and of rows kept out."]
    for name, entry in known.items():
        lines += [f'[evidence."{name}"]', *(f'{key} = "{value}"' for key, value in entry.items()), ""]
    return head.rstrip("\n") + "\n" + "\n".join(lines).rstrip("\n") + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True, help="folder of the reference measurements")
    parser.add_argument("--end-to-end", type=Path, metavar="CACHE", help="fit published training steps too, recordings kept here")
    parser.add_argument("--write", action="store_true", help="change efficiency.toml in place")
    options = parser.parse_args()
    catalog = Catalog()
    text = DATA.read_text(encoding="utf-8")
    for piece in PIECES:
        rows = piece.rows(options.reference, catalog)
        data = tomllib.loads(text)
        figures, errors = fit(piece, rows, data)
        text = write_figures(text, figures)
        entry = {"figures": ", ".join(figures), "source": piece.source,
                 "seen": error_line(errors[~rows.kept_out]), "kept_out": error_line(errors[rows.kept_out])}  # fmt: skip
        text = write_evidence(text, {piece.name: entry})
        print(f"{piece.name}: " + ", ".join(f"{k} = {v:.3g}" for k, v in figures.items()))
        for index, chip in enumerate(rows.chips):
            of = rows.device == index
            print(f"  {'kept out' if rows.kept_out[of].all() else 'seen    '} {chip.id:32} {error_line(errors[of])}")
    if options.end_to_end:
        figures, pairs = fit_end_to_end(options.reference, options.end_to_end, catalog, tomllib.loads(text))
        text = write_figures(text, {**figures, "spread.gpu": spread(pairs)})
        seen, kept = (np.array([error for case, error in pairs if case.kept_out == value]) for value in (False, True))
        entry = {"figures": ", ".join([*figures, "spread.gpu"]), "seen": error_line(seen), "kept_out": error_line(kept),
                 "source": "published steps on one GPU: Lambda Labs benchmarks, NeuSight fp32 transformers, timm results"}  # fmt: skip
        text = write_evidence(text, {"published steps": entry})
        print("published steps: " + ", ".join(f"{k} = {v:.3g}" for k, v in figures.items()))
        print(f"  seen     {error_line(seen)}\n  kept out {error_line(kept)}, 90 % between {spread(pairs)}")
    if options.write:
        DATA.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
