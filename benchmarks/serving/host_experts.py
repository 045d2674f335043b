"""Experts on the host of a card under llama.cpp, against published runs. Nothing is fitted on them.

    python -m benchmarks.serving.host_experts [--write]

Written tokens of one request:

- AlexsJones/llmfit#755, #775 and #778 (MIT, July 2026): one RTX 2080 with an i9-10900X;
- a reply to ggml-org/llama.cpp discussion 15396 (August 2025): RX 7900 XT, Ryzen 9 5900X, DDR4-3200;
- a post on r/LocalLLaMA (October 2025): RX 6900 XT, Ryzen 9 7900, DDR5-5600.

Prompts of 4,096 tokens: a post on ai-maestro.online (May 2026), one RTX 3090, whose host is not named and computes nothing.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from benchmarks.serving.models import generation_of
from benchmarks.serving.page import publish
from gpuwise.api.devices import Device, device_of
from gpuwise.api.engine_model import engine_target
from gpuwise.api.host_experts import sizes_of
from gpuwise.cost.offload import copy_bytes_per_s
from gpuwise.cost.parameters import parameters
from gpuwise.hardware import load_catalog
from gpuwise.hardware.links import host_link
from gpuwise.serving.engines import engine_of
from gpuwise.serving.experts import expert_shape, experts_alone, without_experts
from gpuwise.serving.formats import StoredWeights, format_of, stored
from gpuwise.serving.generation import Generation
from gpuwise.serving.host_experts import ExpertStep
from gpuwise.serving.step_time import EngineStep

PAST = 200  # tokens in the cache: runs are of short prompts and answers
PROMPT = 4096


@dataclass(frozen=True)
class ExpertRun:
    """A published run.

    Attributes:
        card, host: ids of the catalog; of a host that it lacks, one with the same memory.
        family, format: of the model.
        cpu_experts: --n-cpu-moe.
        measured: tokens a second.
        read: tokens of a pass over a prompt; 0 where tokens are written.
    """

    card: str
    host: str
    family: str
    format: str
    cpu_experts: int
    measured: float
    read: int = 0


RUNS = (
    ExpertRun("rtx-2080", "i9-10940x", "qwen3-30b-a3b", "gguf-q4_k_m", 36, 36.7),
    ExpertRun("rtx-2080", "i9-10940x", "gpt-oss-20b", "gguf-mxfp4", 12, 36.4),
    ExpertRun("rtx-2080", "i9-10940x", "deepseek-v2-lite", "gguf-q4_k_m", 16, 49.6),
    ExpertRun("rx-7900-xt", "ryzen-5900x", "gpt-oss-20b", "gguf-mxfp4", 24, 20.0),
    ExpertRun("rx-6900-xt", "ryzen-7900", "gpt-oss-120b", "gguf-mxfp4", 28, 19.0),
    ExpertRun("rtx-3090", "ryzen-5950x", "gpt-oss-120b", "gguf-mxfp4", 25, 240.03, 256),
    ExpertRun("rtx-3090", "ryzen-5950x", "gpt-oss-120b", "gguf-mxfp4", 26, 380.27, 512),
    ExpertRun("rtx-3090", "ryzen-5950x", "gpt-oss-120b", "gguf-mxfp4", 25, 1112.54, 2048),
    ExpertRun("rtx-3090", "ryzen-5950x", "gpt-oss-120b", "gguf-mxfp4", 26, 1682.47, 4096),
)
BEGIN, END = "<!-- host experts: python -m benchmarks.serving.host_experts -->", "<!-- end of host experts -->"


def recorded(family: str, device: Device) -> Generation:
    """How a family generates on a device."""
    precision = "fp32" if device.chip.kind == "cpu" else "fp16"
    return generation_of(family, precision=precision, target=engine_target(device.chip)).cached_in(2.0)


def engine_step(device: Device, generation: Generation, weights: StoredWeights) -> EngineStep:
    return EngineStep(generation, device.cluster, costs=engine_of("llama.cpp").costs, weights=weights)


def step_of(run: ExpertRun) -> ExpertStep:
    """Iterations of the model of a run."""
    format, catalog = format_of(run.format), load_catalog()
    card, host = (device_of(name, catalog) for name in (run.card, run.host))
    generation, link = recorded(run.family, card), host_link(card.chip, catalog)
    shape = expert_shape(generation)
    assert shape is not None
    assert link is not None
    experts = stored(generation, format, only=lambda each: each.of_experts)
    rest = stored(generation, format, only=lambda each: not each.of_experts)
    return ExpertStep(
        rest=engine_step(card, without_experts(generation), rest),
        card=engine_step(card, experts_alone(generation), experts),
        host=engine_step(host, experts_alone(recorded(run.family, host)), experts),
        sizes=sizes_of(generation, format, shape, cache=0, buffers=0),
        cpu_experts=run.cpu_experts,
        shape=shape,
        width=generation.width,
        link_bytes_per_s=copy_bytes_per_s(link, parameters()),
    )


def forecast_of(run: ExpertRun) -> float:
    """Tokens a second."""
    step = step_of(run)
    if not run.read:
        return 1 / step((), 1, PAST)
    return PROMPT / sum(step([(run.read, past)], 0, 0) for past in range(0, PROMPT, run.read))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    lines = [
        "| card | family | experts on the host | tokens | measured | forecast | error |",
        "| --- | --- | ---: | --- | ---: | ---: | ---: |",
    ]
    for run in RUNS:
        forecast = forecast_of(run)
        tokens = f"read, {run.read:,} a pass" if run.read else "written"
        figures = f"{run.measured:,.1f}/s | {forecast:,.1f}/s | {forecast / run.measured - 1:+.0%}"
        lines.append(f"| {run.card} | {run.family} | of {run.cpu_experts} layers | {tokens} | {figures} |")
    publish("\n".join(lines), BEGIN, END, write=options.write)


if __name__ == "__main__":
    main()
