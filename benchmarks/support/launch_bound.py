"""Published steps whose host takes longer to launch them than the device to run them, as a user of gpuwise would forecast them.

Inference of few images or tokens (published_latency, on machines that its pages name), small vision models on an RTX 4090
(timm, published_timm), and GPT of 0.2B to 1.3B with checkpointed blocks on 2 to 8 A100s (VIA-Research/vTrain): here the same
sizes in gpuwise's own GPT-2, its ranks composed. These last were not measured as steps: they are sums of traced layers
(benchmarks.support.composed_steps), which models of one width share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.fit.split import kept_out_model
from benchmarks.support.megatron_cases import MegatronCase, megatron_cases
from benchmarks.support.megatron_shape import GptShape
from benchmarks.support.published_case import Case
from benchmarks.support.published_latency import latency_cases
from benchmarks.support.published_recordings import step_of
from benchmarks.support.published_timm import timm_cases
from gpuwise.cost.forecast import Forecast
from gpuwise.cost.parameters import Parameters
from gpuwise.cost.price import price_ranks
from gpuwise.cost.rank_time import rank_times
from gpuwise.errors import GpuwiseError
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.strategy import Parallelism, Strategy
from gpuwise.trace import Trace, TraceFamily, load, save
from gpuwise.trace.parallel.communication import Communication
from gpuwise.trace.parallel.ranks import RankStep, rank_steps

LAUNCH_BOUND = 0.3  # share of the step for launches, kernels' floors among it
_SMALL = ("tinynet_e", "efficientvit_m1", "efficientvit_m2", "efficientvit_m3")
_HOSTS = {"a100": "DGX A100", "v100": "DGX-1", "rtx": "desktop"}


@dataclass(frozen=True)
class LaunchedStep:
    """A measured step and the ranks that run it. host: the machine; model: what it is kept out by."""

    host: str
    model: str
    cluster: Cluster
    strategy: Strategy
    ranks: tuple[RankStep, ...]
    seconds: float

    @property
    def kept_out(self) -> bool:
        return kept_out_model(self.model)

    @property
    def trace(self) -> Trace:
        """Of the first rank."""
        return self.ranks[0].trace

    def host_over_kernels(self, figures: Parameters) -> float:
        """Seconds of the host over those of the kernels of the first rank."""
        rank = rank_times(self.ranks[:1], self.cluster, strategy=self.strategy, parameters=figures)[0]
        return rank.host_s / float(self.trace.counts() @ rank.times.device_s)

    def forecast(self, figures: Parameters) -> Forecast:
        times = rank_times(self.ranks, self.cluster, strategy=self.strategy, parameters=figures)
        return price_ranks(times, self.cluster, strategy=self.strategy, parameters=figures, replay=False)


def launched_steps(folder: Path, cache: Path) -> Iterator[LaunchedStep]:
    """All steps; those that gpuwise refuses are left out."""
    catalog = Catalog()
    small = [c for c in timm_cases(folder, channels_last=True) if c.chip_id == "rtx-4090" and c.job[5:] in _SMALL]
    for case in (*latency_cases(folder), *small):
        yield _on_one_gpu(case, cache, catalog)
    for megatron in megatron_cases(folder):
        if megatron.group != "one machine":
            continue
        try:
            yield _on_several(megatron, cache, catalog)
        except GpuwiseError:
            continue


def errors(steps: Iterator[LaunchedStep], figures: Parameters) -> pd.DataFrame:
    """One row a step: log(measured / forecast), whether the interval holds it, and the share of launches."""
    rows = []
    for step in steps:
        result = step.forecast(figures)
        time = result.step_time_s
        rows.append(
            {
                "host": step.host,
                "model": step.model,
                "kept_out": step.kept_out,
                "micro_batch": step.strategy.micro_batch,
                "tp": step.strategy.mesh.tp,
                "seconds": step.seconds,
                "forecast": time.value,
                "log_error": np.log(step.seconds / time.value),
                "inside": time.low <= step.seconds <= time.high,
                "launch": result.bound["launch"],
                "host_over_kernels": step.host_over_kernels(figures),
            }
        )
    return pd.DataFrame(rows)


def _on_one_gpu(case: Case, cache: Path, catalog: Catalog) -> LaunchedStep:
    host = _HOSTS[case.chip_id.partition("-")[0]]
    rank = RankStep("", step_of(case, cache), Communication())
    return LaunchedStep(host, case.model, Cluster(catalog.chip(case.chip_id)), case.strategy, (rank,), case.seconds)


def _on_several(case: MegatronCase, cache: Path, catalog: Catalog) -> LaunchedStep:
    strategy = case.strategy.but(parallelism=Parallelism())
    family = _gpt(case.shape, cache)
    micro_batch, accumulation = strategy.micro_batch, strategy.accumulation
    ranks = rank_steps(lambda _: family.at(micro_batch=micro_batch, accumulation=accumulation), strategy)
    cluster = case.cluster(catalog)
    return LaunchedStep("vTrain", case.shape.architecture, cluster, strategy, ranks, case.seconds)


@lru_cache(maxsize=32)
def _gpt(shape: GptShape, cache: Path) -> TraceFamily:
    """GPT-2 of gpuwise in these sizes with all blocks checkpointed, in 16 bits."""
    path = cache / f"gpt2-{shape.hidden}x{shape.layers}-{shape.vocabulary}-seq_len{shape.seq_len}-bf16-full.npz"
    if not path.exists():
        from gpuwise.job import Job
        from gpuwise.job.models.gpt2 import Gpt2, Gpt2Config
        from gpuwise.job.models.language import next_token_batch, token_loss
        from gpuwise.tracing.family import trace_family

        config = Gpt2Config(shape.vocabulary, shape.seq_len, shape.hidden, shape.layers, shape.heads)
        job = Job(
            partial(Gpt2, config),
            partial(next_token_batch, vocabulary=config.vocabulary, seq_len=shape.seq_len),
            token_loss,
            optimizer="adamw",
            name=path.stem,
            sample_unit="token",
            tokens_per_sample=shape.seq_len,
            seq_len=shape.seq_len,
        )
        cache.mkdir(parents=True, exist_ok=True)
        save(trace_family(job, Strategy(precision="bf16", recompute="full")), path)
    family = load(path)
    assert isinstance(family, TraceFamily)
    return family
