"""The strategies of benchmarks.gloo_forecasts: what is forecast for them, and what their ranks take."""

from __future__ import annotations

import statistics
import time
import warnings
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from tests.dist.ranks import on_ranks

from gpuwise.job import Job, checked_batch
from gpuwise.job.models.language import next_token_batch, token_loss
from gpuwise.job.models.llama import Llama, LlamaConfig
from gpuwise.job.models.mixtral import Mixtral, MixtralConfig
from gpuwise.strategy import Mesh, Parallelism, Strategy

WARM_STEPS, STEPS = 2, 5
SEQ_LEN = 128
DENSE = LlamaConfig(vocabulary=2048, width=256, layers=4, heads=4, kv_heads=4, hidden=704)
MIXTURE = MixtralConfig(vocabulary=2048, width=256, layers=4, heads=4, kv_heads=4, hidden=704, experts=4)
ALONE = "one rank"


@dataclass(frozen=True)
class GlooStep:
    """A strategy of the comparison. mixture: whether it trains the mixture of experts."""

    strategy: Strategy
    mixture: bool = False


def _of(*, accumulation: int = 1, mixture: bool = False, micro_batch: int = 4, **settings: Any) -> GlooStep:
    axes = {name: settings.pop(name) for name in tuple(settings) if name in Mesh.__dataclass_fields__}
    parallelism = Parallelism(**settings)
    strategy = Strategy(micro_batch=micro_batch, accumulation=accumulation, mesh=Mesh(**axes), parallelism=parallelism)
    return GlooStep(strategy, mixture)


STRATEGIES = {
    ALONE: _of(),
    "replicas": _of(dp_replicate=2),
    "replicas of four": _of(dp_replicate=4),
    "shards of parameters": _of(dp_shard=2),
    "shards of parameters of four": _of(dp_shard=4),
    "shards of gradients": _of(dp_shard=2, shard="gradients"),
    "shards of optimizer state": _of(dp_shard=2, shard="optimizer", accumulation=2),
    "replicas of shards": _of(dp_replicate=2, dp_shard=2),
    "tensor": _of(tp=2),
    "tensor and sequence": _of(tp=2, sequence_parallel=True),
    "shards and tensor": _of(dp_shard=2, tp=2),
    "pipeline, gpipe": _of(pp=2, pipeline_schedule="gpipe", accumulation=4, micro_batch=2),
    "pipeline, 1f1b": _of(pp=2, accumulation=4, micro_batch=2),
    "pipeline of four, 1f1b": _of(pp=4, accumulation=4, micro_batch=2),
    "context, gathered": _of(cp=2),
    "experts": _of(dp_shard=2, ep=2, mixture=True),
}


def job_of(step: GlooStep) -> Job:
    model, config = (Mixtral, MIXTURE) if step.mixture else (Llama, DENSE)
    return Job(
        partial(model, config),  # type: ignore[arg-type]
        partial(next_token_batch, vocabulary=config.vocabulary, seq_len=SEQ_LEN),
        loss=token_loss,
        seq_len=SEQ_LEN,
        sample_unit="token",
        tokens_per_sample=SEQ_LEN,
    )


def forecasts(names: list[str]) -> dict[str, dict[str, Any]]:
    """Seconds of a step as forecast for this CPU, with the interval and what bounds the step."""
    import gpuwise

    results = {}
    for name in names:
        step, strategy = STRATEGIES[name], STRATEGIES[name].strategy
        given = dict(strategy.parallelism.to_dict())
        forecast = gpuwise.forecast(
            job_of(step),
            on="here",
            precision=strategy.precision,
            micro_batch=strategy.micro_batch,
            accumulate=strategy.accumulation,
            mesh=None if strategy.mesh.devices == 1 else str(strategy.mesh),
            **given,  # type: ignore[typeddict-item]
        )
        seconds = forecast.step_time_s
        bound = {key: round(value, 3) for key, value in forecast.bound.items() if value >= 0.01}
        results[name] = {"seconds": seconds.value, "low": seconds.low, "high": seconds.high, "bound": bound}
    return results


def seconds_of(names: list[str]) -> dict[str, float]:
    """Median seconds of a step of the slowest rank, of each strategy."""
    by_ranks: dict[int, list[str]] = {}
    for name in names:
        by_ranks.setdefault(STRATEGIES[name].strategy.mesh.devices, []).append(name)
    seconds = {}
    for ranks, own in by_ranks.items():
        everyone = on_ranks(ranks, timed, own)
        seconds |= {name: max(rank[index] for rank in everyone) for index, name in enumerate(own)}
    return {name: seconds[name] for name in names}


def timed(names: list[str]) -> list[float]:
    """Median seconds of steps of this rank of torch.distributed, one number a strategy."""
    from gpuwise.hardware.detect import detect_cpu
    from gpuwise.runtime.build.host_memory import keep_freed_memory

    warnings.simplefilter("ignore")
    keep_freed_memory()
    torch.set_num_threads(max(1, detect_cpu().cores // dist.get_world_size()))
    return [_timed(STRATEGIES[name]) for name in names]


def _timed(step: GlooStep) -> float:
    from gpuwise.runtime.build.program import build
    from gpuwise.runtime.parallel.world import make_world

    torch.manual_seed(0)
    world = make_world(step.strategy.mesh, "cpu")
    program = build(replace(job_of(step), name="gloo"), step.strategy, "cpu", world)
    seconds = []
    for _ in range(WARM_STEPS + STEPS):
        batches = [checked_batch(program.job, step.strategy.micro_batch) for _ in range(step.strategy.accumulation)]
        dist.barrier()
        began = time.perf_counter()
        program.step(batches)
        seconds.append(time.perf_counter() - began)
        program.parts.clear()
    return statistics.median(seconds[WARM_STEPS:])
