"""Published serving runs, and what gpuwise forecasts of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.serving.models import CONFIGS, generation_of
from gpuwise.api.devices import device_of
from gpuwise.hardware import load_catalog
from gpuwise.serving.continuous import serve
from gpuwise.serving.engine_costs import EngineCosts
from gpuwise.serving.engines import engine_of
from gpuwise.serving.policy import BatchingPolicy
from gpuwise.serving.requests import Requests, requests
from gpuwise.serving.served import Served
from gpuwise.serving.step_time import EngineStep

# Names of the tables -> ids of the catalog. The A100s' memory is unstated; 70 B models ran on four of them, so it is 40 GB.
DEVICES = {
    "A100 SXM 40GB": "a100-40gb-sxm",
    "H100 SXM": "h100-80gb-sxm",
    "GH200": "gh200-96gb",
    "RTX 4090": "rtx-4090",
    "RTX PRO 6000": "rtx-pro-6000-blackwell-server",
}
ENGINES = {"vLLM": "vllm-2024", "TensorRT-LLM": "tensorrt-llm"}


@dataclass(frozen=True)
class Run:
    """One published run.

    Attributes:
        table: name of its table.
        engine: name of the engine, of gpuwise.serving.engines.
        device: name of the device in the tables.
        family: of the model.
        tp: devices that share its layers.
        load: its requests.
        policy: how the engine formed batches.
        measured: seconds by name: "end_s" of the last token, or means and percentiles.
    """

    table: str
    engine: str
    device: str
    family: str
    tp: int
    load: Requests
    policy: BatchingPolicy
    measured: dict[str, float]

    def served(self, costs: EngineCosts) -> Served:
        """The run as forecast, where the engine adds this to an iteration."""
        return serve(self.load, _step(self.device, self.family, self.tp).with_costs(costs), self.policy)


@lru_cache
def _step(device: str, family: str, tp: int) -> EngineStep:
    """Seconds of iterations without what the engine adds."""
    cluster = device_of(f"{DEVICES[device]}:{tp}", load_catalog()).cluster
    return EngineStep(generation_of(family, tp=tp), cluster)


def generation_runs(reference: Path) -> Iterator[Run]:
    """Batches that start together and read and write equally long texts, on one device."""
    table = pd.read_csv(reference / "serving" / "generation.csv")
    plain = (table.devices == 1) & (table.precision == "bf16/fp16") & table.variant.isna() & table.suspect.isna()
    known = table.family.isin(CONFIGS) & table.device.isin(DEVICES) & table.engine.isin(ENGINES)
    for row in table[plain & known].itertuples():
        engine = engine_of(ENGINES[row.engine])
        generation = generation_of(row.family)
        capacity = load_catalog().chip(DEVICES[row.device]).usable_memory_bytes
        assert capacity is not None
        batch, read, written = int(row.batch_size), int(row.input_tokens), int(row.output_tokens)
        policy = engine.policy(
            generation, capacity_bytes=capacity, outside_bytes=500_000_000, longest=read + written, sequences=max(batch, 1)
        )
        load = requests(np.zeros(batch), np.full(batch, read), np.full(batch, written))
        yield Run("generation", engine.name, row.device, row.family, 1, load, policy, {"end_s": float(row.latency_s)})


def request_runs(reference: Path) -> Iterator[Run]:
    """Runs of vLLM 0.19 with every request's times."""
    table = pd.read_csv(reference / "serving" / "requests.csv")
    for (device, family), rows in table.groupby(["device", "family"]):
        rows = rows.sort_values("arrival_s").reset_index(drop=True)
        tp, first = int(rows.tp[0]), rows.iloc[0]
        generation = generation_of(family, tp=tp)
        capacity = load_catalog().chip(DEVICES[device]).usable_memory_bytes
        assert capacity is not None
        engine = engine_of("vllm")
        policy = engine.policy(
            generation,
            capacity_bytes=capacity,
            outside_bytes=700_000_000,
            longest=4096,
            sequences=int(first.max_num_seqs),
            batched_tokens=2048,  # as its authors set it
        )
        tpot_s = (rows.end_s - rows.ttft_s) / (rows.output_tokens - 1)
        measured = {
            "ttft_mean_s": rows.ttft_s.mean(),
            "ttft_p99_s": rows.ttft_s.quantile(0.99),
            "tpot_mean_s": tpot_s.mean(),
            "tpot_p99_s": tpot_s.quantile(0.99),
            "latency_mean_s": rows.end_s.mean(),
            "latency_p99_s": rows.end_s.quantile(0.99),
        }
        load = requests(rows.arrival_s.to_numpy(), rows.input_tokens.to_numpy(), rows.output_tokens.to_numpy())
        yield Run("requests", engine.name, device, family, tp, load, policy, measured)


def forecast_of(served: Served, name: str) -> float:
    """The figure of a run by its name in Run.measured."""
    if name == "end_s":
        return float(np.nanmax(served.end_s))
    column, kind, _ = name.split("_")
    values = getattr(served, f"{column}_s")
    values = values[~np.isnan(values)]
    return float(values.mean() if kind == "mean" else np.quantile(values, 0.99))
