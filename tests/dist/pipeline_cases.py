"""Cases of pipelines: every schedule, alone and with other parallelisms inside its stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tests.dist.cases import Case
from tests.dist.language_jobs import language_job
from tests.dist.tiny_decoder import decoder_job

from gpuwise.job import Job
from gpuwise.strategy import Mesh, Parallelism, Strategy
from gpuwise.strategy.parallelism import CONTEXTS, PIPELINE_SCHEDULES, SINGLE_STAGE_SCHEDULES
from gpuwise.strategy.pipeline import SPLIT_SCHEDULES

MICRO_BATCHES = 8  # of the global batch; 16 for eight ranks
QUICK = ("1f1b", "zbv-zero-bubble")

_clipped = partial(decoder_job, clip_norm=0.1)
_llama = partial(language_job, "deep llama")


def pipelined(
    schedule: str, *, stages: int | None = None, shard: str = "parameters", micro_batches: int = MICRO_BATCHES, **axes: int
) -> Strategy:
    """A strategy over a mesh with these axes, with `micro_batches` of the global batch."""
    mesh = Mesh(**axes)
    stages = (1 if schedule in SINGLE_STAGE_SCHEDULES else 2) if stages is None else stages
    parallelism = Parallelism(pipeline_schedule=schedule, stages_per_rank=stages, shard=shard)
    return Strategy(mesh=mesh, parallelism=parallelism, accumulation=micro_batches // mesh.data_parallel)


def of_layers(schedule: str, ranks: int) -> Callable[[], Job]:
    """A decoder with a block for each stage."""
    return partial(decoder_job, layers=ranks * (1 if schedule in SINGLE_STAGE_SCHEDULES else 2))


def _under_shards(schedule: str) -> Case:
    shard = "gradients" if schedule in SPLIT_SCHEDULES else "parameters"
    name = f"PP, {schedule} × FSDP2{', gradients' if shard == 'gradients' else ''}"
    return Case(name, pipelined(schedule, shard=shard, pp=2, dp_shard=2))


def _with_context(schedule: str, context: str = "gather", *, recompute: str = "none", **axes: int) -> Case:
    shard = "gradients" if schedule in SPLIT_SCHEDULES else "parameters"
    strategy = pipelined(schedule, shard=shard, **axes).but(recompute=recompute)
    others = "".join(f" × {name}" for axis, name in (("dp_shard", "FSDP2"), ("tp", "TP")) if axes.get(axis, 1) > 1)
    name = f"PP, {schedule} × CP, {context}{others}{', recompute' if recompute != 'none' else ''}"
    return Case(name, strategy.but(parallelism=replace(strategy.parallelism, context=context)), _llama)


def _with_tensor(schedule: str, change: str = "", **axes: int) -> Case:
    strategy = pipelined(schedule, **axes)
    if change:
        strategy = strategy.but(parallelism=replace(strategy.parallelism, **{f"{change}_parallel": True}))
    shards = " × FSDP2" if strategy.mesh.dp_shard > 1 else ""
    return Case(f"PP, {schedule} × TP{f' + {change}' if change else ''}{shards}", strategy, _clipped)


PIPELINE_CASES: tuple[Case, ...] = (
    *(Case(f"PP, {s}", pipelined(s, pp=2), default=s in QUICK) for s in PIPELINE_SCHEDULES),
    *(Case(f"PP, {s}", pipelined(s, pp=4), of_layers(s, 4)) for s in PIPELINE_SCHEDULES),
    *(Case(f"PP, {s}", pipelined(s, pp=8, micro_batches=16), of_layers(s, 8)) for s in PIPELINE_SCHEDULES),
    Case("PP, 1f1b, tied embedding, clipped", pipelined("1f1b", pp=2), partial(_clipped, tied=True), default=True),
    *(Case(f"PP, {s}, clipped, average", pipelined(s, pp=2), partial(_clipped, ema_decay=0.9)) for s in QUICK),
    *(Case(f"PP, {s}, recompute", pipelined(s, pp=2).but(recompute="full")) for s in QUICK),
    *(Case(f"PP, {s}, five blocks", pipelined(s, pp=2), partial(decoder_job, layers=5)) for s in QUICK),
    Case("PP, 1f1b, compiled", pipelined("1f1b", pp=2).but(compile=True)),
    Case("PP, 1f1b, LoRA", pipelined("1f1b", pp=2).but(adapter="lora", adapter_rank=4)),
)

PIPELINE_AND_OTHER_CASES: tuple[Case, ...] = (
    *(_under_shards(schedule) for schedule in PIPELINE_SCHEDULES),
    *(Case(f"PP, {s} × replicas", pipelined(s, pp=2, dp_replicate=2), _clipped) for s in PIPELINE_SCHEDULES),
    Case("PP, 1f1b × FSDP2", pipelined("1f1b", pp=2, dp_shard=4), _clipped),
    Case("PP, 1f1b × FSDP2", pipelined("1f1b", pp=4, dp_shard=2), _clipped),
    Case("PP, 1f1b × HSDP", pipelined("1f1b", pp=2, dp_replicate=2, dp_shard=2), _clipped),
    *(_with_context("1f1b", context, pp=2, cp=2) for context in CONTEXTS),
    *(_with_context(s, pp=2, cp=2) for s in ("interleaved-1f1b", "interleaved-zero-bubble", "zbv-zero-bubble")),
    _with_context("1f1b", "ring", recompute="full", pp=2, cp=2),
    *(_with_context(s, pp=2, cp=2, dp_shard=2) for s in ("1f1b", "interleaved-zero-bubble")),
    _with_context("1f1b", pp=2, cp=2, tp=2),
    *(_with_tensor(schedule, pp=2, tp=2) for schedule in ("1f1b", "interleaved-zero-bubble", "zbv-zero-bubble")),
    *(_with_tensor("1f1b", change, pp=2, tp=2) for change in ("sequence", "loss")),
    _with_tensor("1f1b", pp=4, tp=2),
    _with_tensor("1f1b", pp=2, tp=4),
    *(_with_tensor(schedule, pp=2, tp=2, dp_shard=2) for schedule in ("1f1b", "interleaved-1f1b")),
    _with_tensor("1f1b", "sequence", pp=2, tp=2, dp_shard=2),
    Case(
        "PP, 1f1b × TP, tied embedding",
        pipelined("1f1b", pp=2, tp=2),
        partial(_clipped, tied=True),
    ),
)
