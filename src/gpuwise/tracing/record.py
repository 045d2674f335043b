"""record: one training (or inference) step of a job, run on the virtual accelerator, as a Trace."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch

from gpuwise.errors import GpuwiseError, JobError
from gpuwise.job import Job, checked_batch, fingerprint, repeated_blocks
from gpuwise.runtime.program import Program, build
from gpuwise.strategy import Strategy
from gpuwise.trace import CATEGORIES, COLUMNS, PHASES, Header, Operations, Sequence, Storages, Trace
from gpuwise.tracing import accelerator
from gpuwise.tracing.recorder import BACKWARD, FORWARD, RECOMPUTE, Recorder, StorageRow
from gpuwise.tracing.virtual_device import DEVICE, VirtualMode

DEVICES = {"accelerator": DEVICE, "cpu": "cpu"}


def record(job: Job, strategy: Strategy, *, substrate: str = "accelerator") -> Trace:
    """Records one steady-state step: the second, when optimizer state exists.

    Arguments:
        strategy: precision, micro_batch, recompute, optimizer, mode. Its accumulation does not matter: two micro-batches
            are recorded and any number follows from them (see gpuwise.trace.trace).
        substrate: whose kernels are taken, "accelerator" (CUDA's) or "cpu".

    Raises JobError where the job cannot be built, raises in its forward pass, or depends on its data.
    """
    if not accelerator.works():  # on a PyTorch that changed underneath: the trace says whose kernels it has
        substrate = "cpu"
    device = DEVICES[substrate]
    identity = fingerprint(job)
    strategy = strategy.but(accumulation=2 if strategy.mode == "train" else 1)
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # of code that runs on nothing; what matters is said in the assumptions
        stack.enter_context(_quiet_log())
        stack.enter_context(_quiet_matmul_precision())
        stack.enter_context(VirtualMode())
        # On this thread alone: autograd's device threads exist only for devices registered before its first use.
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        recorder = stack.enter_context(Recorder(device))
        try:
            program = build(job, strategy, device)
            recorder.name_modules(program.model)
            kept = _first_step(program, recorder, strategy)
            recorder.start()
            categories = _step(program, recorder, strategy)
        except GpuwiseError:
            raise
        except Exception as error:  # the user's model and loss may raise anything
            raise JobError(f"a step of {job.name or 'the job'} fails: {type(error).__name__}: {_first_line(error)}.",
                           ["run the loss on one example batch yourself to see the full trace"]) from error  # fmt: skip
        trace = _to_trace(job, strategy, program, recorder, {**kept, **categories}, substrate, identity)
        del program
    return trace


def _first_step(program: Program, recorder: Recorder, strategy: Strategy) -> dict[int, str]:
    """Runs the step that creates optimizer state; returns the category of every storage that stays."""
    _step(program, recorder, strategy.but(accumulation=1))
    for path, parameter in program.model.named_parameters():
        recorder.owns(path.rpartition(".")[0], parameter)
    kept = {t.untyped_storage()._cdata: "parameter" for t in [*program.model.parameters(), *program.model.buffers()]}
    if program.optimizer is not None:
        for state in program.optimizer.state.values():
            kept |= {
                t.untyped_storage()._cdata: "optimizer_state" for t in state.values() if isinstance(t, torch.Tensor)
            }
    return {id(recorder.live[key]): category for key, category in kept.items() if key in recorder.live}


def _step(program: Program, recorder: Recorder, strategy: Strategy) -> dict[int, str]:
    """One step in its parts; returns which storages hold gradients, by identity of their row."""
    micro_batch = strategy.micro_batch
    if not program.trains:
        program.infer(_batch(program.job, recorder, micro_batch))
        return {}
    for recorder.micro_step in range(strategy.accumulation):
        program.forward_backward(_batch(program.job, recorder, micro_batch))
    gradients = [p.grad.untyped_storage()._cdata for p in program.model.parameters() if p.grad is not None]
    rows = {id(recorder.live[key]): "gradient" for key in gradients if key in recorder.live}
    recorder.micro_step = 2
    program.update()
    return rows


def _batch(job: Job, recorder: Recorder, micro_batch: int) -> Any:
    """An example batch; making it is not part of the step."""
    recorder.paused = True
    try:
        batch = checked_batch(job, micro_batch)
    finally:
        recorder.paused = False
    recorder.receive(batch)
    return batch


def _category(row: StorageRow, known: dict[int, str], phase_of: np.ndarray, length: int) -> str:
    """What a storage is for, by who holds it, else by when it is born and dies."""
    if id(row) in known:
        return known[id(row)]
    if row["from_host"]:
        return "input"
    died = phase_of[row["died"]] if row["died"] is not None and row["died"] < length else None
    if row["phase"] in (FORWARD, RECOMPUTE) and (died is None or died in (BACKWARD, RECOMPUTE)):
        return "activation"
    return "temporary"


def _to_trace(job: Job, strategy: Strategy, program: Program, recorder: Recorder, known: dict[int, str],
              substrate: str, identity: str) -> Trace:  # fmt: skip
    length = len(recorder.rows)
    operation, module, phase, micro_step = np.array(recorder.rows, dtype=np.int32).reshape(-1, 4).T
    names = list(recorder.operations)
    rows = [row for row in recorder.storages if row["size_bytes"]]
    categories = [CATEGORIES.index(_category(row, known, phase, length)) for row in rows]
    parameters = list(program.model.parameters())
    sizes = {"micro_batch": strategy.micro_batch}
    sizes |= {name: value for name in ("seq_len", "image_size") if (value := getattr(job, name)) is not None}
    header = Header(
        job=job.name, fingerprint=identity, sizes=sizes,
        strategy=strategy.but(accumulation=1, optimizer=_optimizer_name(job, strategy)),
        parameters=sum(p.numel() for p in parameters),
        trainable_parameters=sum(p.numel() for p in parameters if p.requires_grad),
        sample_unit=job.sample_unit, units_per_sample=job.tokens_per_sample or 1,
        substrate=substrate, torch_version=torch.__version__.split("+")[0],
        blocks=_block_paths(program), assumptions=(*job.assumptions, *recorder.answers.given),
    )  # fmt: skip
    return Trace(
        header=header,
        operations=Operations(
            name=tuple(key[0] for key in names), kind=np.array([key[1] for key in names], dtype=np.int8),
            dtype=tuple(key[2] for key in names),
            values=np.array([key[3] for key in names], dtype=np.int64).reshape(-1, len(COLUMNS)),
        ),
        sequence=Sequence(operation, module, phase.astype(np.int8), micro_step.astype(np.int8)),
        storages=Storages(
            size_bytes=np.array([row["size_bytes"] for row in rows], dtype=np.int64),
            category=np.array(categories, dtype=np.int8),
            module=np.array([row["module"] for row in rows], dtype=np.int32),
            born=np.array([row["born"] for row in rows], dtype=np.int32),
            died=np.array([length if row["died"] is None else row["died"] for row in rows], dtype=np.int32),
        ),
        modules=tuple(recorder.modules),
    ).check()  # fmt: skip


def _block_paths(program: Program) -> tuple[str, ...]:
    blocks = {id(block) for block in repeated_blocks(program.model)}
    return tuple(path for path, module in program.model.named_modules() if id(module) in blocks)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["(no message)"])[0].rstrip(".")


def _optimizer_name(job: Job, strategy: Strategy) -> str | None:
    return strategy.optimizer or (job.optimizer if isinstance(job.optimizer, str) else None)


@contextmanager
def _quiet_log() -> Iterator[None]:
    """An operator that fails is reported once, by us."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


@contextmanager
def _quiet_matmul_precision() -> Iterator[None]:
    """build sets it for the process; a recording must not."""
    before: Any = torch.get_float32_matmul_precision()
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


assert PHASES[FORWARD] == "forward"
