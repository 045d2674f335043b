"""Cards that work in turn under llama.cpp, against published runs: one request at a time.

    python -m benchmarks.serving.in_turn [--write]

XiongjieDai/GPU-Benchmarks-on-LLM-Inference (May 2024): llama-bench, Q4_K_M, tg 512 and pp 512. Nothing is fitted on them.
--write puts the table into docs/serving-accuracy.md.
"""

from __future__ import annotations

import argparse

from benchmarks.serving.page import publish
from gpuwise.api.devices import device_of
from gpuwise.api.engine_model import EngineModel
from gpuwise.api.served_job import served_job
from gpuwise.hardware import load_catalog
from gpuwise.serving.engines import engine_of
from gpuwise.serving.formats import format_of
from gpuwise.serving.instance import LoadShape
from gpuwise.serving.lengths import Lengths

TOKENS = 512
PUBLISHED = {  # written and read tokens a second
    "llama3-8b": {
        "rtx-3090": (115.42, 4030.40),
        "rtx-3090:2": (111.67, 3336.37),
        "rtx-3090:4": (108.66, 3742.66),
        "rtx-4090": (130.58, 7138.99),
        "rtx-4090:2": (124.65, 7003.51),
        "rtx-4090:4": (120.32, 6748.96),
    },
    "llama3-70b": {
        "rtx-3090:2": (16.57, 357.32),
        "rtx-3090:4": (17.07, 300.79),
        "rtx-4090:2": (19.22, 839.43),
        "rtx-4090:4": (19.80, 834.74),
    },
}
BEGIN, END = "<!-- in turn: python -m benchmarks.serving.in_turn -->", "<!-- end of in turn -->"


def forecasts(job: str) -> dict[str, tuple[float, float]]:
    """Written and read tokens a second by device."""
    model, catalog = EngineModel(served_job(job), engine_of("llama.cpp"), None, format_of("gguf-q4_k_m"), None), load_catalog()
    by_device = {}
    for name in PUBLISHED[job]:
        device = device_of(name, catalog)
        iteration_s = model.instance(device, model.of(device), LoadShape(Lengths(TOKENS, TOKENS))).iteration_s
        by_device[name] = 1 / iteration_s((), 1, TOKENS // 2), TOKENS / iteration_s([(TOKENS, 0)], 0, 0)
    return by_device


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    lines = [
        "| model | devices | written: published | forecast | error | read: published | forecast | error |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for job, published in PUBLISHED.items():
        for device, forecast in forecasts(job).items():
            figures = zip(published[device], forecast, strict=True)
            words = " | ".join(f"{real:,.1f}/s | {ours:,.1f}/s | {ours / real - 1:+.0%}" for real, ours in figures)
            lines.append(f"| {job} | {device} | {words} |")
    publish("\n".join(lines), BEGIN, END, write=options.write)


if __name__ == "__main__":
    main()
