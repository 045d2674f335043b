"""EAGLE-3 under vLLM against published runs, with the acceptance that they print. Nothing is fitted on them.

    python -m benchmarks.serving.own_draft [--write]

vllm-project/vllm#20780 (July 2025): Llama 3.1 8B in bf16 on MT-bench, one request at a time. The card is not named; the same
author's runs of these months are on one H100, at the same speed without a draft (vllm-project/vllm#16937).
"""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks.serving.models import generation_of
from benchmarks.serving.page import publish
from gpuwise.api.devices import device_of
from gpuwise.hardware import load_catalog
from gpuwise.serving.engines import engine_of
from gpuwise.serving.own_draft import own_draft
from gpuwise.serving.speculative import Speculation, SpeculativeStep
from gpuwise.serving.step_time import EngineStep

FAMILY, DEVICE = "llama-3-8b", "h100-80gb-sxm"
PAST = 300  # tokens in the cache: prompts of MT-bench have some 80, answers some 200 to 500
PLAIN_MS = 7.07
RUNS = {2: (2.36, 4.32), 3: (2.79, 4.09), 4: (3.08, 4.05), 5: (3.32, 4.13), 6: (3.46, 4.2), 7: (3.54, 4.29)}
# Tokens drafted: tokens an iteration, milliseconds a token.
BEGIN, END = "<!-- own draft: python -m benchmarks.serving.own_draft -->", "<!-- end of own draft -->"


def acceptance_of(draft_tokens: int, mean: float) -> float:
    """The acceptance with which an iteration gives so many tokens on average."""
    return float(min(np.linspace(0.0, 0.99, 991), key=lambda a: abs(Speculation(draft_tokens, a).stride - mean)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    cluster, costs = device_of(DEVICE, load_catalog()).cluster, engine_of("vllm").costs
    generation = generation_of(FAMILY)
    draft = own_draft(generation, "eagle3")
    model = EngineStep(generation, cluster, costs=costs)
    drafting = EngineStep(draft.priced(), cluster, costs=costs, weights=draft.stored(None))
    plain_ms = 1e3 * model((), 1, PAST)
    lines = [
        "| tokens drafted | tokens an iteration | measured | forecast | error | speed-up measured | forecast |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        f"| – | 1 | {PLAIN_MS:.2f} ms | {plain_ms:.2f} ms | {plain_ms / PLAIN_MS - 1:+.0%} | 1.00 | 1.00 |",
    ]
    for draft_tokens, (mean, measured) in RUNS.items():
        stride = Speculation(draft_tokens, acceptance_of(draft_tokens, mean)).stride
        forecast = 1e3 * SpeculativeStep(model, drafting, draft_tokens)((), 1, PAST) / stride
        figures = f"{measured:.2f} ms | {forecast:.2f} ms | {forecast / measured - 1:+.0%}"
        lines.append(f"| {draft_tokens} | {mean:.2f} | {figures} | {PLAIN_MS / measured:.2f} | {plain_ms / forecast:.2f} |")
    publish("\n".join(lines), BEGIN, END, write=options.write)


if __name__ == "__main__":
    main()
