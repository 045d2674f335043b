"""The rows of a Recorder, put together as a Trace."""

from __future__ import annotations

from math import gcd

import numpy as np
import torch

from gpuwise.job import Job, repeated_blocks
from gpuwise.notes import Note, of_sentence
from gpuwise.notes.note import STATED
from gpuwise.runtime.build.adapters import parameter_count
from gpuwise.runtime.build.program import Program
from gpuwise.runtime.parallel.experts_packed import count_of, packed_experts
from gpuwise.strategy import Strategy
from gpuwise.strategy.pipeline import stages_of_rank
from gpuwise.trace import BEFORE, CATEGORIES, Header, Loading, Operations, OperationSequence, Storages, Trace, Waits
from gpuwise.trace.header import RECORDED
from gpuwise.tracing.kernels import temporaries
from gpuwise.tracing.recorder import BACKWARD, FORWARD, RECOMPUTE, Recorder
from gpuwise.tracing.step import MANY, repeats_micro_batch
from gpuwise.tracing.storage_table import StorageRow


def to_trace(job: Job, strategy: Strategy, program: Program, recorder: Recorder, *, target: str, identity: str) -> Trace:
    """The step recorded last. identity: the job's fingerprint."""
    length = len(recorder.rows)
    operation, module, phase, micro_step, stream = np.array(recorder.rows, dtype=np.int32).reshape(-1, 5).T
    operations = list(recorder.operations)
    rows = sorted((row for row in recorder.storages.rows if _is_used(row, length)), key=_order)
    waits = np.array(recorder.streams.waits, dtype=np.int32).reshape(-1, 3)
    categories = [_category(row, phase, length) for row in rows]
    gradients = [row for row, name in zip(rows, categories, strict=True) if name == "gradient"]
    parameters, world = list(program.model.parameters()), program.world
    sizes = {"micro_batch": strategy.micro_batch}
    sizes |= {name: value for name in ("seq_len", "image_size") if (value := getattr(job, name)) is not None}
    experts = {} if world is not None else {path: count_of(module) for path, module in packed_experts(program.model)}
    workspaces = temporaries.notes(row.name for row in operations) if target != "cpu" else ()
    header = Header(
        job=job.name,
        fingerprint=identity,
        sizes=sizes,
        strategy=strategy.but(
            accumulation=1 if world is None else strategy.accumulation, optimizer=_optimizer_name(job, strategy)
        ),
        parameters=sum(parameter_count(p) for p in parameters),
        trainable_parameters=sum(parameter_count(p) for p in parameters if p.requires_grad),
        sample_unit=job.sample_unit,
        units_per_sample=job.tokens_per_sample or 1,
        target=target,
        torch_version=torch.__version__.split("+")[0],
        blocks=_block_paths(program),
        assumption_notes=(*map(_stated, job.assumptions), *recorder.answers.notes, *workspaces),
        gradient_shapes=tuple(row.gradient_shape for row in gradients if world is None),
        averages=program.average is not None,
        own_step=program.own_step is not None,
        rank=0 if world is None else world.rank,
        stages=_stages(program),
        groups=tuple(recorder.groups.groups),
        updated=recorder.modules.updated,
        expert_modules=tuple(experts),
        experts=gcd(*experts.values()),
        micro_batches=RECORDED if world is None else MANY if repeats_micro_batch(strategy) else 0,
    )
    return Trace(
        header=header,
        operations=Operations.of_rows(operations),
        sequence=OperationSequence(
            operation, module, phase.astype(np.int8), micro_step.astype(np.int8), stream.astype(np.int8)
        ),
        storages=Storages(
            size_bytes=np.array([row.size_bytes for row in rows], dtype=np.int64),
            category=np.array([CATEGORIES.index(name) for name in categories], dtype=np.int8),
            module=np.array([row.module for row in rows], dtype=np.int32),
            born=np.array([row.born for row in rows], dtype=np.int32),
            died=np.array([length if row.died is None else row.died for row in rows], dtype=np.int32),
            stream=np.array([row.stream for row in rows], dtype=np.int8),
        ),
        modules=tuple(recorder.modules.index_of),
        waits=Waits(*waits.T) if len(waits) else Waits(),
        # A rank gets its weights from others in ways that are not recorded.
        loading=recorder.storages.loading if world is None else Loading(),
    ).check()


def _stages(program: Program) -> tuple[int, ...]:
    """The pipeline's stages of the program's rank."""
    world, strategy = program.world, program.strategy
    if world is None or world.mesh.pp == 1:
        return ()
    return tuple(stages_of_rank(strategy.parallelism, ranks=world.mesh.pp, rank=world.coordinate("pp")))


def _stated(assumption: str | Note) -> Note:
    return assumption if isinstance(assumption, Note) else of_sentence(assumption, STATED)


def _is_used(row: StorageRow, length: int) -> bool:
    """Whether a storage has memory while an operation runs."""
    return bool(row.size_bytes) and row.born < length and (row.died is None or row.died >= row.born)


def _order(row: StorageRow) -> int:
    """Gradients come last, in the order of the parameters they belong to. Before them comes what the step before left and
    this one frees, such as its gradient norm: older than the optimizer's state in the second step of a process, younger in
    the third."""
    if row.category == "gradient":
        return row.gradient_order + 2
    return int(row.born == BEFORE and row.category is None and row.died is not None)


def _category(row: StorageRow, phase_of: np.ndarray, length: int) -> str:
    """The category of a storage: as the step marked it, else by when it is born and dies."""
    if row.category is not None:
        return row.category
    if row.from_host:
        return "input"
    died = phase_of[row.died] if row.died is not None and row.died < length else None
    if row.phase in (FORWARD, RECOMPUTE) and (died is None or died in (BACKWARD, RECOMPUTE)):
        return "activation"
    return "temporary"


def _block_paths(program: Program) -> tuple[str, ...]:
    blocks = {id(block) for block in repeated_blocks(program.model)}
    return tuple(path for path, module in program.model.named_modules() if id(module) in blocks)


def _optimizer_name(job: Job, strategy: Strategy) -> str | None:
    return strategy.optimizer or (job.optimizer if isinstance(job.optimizer, str) else None)
