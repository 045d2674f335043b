"""The steps of published cases, recorded on the virtual accelerator and kept in a cache folder.

Recording needs PyTorch, transformers or timm.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from benchmarks.support.published_case import Case
from gpuwise.strategy import Mesh, Strategy
from gpuwise.trace import Trace, TraceFamily, load, save
from gpuwise.trace.tables import COLUMNS, KINDS, OperationSequence, Storages

_UPDATE = KINDS.index("optimizer")


def family_of(case: Case, cache: Path) -> TraceFamily:
    """The case's job recorded for any micro-batch (compiled, or a loop over images: for its own), from the cache where it is
    there."""
    strategy, micro_batch, path = _recording(case, cache)
    if not path.exists():
        from benchmarks.support.published_jobs import job_of
        from gpuwise.tracing.family import trace_family

        job = job_of(case.job, dict(case.size), half=case.half, fast_norm=case.fast_norm)
        family = trace_family(job, strategy.but(micro_batch=micro_batch, accumulation=1, mesh=Mesh()))
        cache.mkdir(parents=True, exist_ok=True)
        save(family, path)
    return _load(path)


def cached(case: Case, cache: Path) -> bool:
    """Whether the case's job is recorded already."""
    return recording_path(case, cache).exists()


def recording_path(case: Case, cache: Path) -> Path:
    """Where the recording of the case's job is kept."""
    return _recording(case, cache)[-1]


def _recording(case: Case, cache: Path) -> tuple[Strategy, int, Path]:
    """What the case's recording is made under, at which micro-batch, and where it is kept."""
    from gpuwise.trace.parallel.variant import recorded_as

    strategy = recorded_as(case.strategy)
    loops = case.job.startswith("rcnn-")  # over images, so that a step of each size is a program of its own
    micro_batch = strategy.micro_batch if strategy.compile or loops else 2
    size = "-".join(f"{name}{value}" for name, value in case.size)
    kind = (
        "-half" * case.half
        + "-fast_norm" * case.fast_norm
        + f"-compiled{micro_batch}" * strategy.compile
        + "-channels_last" * strategy.channels_last
        + f"-of{micro_batch}" * loops
    )
    name = f"{case.job}-{size}-{strategy.precision}-{strategy.recompute}-{strategy.mode}{kind}.npz"
    return strategy, micro_batch, cache / name.replace("/", "_").replace(":", "_")


def step_of(case: Case, cache: Path) -> Trace:
    """What one device of the case did in the time that was measured. Its memory is only right where `update` is."""
    strategy = case.strategy
    trace = family_of(case, cache).at(micro_batch=strategy.micro_batch, accumulation=strategy.accumulation)
    trace = replace(trace, header=replace(trace.header, strategy=trace.header.strategy.but(precision=strategy.precision)))
    if case.half:
        trace = replace(trace, operations=trace.operations.in_fp16())
    if case.update_bytes:
        trace = _with_updates_of(trace, case.update_bytes)
    if case.update or strategy.mode == "infer":
        return trace
    # The second micro-batch, as if it were the only one: it adds to gradients that are there, and no update follows it.
    second = trace.sequence.micro_step == 1
    columns = {field.name: getattr(trace.sequence, field.name)[second] for field in fields(OperationSequence)}
    columns["micro_step"] = np.zeros_like(columns["micro_step"])
    nothing = Storages(*(np.zeros(0, dtype=getattr(trace.storages, field.name).dtype) for field in fields(Storages)))
    return replace(trace, sequence=OperationSequence(**columns), storages=nothing)


def _with_updates_of(trace: Trace, bytes_a_parameter: int) -> Trace:
    """The step with fused updates that move so many bytes; as it is where its updates are not fused."""
    operations = trace.operations
    fused = np.array(
        ["_fused_" in name and kind == _UPDATE for name, kind in zip(operations.name, operations.kind, strict=True)]
    )
    columns = [COLUMNS.index(name) for name in ("bytes_read", "bytes_written")]
    recorded = (trace.counts("optimizer") * fused) @ operations.values[:, columns].sum(axis=1)
    if not recorded:
        return trace
    values, moved = operations.values.copy(), bytes_a_parameter * trace.header.trainable_parameters
    values[np.ix_(fused, columns)] = np.round(values[np.ix_(fused, columns)] * (moved / recorded))
    return replace(trace, operations=replace(operations, values=values))


@lru_cache(maxsize=256)
def _load(path: Path) -> TraceFamily:
    family = load(path)
    assert isinstance(family, TraceFamily)
    return family
