"""Speculative decoding against published runs of vLLM 0.4 to 0.6, with the acceptance of one of them.

    python -m benchmarks.serving.speculative --reference FOLDER [--write]

argonne-lcf/LLM-Inference-Bench (BSD-3): Llama 2 7B on one A100, with and without three tokens drafted by llama-68m. The
acceptance is fitted on the row of one sequence and 128 tokens, since the tables do not say it. All other rows are kept out.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.serving.models import generation_of
from benchmarks.serving.page import publish
from benchmarks.serving.runs import DEVICES
from gpuwise.api.devices import device_of
from gpuwise.hardware import load_catalog
from gpuwise.serving.engines import engine_of
from gpuwise.serving.requests import requests
from gpuwise.serving.speculative import Speculation, SpeculativeInstance, SpeculativeStep
from gpuwise.serving.step_time import EngineStep

DEVICE, FAMILY, DRAFT, DRAFT_TOKENS = "A100 SXM 40GB", "llama-2-7b", "llama-68m", 3
FITTED = (1, 128)  # sequences, tokens
BEGIN, END = "<!-- speculative: python -m benchmarks.serving.speculative -->", "<!-- end of speculative -->"


def step_of(family: str) -> EngineStep:
    cluster = device_of(DEVICES[DEVICE], load_catalog()).cluster
    return EngineStep(generation_of(family), cluster, costs=engine_of("vllm-2024").costs)


class Runs:
    """The published rows, and what is forecast of them."""

    def __init__(self, reference: Path) -> None:
        table = pd.read_csv(reference / "serving" / "generation.csv")
        table = table[
            (table.family == FAMILY) & (table.device == DEVICE) & table.variant.fillna("").str.startswith("speculative")
        ]
        table = table.assign(drafts=~table.variant.str.endswith("none"))
        self.rows = table.sort_values(["batch_size", "input_tokens", "drafts"])
        self.model, self.draft = step_of(FAMILY), step_of(DRAFT)

    def seconds(self, batch: int, tokens: int, acceptance: float | None) -> float:
        """Until the last token of a batch. acceptance: None without the draft."""
        engine, generation = engine_of("vllm-2024"), self.model.generation
        capacity = load_catalog().chip(DEVICES[DEVICE]).usable_memory_bytes
        assert capacity is not None
        policy = engine.policy(
            generation, capacity_bytes=capacity, outside_bytes=500_000_000, longest=2 * tokens, sequences=max(batch, 1)
        )
        step = SpeculativeStep(self.model, self.draft, DRAFT_TOKENS, expands=True)
        speculation = Speculation(DRAFT_TOKENS, acceptance or 0.0)
        instance = SpeculativeInstance(step, policy, engine.spread, speculation)
        load = requests(np.zeros(batch), np.full(batch, tokens), np.full(batch, tokens))
        if acceptance is None:
            return float(np.nanmax(super(SpeculativeInstance, instance).run(load, self.model).end_s))
        return float(np.nanmax(instance.run(load, step).end_s))

    def acceptance(self) -> float:
        """The acceptance with which the row of one sequence comes out right."""
        at = (self.rows.batch_size == FITTED[0]) & (self.rows.input_tokens == FITTED[1]) & self.rows.drafts
        measured = float(self.rows[at].latency_s.iloc[0])
        return float(min(np.linspace(0.01, 0.95, 95), key=lambda a: abs(self.seconds(*FITTED, a) - measured)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    runs = Runs(options.reference)
    acceptance = runs.acceptance()
    lines = [
        f"Acceptance {acceptance:.2f}, fitted on the row marked so.",
        "",
        "| sequences | tokens read and written | draft | measured | forecast | error | split |",
        "| ---: | ---: | --- | ---: | ---: | ---: | --- |",
    ]
    for row in runs.rows.itertuples():
        batch, tokens = int(row.batch_size), int(row.input_tokens)
        seconds = runs.seconds(batch, tokens, acceptance if row.drafts else None)
        split = "fitted" if row.drafts and (batch, tokens) == FITTED else "kept out"
        lines.append(
            f"| {batch} | {tokens:,} | {DRAFT if row.drafts else '–'} | {row.latency_s:.2f} s | {seconds:.2f} s "
            f"| {seconds / row.latency_s - 1:+.0%} | {split} |"
        )
    text = "\n".join(lines)
    publish(text, BEGIN, END, write=options.write)


if __name__ == "__main__":
    main()
