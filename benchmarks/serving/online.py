"""Published runs at a fixed concurrency (engines_online.csv), and what gpuwise forecasts of them.

Requests are those of InferenceX's client: ten a slot, lengths between 0.8 and 1 of the nominal ones. Runs of other lengths than
its three, or whose precision is not stated, are NVIDIA's; those with SGLang have TTFTs of requests of equal lengths, which come
in waves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from benchmarks.serving.instances import parts_of
from benchmarks.serving.models import CONFIGS
from benchmarks.serving.online_settings import OnlineSettings, settings_of_run
from gpuwise.errors import GpuwiseError
from gpuwise.serving.continuous import serve
from gpuwise.serving.engine_costs import EngineCosts
from gpuwise.serving.engines import engine_of
from gpuwise.serving.requests import Requests, requests
from gpuwise.serving.served import Served
from gpuwise.serving.sharing import Degrees

ENGINES = {"vllm": "vllm", "trtllm": "tensorrt-llm", "sglang": "sglang"}
FORMATS = {"fp8": "fp8", "fp8_block": "fp8-block", "nvfp4": "nvfp4", "int4_wo": "int4"}
FIGURES = ("ttft_s", "tpot_s", "end_s")
A_SLOT, SHORTEST = 10, 0.8
FIRST_AHEAD = (0, 14)  # version of vLLM


@dataclass(frozen=True)
class OnlineRun:
    """One published run at a fixed concurrency.

    Attributes:
        row: its row in the table.
        engine, device, family: names, of gpuwise.serving.engines and of the tables.
        degrees: how the devices share the model.
        format: of weights; "" for bf16.
        settings: what the table does not state.
        concurrency: requests at once of one instance.
        read, written: nominal tokens.
        ttft_s, tpot_s: as measured.
        varied: whether lengths differ.
    """

    row: int
    engine: str
    device: str
    family: str
    degrees: Degrees
    format: str
    settings: OnlineSettings
    concurrency: int
    read: int
    written: int
    ttft_s: float
    tpot_s: float
    varied: bool

    @property
    def end_s(self) -> float:
        """Measured seconds of a whole answer."""
        return self.ttft_s + (self.written - 1) * self.tpot_s

    def load(self) -> Requests:
        """The requests, in the order in which clients send them."""
        rng, count = np.random.default_rng(0), A_SLOT * self.concurrency
        least = SHORTEST if self.varied else 1.0
        lengths = (rng.integers(int(least * most), most + 1, count) for most in (self.read, self.written))
        return requests(np.zeros(count), *lengths)

    def served(self, costs: EngineCosts | None = None) -> Served:
        """The run as forecast, where the engine adds this to an iteration; None (default): the engine's own."""
        settings = self.settings
        step, policy = parts_of(
            self.engine,
            self.device,
            self.family,
            self.degrees,
            self.format,
            cache=settings.cache,
            longest=self.read + self.written,
            sequences=min(self.concurrency, settings.sequences or self.concurrency),
            batched_tokens=settings.tokens(self.read),
            memory_share=settings.memory_share,
        )
        costs = costs or engine_of(self.engine).costs
        whole = settings.whole and self.read <= policy.batched_tokens  # a server that splits none refuses longer ones
        policy = replace(policy, request_s=costs.request_s, whole=whole, ahead=settings.ahead)
        step = step.with_costs(costs)
        waited = settings.iterations_waited(
            read=self.read, written=self.written, devices=self.degrees.devices, concurrency=self.concurrency
        )
        if waited:  # in iterations of a token each
            at_once = serve(self.load(), step, policy, concurrency=self.concurrency)
            policy = replace(policy, request_s=costs.request_s + waited * float(np.nanmedian(at_once.tpot_s)))
        return serve(self.load(), step, policy, concurrency=self.concurrency)


def online_runs(reference: Path) -> Iterator[OnlineRun]:
    """The aggregated runs."""
    table = pd.read_csv(reference / "serving" / "engines_online.csv")
    for row in table[(table["mode"] == "agg") & table.family.isin(CONFIGS)].itertuples():
        name = row.gemm_precision if row.gemm_precision == row.gemm_precision else ""
        name = row.moe_precision if row.moe_precision == "fp8_block" else name
        yield OnlineRun(
            row=row.Index,
            engine=ENGINES[row.engine],
            device=row.device,
            family=row.family,
            degrees=_degrees(row),
            format=FORMATS.get(name, ""),
            settings=replace(
                settings_of_run(
                    engine=ENGINES[row.engine],
                    family=row.family,
                    format=FORMATS.get(name, ""),
                    device=row.device,
                    measured=row.measured if row.measured == row.measured else "",
                ),
                ahead=row.engine == "vllm" and schedules_ahead(getattr(row, "engine_version", "")),
            ),
            concurrency=_of_one_instance(row),
            read=int(row.input_tokens),
            written=int(row.output_tokens),
            ttft_s=row.ttft_ms / 1e3,
            tpot_s=row.tpot_ms / 1e3,
            varied=row.engine != "sglang" or row.precision == row.precision,
        )


def schedules_ahead(version: object) -> bool:
    """Whether vLLM of this version puts a batch together while the one before it runs (vllm-project/vllm#27614): from 0.14 on
    by default, as in the nightly builds here, of 2026."""
    if not isinstance(version, str) or not version:
        return False
    if version.startswith("nightly"):
        return True
    return tuple(int(part) for part in version.split(".")[:2]) >= FIRST_AHEAD


def _of_one_instance(row: NamedTuple) -> int:
    """Requests at once of one instance. `batch_size` is that of a replica of attention: where `concurrency` is several times as
    many, several instances shared it (480 requests on 6 decoding instances of batch 80 among the disaggregated runs); where it
    is missing, there was one."""
    replicas = row.attention_dp if row.attention_dp > 1 else 1
    return int(row.concurrency) if row.batch_size != row.batch_size else int(row.batch_size * replicas)


def _degrees(row: NamedTuple) -> Degrees:
    """The devices of a run. InferenceX names a number of devices, how many of them share experts, and whether attention is
    replicated; where the table multiplied those with each other, they are taken apart again."""
    tp, dp, expert_tp, ep = (
        max(1, int(value)) if value == value else 1 for value in (row.tp, row.attention_dp, row.moe_tp, row.moe_ep)
    )
    if dp > 1:
        return Degrees(max(1, tp // dp), 1, tp, dp)
    return (
        Degrees(expert_tp, 1, ep)
        if ep > 1 and tp == expert_tp * ep and expert_tp > 1 and tp > 8
        else Degrees(tp, expert_tp, ep)
    )


def forecast_of(run: OnlineRun, costs: EngineCosts | None = None) -> dict[str, float]:
    """Mean seconds by the names of FIGURES; NaN where gpuwise does not answer. Equal runs are forecast once."""
    return _forecast_of(replace(run, row=0, ttft_s=0.0, tpot_s=0.0), costs)


@lru_cache(maxsize=4096)
def _forecast_of(run: OnlineRun, costs: EngineCosts | None) -> dict[str, float]:
    try:
        served = run.served(costs)
    except GpuwiseError:
        return dict.fromkeys(FIGURES, np.nan)
    ttft_s, tpot_s = float(np.nanmean(served.ttft_s)), float(np.nanmean(served.tpot_s))
    return {"ttft_s": ttft_s, "tpot_s": tpot_s, "end_s": ttft_s + (run.written - 1) * tpot_s}
