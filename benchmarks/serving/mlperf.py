"""Forward passes of plain PyTorch, as forecast, beside published results of MLPerf Inference v4.1 and v5.1 (Apache-2.0).

    python -m benchmarks.serving.mlperf --reference FOLDER [--write]

ResNet-50 and BERT large, per device, the median of the results of a device, precision and engine. Rows in fp32 are of engines
that run the same graph (ONNX Runtime, TensorFlow): forecasts are compared with them. All others are tuned by vendors: products
of 8 bits or of sparse weights, fused graphs, BERT without the padding of its sequences. Plain PyTorch has none of that, so
they are an upper end: a forecast above one is wrong, one below says nothing. Nothing is fitted. ONNX Runtime on a processor
stands beside its own forecast, too (`serve-plan --engine onnxruntime`). --write puts both tables into docs/serving-forward.md.

A request is an image of 224 pixels, or 384 tokens, to which SQuAD's are padded. Offline: samples a second of the best
batch. Server: the highest rate with 99 % of answers within 15 ms (ResNet-50) or 130 ms (BERT), MLPerf's bounds. SingleStream
and MultiStream: milliseconds of a pass of 1 and of 8 samples, published as 90th and 99th percentiles.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pandas as pd

import gpuwise
from benchmarks.serving.page import publish
from gpuwise.cost.rates import family
from gpuwise.hardware import load_catalog

BEGIN, END = "<!-- mlperf: python -m benchmarks.serving.mlperf -->", "<!-- end of mlperf -->"
# Devices as the column `device` names them, and their chips in the catalog; processors and cards that it has not are left out.
DEVICES = {
    "13th Gen  Core i9-13900K": "i9-13900k",
    "NVIDIA GH200 Grace Hopper Superchip 96GB": "gh200-96gb",
    "NVIDIA GeForce RTX 4090": "rtx-4090",
    "NVIDIA H100-NVL-94GB": "h100-94gb-nvl",
    "NVIDIA H100-PCIe-80GB": "h100-80gb-pcie",
    "NVIDIA H100-SXM-80GB": "h100-80gb-sxm",
    "NVIDIA L4": "l4",
    "NVIDIA RTX A5000 GPU": "rtx-a5000",
    "Tesla T4": "t4",
    "Xeon 6980P": "xeon-6980p",
}
SIZES = {"resnet50": {"image_size": 224}, "bert-large": {"seq_len": 384}}
BOUNDS = {"resnet50": "latency=15ms", "bert-large": "latency=130ms"}
SAMPLES = {"SingleStream": 1, "MultiStream": 8}
PRECISIONS = {"fp32": "fp32", "fp16": "fp16"}  # of the others each device's fastest


def published(reference: Path) -> pd.DataFrame:
    """Results per device, one row a job, device, precision, engine and scenario."""
    rows = pd.read_csv(reference / "serving" / "mlperf.csv", dtype={"devices": float, "nodes": float})
    rows = rows[rows.family.isin(SIZES) & rows.device.isin(DEVICES) & (rows.inferred == 0)].copy()
    rows["precision"] = rows.precision.str.lower()
    rows["engine"] = rows.software.map(engine)
    per_device = rows.result / (rows.devices * rows.nodes)
    rows["value"] = per_device.where(~rows.scenario.isin(SAMPLES), rows.result)
    by = ["family", "device", "precision", "engine", "scenario"]
    return rows.groupby(by).agg(value=("value", "median"), results=("value", "size")).reset_index()


def engine(software: str) -> str:
    """The engine's name, without versions."""
    names = {"TensorRT": "TensorRT", "onnxruntime": "ONNX Runtime", "ONNX Runtime": "ONNX Runtime", "tf ": "TensorFlow"}
    return next(
        (name for part, name in names.items() if part in software), "Intel's PyTorch" if "PyTorch" in software else software
    )


