"""Published runs at a fixed concurrency: settings of their launch scripts, and the interval of times to the first token."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.serving.online_settings import OnlineSettings, settings_of_run

from gpuwise.serving.instance import Instance, LoadShape, latencies
from gpuwise.serving.lengths import Lengths
from gpuwise.serving.policy import BatchingPolicy


def test_settings_by_engine_precision_device_and_day():
    run = {"engine": "vllm", "family": "minimax-m2.5", "format": "fp8", "device": "B200 SXM"}
    assert settings_of_run(**run, measured="2026-04-03") == OnlineSettings(memory_share=0.95)
    assert settings_of_run(**run, measured="2026-04-08") == OnlineSettings(cache="fp8", batched_prompts=2)
    assert settings_of_run(**{**run, "device": "H100 SXM"}, measured="") == OnlineSettings(sequences=256)
    sglang = {"engine": "sglang", "family": "qwen3.5-397b-a17b", "device": "B200 SXM", "measured": ""}
    assert settings_of_run(**sglang, format="").cache == ""
    assert settings_of_run(**sglang, format="fp8-block").cache == "fp8"
    assert settings_of_run(**{**sglang, "family": "qwen3-32b"}, format="fp8-block") == OnlineSettings()
    assert OnlineSettings(batched_prompts=2).tokens(8192) == 16_384
    assert OnlineSettings().tokens(8192) is None


def test_iterations_before_a_request_is_seen():
    few = {"read": 1024, "written": 1024, "devices": 4}
    assert OnlineSettings(polled=(10, 30)).iterations_waited(**few, concurrency=4) == 5
    assert OnlineSettings(polled=(10, 30)).iterations_waited(**few, concurrency=16) == 15
    assert OnlineSettings(waited=20).iterations_waited(**{**few, "devices": 8}, concurrency=4) == 0
    assert OnlineSettings(waited=20).iterations_waited(**few, concurrency=0) == 20
    concurrency, rng = 256, np.random.default_rng(0)  # brute force: the first to come opens a window for all that follow in it
    arrivals, seen, waits = np.cumsum(rng.exponential(1024 / concurrency, 200_000)), -np.inf, []
    for arrival in arrivals:
        seen = arrival + 20 if arrival > seen else seen
        waits.append(seen - arrival)
    assert OnlineSettings(waited=20).iterations_waited(**few, concurrency=concurrency) == pytest.approx(
        np.mean(waits), rel=0.01
    )


def test_the_interval_of_first_tokens_is_as_wide_as_the_engine_says():
    policy = BatchingPolicy(batched_tokens=512, sequences=8, cache_tokens=1 << 20, block_tokens=16)
    instance = Instance(lambda chunks, sequences, past: 0.01, policy, (0.9, 1.1), first_token_spread=(0.5, 2.0))
    outcomes = instance.outcomes(LoadShape(Lengths(100, 20)).at(0.5, count=200))
    narrow, wide = latencies(outcomes), latencies(outcomes, instance.first_token_spread)
    first = wide["ttft_s"].p50
    assert (first.low, first.high) == pytest.approx((0.5 * first.value, 2 * first.value))
    assert narrow["ttft_s"].p50.high == pytest.approx(1.1 * first.value, rel=0.01)
    assert wide["tpot_s"] == narrow["tpot_s"]
    assert latencies(outcomes, (0.99, 1.01)) == narrow  # never narrower than iterations make it
