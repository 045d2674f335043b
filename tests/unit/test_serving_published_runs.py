"""Published runs of engines: what their rows say and leave open."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from benchmarks.serving.disaggregated import NETWORKS, apart_runs, scored
from benchmarks.serving.instances import DEVICES
from benchmarks.serving.online import online_runs
from benchmarks.serving.request_rates import figures_of, rate_runs, refusals, settings_of

from gpuwise.serving.continuous import serve
from gpuwise.serving.policy import BatchingPolicy
from gpuwise.serving.requests import requests
from gpuwise.serving.sharing import Degrees

ONLINE = {
    "device": "GB200",
    "precision": "fp4",
    "gemm_precision": "nvfp4",
    "moe_precision": "nvfp4",
    "engine": "trtllm",
    "family": "qwen3-32b",
    "mode": "agg",
    "input_tokens": 15_000,
    "output_tokens": 500,
    "concurrency": 448,
    "batch_size": 14,
    "tp": 2,
    "attention_dp": 1,
    "moe_tp": 1,
    "moe_ep": 1,
    "ttft_ms": 746.4,
    "tpot_ms": 13.7,
    "measured": "2026-03-06",
}
APART = ONLINE | {"mode": "disagg", "concurrency": None}
APART |= {f"prefill_{name}": 1 for name in ("num_workers", "batch", "tp", "attention_dp", "moe_tp", "moe_ep")}
APART |= {f"decode_{name}": 1 for name in ("num_workers", "batch", "tp", "attention_dp", "moe_tp", "moe_ep")}


def table(folder: Path, name: str, rows: list[dict[str, object]]) -> Path:
    (folder / "serving").mkdir()
    with open(folder / "serving" / name, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(dict.fromkeys(column for row in rows for column in row)))
        writer.writeheader()
        writer.writerows(rows)
    return folder


def test_instances_that_share_a_run_have_their_part_of_its_requests(tmp_path):
    shared = ONLINE | {"family": "minimax-m2.5", "engine": "vllm", "tp": 4, "attention_dp": 4, "moe_ep": 4, "concurrency": 256}
    rows = [ONLINE, ONLINE | {"concurrency": None, "batch_size": 144}, shared | {"batch_size": 64}]
    runs = list(online_runs(table(tmp_path, "engines_online.csv", rows)))
    assert [run.concurrency for run in runs] == [14, 144, 256]  # one of 32; alone; replicas of attention, in one instance
    assert runs[2].degrees == Degrees(1, 1, 4, 4)


def test_instances_apart_by_their_numbers(tmp_path):
    known = APART | {"prefill_num_workers": 40, "decode_num_workers": 6, "decode_batch": 92, "decode_tp": 4}
    unknown = APART | {"prefill_num_workers": None, "decode_num_workers": None, "decode_batch": None, "concurrency": 8}
    runs = list(apart_runs(table(tmp_path, "engines_online.csv", [known, unknown, ONLINE])))
    assert [(run.readers, run.writers, run.clients) for run in runs] == [(40, 6, 552), (0, 0, 8)]
    assert (runs[0].reading, runs[0].run.degrees) == (Degrees(), Degrees(4))
    rows, reasons = scored(runs[1:])
    assert rows.empty
    assert reasons == ["the table does not say how many instances there were"]
    assert set(NETWORKS) <= set(DEVICES)


def test_settings_of_both_forms():
    assert settings_of("max_num_seqs=512;chunked_prefill=TRUE;8xH100 1FP8-meta") == {
        "max_num_seqs": "512",
        "chunked_prefill": "TRUE",
    }
    assert settings_of("--ep-size 4 --tp-size 4") == {"ep-size": "4", "tp-size": "4"}
    assert settings_of("--async-scheduling  --max-num-batched-tokens 8192") == {
        "async-scheduling": "",
        "max-num-batched-tokens": "8192",
    }
    assert settings_of("") == {}


RATE = {
    "device": "H100 SXM",
    "devices": 1,
    "precision": "as published",
    "engine": "vllm",
    "engine_version": "0.11.0",
    "tp": 1,
    "settings": None,
    "requests": 10,
    "request_rate_per_s": float("inf"),
    "input_tokens_mean": 1000.0,
    "output_tokens_mean": 10.0,
    "output_tokens_per_s": 50.0,
    "mean_ttft_ms": 100.0,
    "mean_tpot_ms": 10.0,
    "family": "qwen3-32b",
}


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([RATE | {"engine": "openvino-model-server"}], "prompts' lengths"),
        ([RATE | {"settings": "max_num_seqs=512;scheduler_steps=10"}], "several steps"),
        ([RATE | {"settings": "--pp-size 4"}], "stages of a pipeline"),
        ([RATE, RATE | {"device": "A100 SXM 80GB"}], "under two devices"),
        ([RATE | {"family": "a-model-of-nobody"}], "no such model"),
    ],
)
def test_what_a_row_leaves_open_is_a_reason(rows, reason, tmp_path):
    runs = list(rate_runs(table(tmp_path, "request_rates.csv", rows)))
    assert all(reason in run.reason and run.instance is None for run in runs)


def test_figures_are_means_and_tokens_over_the_whole_run():
    policy = BatchingPolicy(batched_tokens=100, sequences=1, cache_tokens=1000)
    load = requests(np.zeros(2), np.full(2, 100), np.array([3, 5]))
    figures = figures_of(serve(load, lambda chunks, sequences, past: 1.0, policy))
    assert figures == {"ttft_s": pytest.approx((1 + 4) / 2), "tpot_s": pytest.approx(1.0), "tokens/s": pytest.approx(8 / 8)}
    assert refusals(["a", "b", "a"]).splitlines()[2:] == ["| 2 | a |", "| 1 | b |"]
