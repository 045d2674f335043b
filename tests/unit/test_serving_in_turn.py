"""Devices that work one after the other under llama.cpp, against what was published of it."""

from __future__ import annotations

import pytest

from gpuwise.api.devices import device_of
from gpuwise.api.engine_model import EngineModel
from gpuwise.api.serving import serve_plan
from gpuwise.hardware import load_catalog
from gpuwise.serving.engines import engine_of
from gpuwise.serving.formats import format_of
from gpuwise.serving.instance import LoadShape
from gpuwise.serving.lengths import Lengths

pytest.importorskip("torch")
from gpuwise.job import resolve

LOAD = LoadShape(Lengths(1, 512))
# Tokens a second of llama-bench's tg 512 in Q4_K_M: https://github.com/XiongjieDai/GPU-Benchmarks-on-LLM-Inference (May 2024).
PUBLISHED = {
    "llama3-8b": {"rtx-3090": 115.42, "rtx-3090:2": 111.67, "rtx-3090:4": 108.66, "rtx-4090": 130.58, "rtx-4090:2": 124.65},
    "llama3-70b": {"rtx-3090:2": 16.57, "rtx-3090:4": 17.07, "rtx-4090:2": 19.22, "rtx-4090:4": 19.80},
}


@pytest.mark.parametrize("job", PUBLISHED)
def test_a_token_takes_as_long_on_several_cards_as_on_one(job: str):
    engine = engine_of("llama.cpp")
    model = EngineModel(resolve(job), engine, None, format_of("gguf-q4_k_m"), None)
    for name, tokens_per_s in PUBLISHED[job].items():
        device = device_of(name, load_catalog())
        instance = model.instance(device, model.of(device), LOAD)
        low, high = (bound * instance.iteration_s((), 1, 256) for bound in engine.spread)
        assert low < 1 / tokens_per_s < high
        assert instance.iteration_s((), 1, 256) * tokens_per_s == pytest.approx(1, abs=0.25)


def test_several_cards_hold_what_one_does_not():
    plan = serve_plan("llama3-70b", engine="llama.cpp", on="rtx-3090,rtx-3090:2", rate="1/h", input=64, output=64)
    served, fails = sorted(plan.rows, key=lambda row: -row.replicas)
    assert (served.device, served.replicas, fails.replicas) == ("rtx-3090:2", 1, 0)
    assert "are more than" in fails.reason
    assert any(note.kind == "layers-in-turn" for note in plan.assumption_notes)
    # Each card has half of the weights, does half of the work, and draws no more than its limit.
    assert 18e9 < served.weight_bytes < 24e9
    assert served.energy is not None
    assert served.energy.watts.value < 350
