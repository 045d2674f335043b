"""record: one training (or inference) step of a job, run on the virtual accelerator, as a Trace."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from gpuwise.errors import GpuwiseError, JobError, PrecisionError
from gpuwise.job import Job, checked_batch, fingerprint
from gpuwise.notes.job import no_virtual_accelerator
from gpuwise.runtime.build.adapters_recorded import only_recorded
from gpuwise.runtime.build.optimizers import CombinedOptimizer
from gpuwise.runtime.build.own_step import check_own_step
from gpuwise.runtime.build.program import Program, build
from gpuwise.strategy import Strategy
from gpuwise.trace import Trace
from gpuwise.tracing import accelerator
from gpuwise.tracing.assemble import to_trace
from gpuwise.tracing.kernels import autocast, libraries, quantized
from gpuwise.tracing.kernels.lbfgs import steady_lbfgs
from gpuwise.tracing.kernels.low_bit import inner_tensors, low_bit_updates
from gpuwise.tracing.kernels.target import targeting
from gpuwise.tracing.recorder import BACKWARD, Recorder, StorageRow
from gpuwise.tracing.refusals import explained
from gpuwise.tracing.virtual_device import DEVICE, VirtualMode

DEVICES = {"accelerator": DEVICE, "pre-ampere": DEVICE, "cpu": "cpu"}


def record(job: Job, strategy: Strategy, *, target: str = "accelerator") -> Trace:
    """Records one steady-state step: the second, when optimizer state exists.

    Arguments:
        strategy: precision, micro_batch, recompute, optimizer, mode and techniques. Its accumulation does not matter:
            two micro-batches are recorded and any number follows from them (see gpuwise.trace.trace); one where the
            optimizer steps inside backward, or in a step of the job's own.
        target: whose kernels are taken, "accelerator" (CUDA's of Ampere and newer), "pre-ampere" or "cpu".

    Raises JobError where the job cannot be built, raises in its forward pass, or depends on its data; PrecisionError where it
    does so in the strategy's precision and not in fp32.
    """
    return record_many(job, strategy, [strategy.micro_batch], target=target)[0]


def record_many(
    job: Job, strategy: Strategy, micro_batches: Sequence[int], *, target: str = "accelerator", once: Collection[int] = ()
) -> list[Trace]:
    """`record` at each of these micro-batches, with the program built and its optimizer state created once.

    Arguments:
        once: those to record without a second micro-batch: half the time, for a trace of accumulation 1 alone.

    A program whose steps leave another state behind than they found (a cache that grows with the batch) is built anew
    for each. Raises as `record` does.
    """
    try:
        return _record_many(job, strategy, micro_batches, target=target, once=once)
    except JobError as error:
        plain = strategy.but(precision="fp32")
        if strategy.recorded_precision == "fp32" or not _records(job, plain, target=target):
            raise
        name = job.name or "the job"
        why = error.what.removeprefix(f"a step of {name} fails: ")
        raise PrecisionError(
            f"{name} does not run in {strategy.precision}: {why}", ["--precision fp32", *error.ways_out]
        ) from error


def _records(job: Job, strategy: Strategy, *, target: str) -> bool:
    try:
        _record_many(job, strategy, [strategy.micro_batch], target=target)
    except GpuwiseError:
        return False
    return True


def _record_many(
    job: Job, strategy: Strategy, micro_batches: Sequence[int], *, target: str, once: Collection[int] = ()
) -> list[Trace]:
    if job.step is None and _needs_no_first_step(strategy):
        traces = _recorded(job, strategy, micro_batches, target=target, once=once, first_step=False)
        if traces is not None:
            return traces
    traces = _recorded(job, strategy, micro_batches, target=target, once=once, first_step=True)
    return traces or [record(job, strategy.but(micro_batch=n), target=target) for n in micro_batches]


def _needs_no_first_step(strategy: Strategy) -> bool:
    """Whether made-up gradients serve to create optimizer state, which spares the pass that would make real ones."""
    special = (strategy.optimizer_in_backward, strategy.keep_gradients, strategy.compile, strategy.offload != "none")
    return strategy.mode == "train" and strategy.precision != "amp-fp16" and not any(special)


def _recorded(
    job: Job, strategy: Strategy, micro_batches: Sequence[int], *, target: str, once: Collection[int], first_step: bool
) -> list[Trace] | None:
    """The traces, or None where steps leave another state behind than they found: of several micro-batches those after
    the first are then wrong, and without a real first step the only one is."""
    problem = accelerator.problem()  # asked for a CPU, too: shape rules that PyTorch lacks come with the device
    broken = None if target == "cpu" else problem
    if broken is not None:
        target = "cpu"
    device = DEVICES[target]
    try:
        identity = fingerprint(job)
    except Exception as error:
        raise explained(error, job.name) from error
    twice = strategy.mode == "train" and not strategy.optimizer_in_backward
    strategy = strategy.but(accumulation=1)
    traces: dict[int, Trace] = {}
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # of code that runs on nothing; what matters is said in the assumptions
        stack.enter_context(_quiet_log())
        stack.enter_context(_quiet_matmul_precision())
        stack.enter_context(only_recorded())
        stack.enter_context(VirtualMode())
        stack.enter_context(targeting(target))
        # On this thread alone: autograd's device threads exist only for devices registered before its first use.
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        stack.enter_context(autocast.of_cuda() if target != "cpu" else nullcontext())
        stack.enter_context(libraries.answering_as_on_a_gpu(device))
        recorder = stack.enter_context(Recorder(device))
        stack.enter_context(noticing_updates(recorder))
        if broken is not None:
            recorder.answers.note(no_virtual_accelerator(torch_version=torch.__version__, problem=str(broken)))
        try:
            stack.enter_context(steady_lbfgs(recorder.answers))
            program = build(job, strategy.but(compile=False), device)  # `install` compiles it in its way
            if strategy.compile and job.step is not None:
                check_own_step(job, strategy, program.model, closure=False)
            if program.own_step is None and twice:
                strategy = strategy.but(accumulation=2)
                program.strategy = program.strategy.but(accumulation=2)
            first_step = first_step or program.own_step is not None
            _clipping_belongs_to_backward(program, recorder)
            stack.enter_context(low_bit_updates())
            quantized.register()
            recorder.name_modules(program.model)
            if strategy.compile:
                from gpuwise.tracing.compile.install import install  # imports the compiler: a second or two

                install(program.model, recorder)
            create_state(program, recorder, strategy.but(micro_batch=min(micro_batches)), really=first_step)
            found, unchanged = _sizes_kept(recorder), True
            for micro_batch in sorted(micro_batches):  # upwards: what grows with the batch is seen to grow
                at_this = strategy.but(micro_batch=micro_batch)
                if micro_batch in once:
                    at_this = at_this.but(accumulation=1)
                recorder.start()
                trained = one_step(program, recorder, at_this)
                traces[micro_batch] = to_trace(job, at_this, program, recorder, target=target, identity=identity)
                unchanged = _sizes_kept(recorder) == found and (trained or first_step)
                if not unchanged:
                    break
        except Exception as error:  # the user's model and loss may raise anything
            raise explained(error, job.name) from error
        del program
    if unchanged or (first_step and len(micro_batches) == 1):
        return [traces[micro_batch] for micro_batch in micro_batches]
    return None


def create_state(program: Program, recorder: Recorder, strategy: Strategy, *, really: bool) -> None:
    """Creates optimizer state, by a step or (not really) by gradients out of nothing, and says what every storage that
    stays is for."""
    optimizer = program.optimizer
    if program.own_step is not None:
        program.own_step.context.evaluation = partial(_evaluating, recorder)
    if isinstance(optimizer, CombinedOptimizer):
        optimizer.on_gradient = lambda parameter: _is_gradient(recorder, parameter)
    if really:
        one_step(program, recorder, strategy.but(accumulation=1))
    else:
        for parameter in program.model.parameters():
            parameter.grad = torch.empty_like(parameter) if parameter.requires_grad else None
        program.update()
    for path, held in [*program.model.named_parameters(), *program.model.named_buffers()]:
        for tensor in inner_tensors(held):
            recorder.owns(path.rpartition(".")[0], tensor)
    for tensor in [*program.model.parameters(), *program.model.buffers()]:
        _is_for(recorder, "parameter", tensor)
    for tensor in program.average.tensors.values() if program.average is not None else ():
        _is_for(recorder, "optimizer_state", tensor)
    _is_optimizer_state(program, recorder)


def _is_optimizer_state(program: Program, recorder: Recorder) -> None:
    """Says what the tensors of the optimizer's state are for, those in its lists included."""
    for value in tree_leaves(list(program.optimizer.state.values()) if program.optimizer is not None else []):
        if isinstance(value, torch.Tensor):
            _is_for(recorder, "optimizer_state", value)


def one_step(program: Program, recorder: Recorder, strategy: Strategy) -> bool:
    """One step in its parts. Returns whether every parameter that is trained got a gradient."""
    micro_batch = strategy.micro_batch
    recorder.micro_step = 0
    if not program.trains:
        program.infer(_batch(program.job, recorder, micro_batch))
        return True
    for recorder.micro_step in range(strategy.accumulation):
        program.forward_backward(_batch(program.job, recorder, micro_batch))
    for parameter in program.model.parameters():
        _is_gradient(recorder, parameter)
    trained = all(p.grad is not None for p in program.model.parameters() if p.requires_grad)
    recorder.micro_step = 2
    program.update()
    program.parts.clear()  # numbers that a run reads
    if program.own_step is not None:
        _is_optimizer_state(program, recorder)  # a history has other tensors after each step
    return trained


def _is_gradient(recorder: Recorder, parameter: torch.Tensor) -> None:
    """Says what the parameter's gradient, if it has one, is for; to be called before it is freed."""
    if parameter.grad is None:
        return
    order, path = recorder.owners[id(parameter)]
    for row in _is_for(recorder, "gradient", parameter.grad):
        row["shape"], row["order"], row["module"] = tuple(parameter.shape), order, recorder.module_index(path)


def _is_for(recorder: Recorder, category: str, tensor: torch.Tensor) -> list[StorageRow]:
    keys = {inner.untyped_storage()._cdata for inner in inner_tensors(tensor)}
    rows = [recorder.live[key] for key in keys if key in recorder.live]
    for row in rows:
        row["category"] = category
    return rows


def _sizes_kept(recorder: Recorder) -> list[int]:
    return sorted(row["size_bytes"] for row in recorder.live.values())


def _batch(job: Job, recorder: Recorder, micro_batch: int) -> Any:
    """An example batch; making it is not part of the step."""
    recorder.paused = True
    try:
        batch = checked_batch(job, micro_batch)
    finally:
        recorder.paused = False
    recorder.receive(batch)
    return batch


def _clipping_belongs_to_backward(program: Program, recorder: Recorder) -> None:
    """What a step does to its gradients stays when its optimizer is exchanged for another (gpuwise.trace.update.optimizers)."""
    clip = program.clip_gradients

    def recorded(norm: float, parameters: list[torch.nn.Parameter] | None = None) -> torch.Tensor:
        recorder.place = (BACKWARD, 0)
        try:
            return clip(norm, parameters)
        finally:
            recorder.place = None

    program.clip_gradients = recorded  # type: ignore[method-assign]


@contextmanager
def noticing_updates(recorder: Recorder) -> Iterator[None]:
    """Tells the recorder when an optimizer steps, be it inside backward."""

    def begins(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        recorder.updating = True
        if recorder.micro_step != 2:  # inside the step of a job's own, which may free its gradients after the update
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if id(parameter) in recorder.owners:
                        _is_gradient(recorder, parameter)

    def ends(*_: Any) -> None:
        recorder.updating = False

    hooks = register_optimizer_step_pre_hook(begins), register_optimizer_step_post_hook(ends)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _evaluating(recorder: Recorder) -> Iterator[None]:
    """The closure of an optimizer: forward and backward again, in the middle of its update."""
    before, recorder.updating = recorder.updating, False
    try:
        yield
    finally:
        recorder.updating = before


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