def forecast(job: str, device: str, precision: str | None, scenario: str, *, under: str = "pytorch") -> float:
    """What plain PyTorch, or another engine, is forecast to give: samples a second, or milliseconds."""
    settings = {"on": device, "precision": precision, "engine": under, **SIZES[job]}
    if scenario in SAMPLES:
        plan = gpuwise.serve_plan(job, rate="0.01/s", batch=SAMPLES[scenario], **settings)
        assert plan.rows[0].forward is not None
        return 1e3 * plan.rows[0].forward.seconds.value
    plan = gpuwise.serve_plan(job, rate="1/s", slo=BOUNDS[job] if scenario == "Server" else None, **settings)
    return plan.rows[0].saturation_rate


def is_planned(row: Any) -> bool:
    """Whether the engine of a row has figures of its own there: ONNX Runtime on processors."""
    return row.engine == "ONNX Runtime" and family(load_catalog().chip(row.chip)) == "cpu"


def table(rows: pd.DataFrame) -> str:
    """One line a result."""
    lines = ["| job | device | engine | scenario | published | plain PyTorch | ratio | the engine itself | ratio |"]
    lines.append("| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for row in rows.itertuples():
        unit = "ms" if row.scenario in SAMPLES else "/s"
        figures = " | ".join(f"{figure(value)} {unit}" for value in (row.value, row.forecast))
        itself = f"{figure(row.itself)} {unit} | {row.itself_ratio:.2f}" if row.itself > 0 else "– | –"
        lines.append(f"| {row.family} | {row.chip} | {row.engine} | {row.scenario} | {figures} | {row.ratio:.2f} | {itself} |")
    return "\n".join(lines)


def ratios(rows: pd.DataFrame) -> str:
    """The ratios of a job, device, precision and engine on one line."""
    scenarios = ("Offline", "Server", *SAMPLES)
    lines = [f"| job | device | precision | engine | results | {' | '.join(scenarios)} |", f"|{' --- |' * 4}{' ---: |' * 5}"]
    for key, part in rows.groupby(["family", "chip", "precision", "engine"]):
        each = part.set_index("scenario").ratio
        cells = [f"{each[name]:.2f}" if name in each else "–" for name in scenarios]
        lines.append(f"| {' | '.join(key)} | {part.results.sum()} | {' | '.join(cells)} |")
    return "\n".join(lines)


def figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    rows = published(options.reference)
    rows["chip"] = rows.device.map(DEVICES)
    rows["forecast"] = [
        forecast(row.family, row.chip, PRECISIONS.get(row.precision), row.scenario) for row in rows.itertuples()
    ]
    rows["itself"] = [
        forecast(row.family, row.chip, row.precision, row.scenario, under="onnxruntime") if is_planned(row) else float("nan")
        for row in rows.itertuples()
    ]
    # Of more as of faster: samples a second over those published, and published milliseconds over those of a pass.
    times = rows.scenario.isin(SAMPLES)
    for name, ratio in (("forecast", "ratio"), ("itself", "itself_ratio")):
        rows[ratio] = (rows[name] / rows.value).where(~times, rows.value / rows[name])
    same, tuned = rows[rows.precision == "fp32"], rows[rows.precision != "fp32"]
    error = (same.ratio - 1).abs()
    offline = error[same.scenario == "Offline"]
    itself = (same.itself_ratio - 1).abs()
    text = "\n\n".join(
        [
            f"The same graph in fp32: median error {error.median():.0%}, of Offline {offline.median():.0%} "
            f"({len(offline)} rows).",
            table(same),
            f"ONNX Runtime's own forecast on processors: median error {itself.median():.0%} ({itself.count()} rows).",
            f"Tuned by vendors: {(tuned.ratio > 1).sum()} of {len(tuned)} figures are below the forecast of plain PyTorch.",
            ratios(tuned),
        ]
    )
    publish(text, BEGIN, END, write=options.write)


if __name__ == "__main__":
    main()
