"""The steps of Megatron's models on one device, recorded for any micro-batch and kept in a cache folder."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from benchmarks.support.megatron_cases import MegatronCase
from benchmarks.support.megatron_kernels import with_megatron_kernels
from benchmarks.support.megatron_shape import GptShape
from gpuwise.strategy import Strategy
from gpuwise.trace import Trace, TraceFamily, load, save


def whole_step(case: MegatronCase, cache: Path) -> Trace:
    """The step of a case's whole model on one device."""
    micro_batch = case.strategy.micro_batch
    fused = case.shape.fused_softmax(micro_batch=micro_batch, tp=case.strategy.mesh.tp)
    step = _step(case.shape, case.strategy.recompute, micro_batch, cache, fused)
    return step.with_accumulation(case.strategy.accumulation)


@lru_cache(maxsize=8)
def _step(shape: GptShape, recompute: str, micro_batch: int, cache: Path, fused: bool) -> Trace:
    trace = _family(shape, recompute, cache, fused).at(micro_batch=micro_batch)
    return with_megatron_kernels(trace, fused=fused)


@lru_cache(maxsize=8)
def _family(shape: GptShape, recompute: str, cache: Path, fused: bool) -> TraceFamily:
    path = cache / f"{shape.name}-{recompute}{'' if fused else '-unfused'}.npz"
    if not path.exists():
        from benchmarks.support.megatron_model import gpt_job
        from gpuwise.tracing.family import trace_family

        strategy = Strategy(precision="bf16", recompute="full" if recompute == "full" else "none")
        family = trace_family(gpt_job(shape, core_again=recompute == "selective", fused=fused), strategy)
        cache.mkdir(parents=True, exist_ok=True)
        save(family, path)
    family = load(path)
    assert isinstance(family, TraceFamily)
    return family
