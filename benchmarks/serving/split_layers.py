"""Layers split between a card and its host under llama.cpp, against published runs.

    python -m benchmarks.serving.split_layers [--write]

AlexsJones/llmfit#774, #775 and #778 (MIT, July 2026): Q4_K_M on one RTX 2080 with an i9-10900X, one request, warmed.
"""

from __future__ import annotations

import argparse

from benchmarks.serving.models import generation_of
from benchmarks.serving.page import publish
from gpuwise.api.devices import device_of
from gpuwise.api.engine_model import engine_target
from gpuwise.cost.offload import copy_bytes_per_s
from gpuwise.cost.parameters import parameters
from gpuwise.hardware import load_catalog
from gpuwise.hardware.links import host_link
from gpuwise.serving.engines import engine_of
from gpuwise.serving.formats import format_of, stored, stored_parts
from gpuwise.serving.split_layers import LayerBytes, SplitStep
from gpuwise.serving.step_time import EngineStep

CARD, HOST = "rtx-2080", "i9-10940x"  # the i9-10900X has the same four channels of DDR4-2933
PAST = 200  # tokens in the cache: runs are of short prompts and answers
FITTED = "qwen3-14b"
RUNS = {  # family: --n-gpu-layers, tokens a second
    "qwen3-14b": (32, 16.9),
    "qwen2.5-14b": (42, 20.8),
    "phi-4": (32, 16.7),
    "mistral-small-24b": (16, 5.2),
}
BEGIN, END = "<!-- split layers: python -m benchmarks.serving.split_layers -->", "<!-- end of split layers -->"


def step_of(family: str, gpu_layers: int) -> SplitStep:
    """Iterations of a family with so many layers on the card."""
    engine, format, catalog = engine_of("llama.cpp"), format_of("gguf-q4_k_m"), load_catalog()
    steps, sizes = [], None
    for name in (CARD, HOST):
        device = device_of(name, catalog)
        precision = "fp32" if device.chip.kind == "cpu" else "fp16"
        generation = generation_of(family, precision=precision, target=engine_target(device.chip)).cached_in(2.0)
        if sizes is None:
            layers = sum(each.layers for each in generation.attention)
            embedding, head, rest = stored_parts(generation, format)
            sizes = LayerBytes(layers, rest // layers, 0, head, embedding, 0)
        steps.append(EngineStep(generation, device.cluster, costs=engine.costs, weights=stored(generation, format)))
    link = host_link(catalog.chip(CARD), catalog)
    assert sizes is not None
    assert link is not None
    return SplitStep(steps[0], steps[1], sizes, gpu_layers, copy_bytes_per_s(link, parameters()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    lines = [
        "| family | layers on the card | measured | forecast | error | split |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for family, (gpu_layers, measured) in RUNS.items():
        step = step_of(family, gpu_layers)
        forecast = 1 / step((), 1, PAST)
        split = "fitted" if family == FITTED else "kept out"
        words = f"{measured:.1f}/s | {forecast:.1f}/s | {forecast / measured - 1:+.0%} | {split}"
        lines.append(f"| {family} | {gpu_layers} of {step.sizes.most} | {words} |")
    text = "\n".join(lines)
    publish(text, BEGIN, END, write=options.write)


if __name__ == "__main__":
    main()
