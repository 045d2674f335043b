"""record: one training (or inference) step of a job, run on the virtual accelerator, as a Trace."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch

from gpuwise.errors import GpuwiseError, JobError, PrecisionError, StepFailedError
from gpuwise.job import Job, fingerprint
from gpuwise.notes.job import no_virtual_accelerator
from gpuwise.runtime.build.own_step import check_own_step
from gpuwise.runtime.build.program import build
from gpuwise.runtime.parallel.world import World
from gpuwise.strategy import Strategy
from gpuwise.trace import Trace
from gpuwise.trace.parallel.recorded_rows import RecordedStep
from gpuwise.trace.parallel.repeat import repeated
from gpuwise.tracing import accelerator
from gpuwise.tracing.assemble import to_trace
from gpuwise.tracing.environment import DEVICES, environment
from gpuwise.tracing.few_blocks import few_blocks
from gpuwise.tracing.kernels import quantized
from gpuwise.tracing.kernels.lbfgs import steady_lbfgs
from gpuwise.tracing.kernels.low_bit import low_bit_updates
from gpuwise.tracing.recorder import Recorder
from gpuwise.tracing.refusals import explained, refuse_compiled_parts
from gpuwise.tracing.step import create_state, noticing_updates, one_step, record_clipping_in_backward
from gpuwise.tracing.world import fake_world


def record(job: Job, strategy: Strategy, *, target: str = "accelerator", rank: int = 0) -> Trace:
    """Records one steady-state step of one rank: the second, when optimizer state exists.

    Arguments:
        strategy: precision, micro_batch, recompute, optimizer, mode and techniques, and of several devices mesh and
            parallelism. On one device its accumulation does not matter: two micro-batches are recorded and any number
            follows from them (see gpuwise.trace.trace); one where the optimizer steps inside backward, or in a step of
            the job's own. Ranks of several devices treat the first and the last micro-batch of a step differently: three
            are recorded, and more follow from them; of a strategy with one or two, those.
        target: the device whose kernels are recorded, "accelerator" (CUDA's of Ampere and newer), "pre-ampere" or "cpu".
        rank: the rank of strategy.mesh. Default 0.

    Raises JobError where the job cannot be built, raises in its forward pass, or depends on its data; PrecisionError where it
    does so in the strategy's precision and not in fp32.
    """
    return record_many(job, strategy, [strategy.micro_batch], target=target, rank=rank)[0]


def record_step(job: Job, strategy: Strategy, *, target: str = "accelerator", rank: int = 0) -> RecordedStep:
    """`record`, with what a trace does not show."""
    recording = _Recording(job, strategy, (strategy.micro_batch,), target, rank, frozenset(), _identity(job))
    return (_repeated(recording) or _record_many(recording))[0]


def record_many(
    job: Job,
    strategy: Strategy,
    micro_batches: Sequence[int],
    *,
    target: str = "accelerator",
    rank: int = 0,
    once: Collection[int] = (),
) -> list[Trace]:
    """`record` at each of these micro-batches, with the program built and its optimizer state created once.

    Arguments:
        target, rank: as for `record`.
        once: those to record without a second micro-batch: half the time, for a trace of accumulation 1 alone. Of one device.

    A program whose steps change the sizes of its state (a cache that grows with the batch) is built anew for each. Raises as
    `record` does.
    """
    recording = _Recording(job, strategy, tuple(micro_batches), target, rank, frozenset(once), _identity(job))
    try:
        return [step.trace for step in _repeated(recording) or _record_many(recording)]
    except JobError as error:
        if strategy.recorded_precision == "fp32" or not _records(replace(recording, strategy=strategy.but(precision="fp32"))):
            raise
        name = job.name or "the job"
        why = error.problem if isinstance(error, StepFailedError) else error.what
        raise PrecisionError(
            f"{name} does not run in {strategy.precision}: {why}", ["--precision fp32", *error.ways_out]
        ) from error


@dataclass(frozen=True)
class _Recording:
    """What to record: the arguments of `record_many`, and the fingerprint of the job."""

    job: Job
    strategy: Strategy
    micro_batches: tuple[int, ...]
    target: str
    rank: int
    once: frozenset[int]
    identity: str


def _identity(job: Job) -> str:
    try:
        return fingerprint(job)
    except Exception as error:  # the user's model may raise anything
        raise explained(error, job.name) from error


def _repeated(recording: _Recording) -> list[RecordedStep] | None:
    """The steps, from recordings of a few of the model's blocks; None where they do not show the others."""
    few = few_blocks(recording.job, recording.strategy)
    if few is None:
        return None
    try:
        short, long = (_record_many(replace(recording, job=few.job(recording.job, count))) for count in (few.short, few.long))
    except GpuwiseError:  # recorded with all its blocks, the job raises the error that its user is to read
        return None
    steps = [
        repeated(a, b, copies=few.copies, container=few.container, period=few.period) for a, b in zip(short, long, strict=True)
    ]
    return [step for step in steps if step is not None] if all(steps) else None


def _records(recording: _Recording) -> bool:
    try:
        _record_many(replace(recording, micro_batches=(recording.strategy.micro_batch,)))
    except GpuwiseError:
        return False
    return True


def _record_many(recording: _Recording) -> list[RecordedStep]:
    if recording.job.step is None and _needs_no_first_step(recording.strategy):
        steps = _recorded(recording, first_step=False)
        if steps is not None:
            return steps
    steps = _recorded(recording, first_step=True)
    return steps or [_recorded_alone(recording, micro_batch) for micro_batch in recording.micro_batches]


def _recorded_alone(recording: _Recording, micro_batch: int) -> RecordedStep:
    strategy = recording.strategy.but(micro_batch=micro_batch)
    return _record_many(replace(recording, strategy=strategy, micro_batches=(micro_batch,), once=frozenset()))[0]


def _needs_no_first_step(strategy: Strategy) -> bool:
    """Whether empty gradients serve to create optimizer state, which spares a forward and a backward pass."""
    in_stages = strategy.mesh.pp > 1  # the first step makes the buffers that a stage receives into
    special = (strategy.optimizer_in_backward, strategy.keep_gradients, strategy.compile, strategy.offload != "none", in_stages)
    return strategy.mode == "train" and not strategy.scales_loss and not any(special)


def _recorded(recording: _Recording, *, first_step: bool) -> list[RecordedStep] | None:
    """The steps; None where they are wrong because a step changes the sizes of what stays alive.

    Of several micro-batches those after the first are then wrong; without a real first step even a single one is.
    """
    problem = accelerator.problem()  # checked for a CPU, too: shape rules that PyTorch lacks come with the device
    replaced = problem if recording.target != "cpu" else None
    if replaced is not None:
        recording = replace(recording, target="cpu")
    job, mesh = recording.job, recording.strategy.mesh
    device_type = DEVICES[recording.target]
    with (
        fake_world(mesh, recording.rank, device_type) as world,
        environment(recording.target),
        Recorder(device_type, mesh) as recorder,
        noticing_updates(recorder),
    ):
        if replaced is not None:
            recorder.answers.note(no_virtual_accelerator(torch_version=torch.__version__, problem=replaced))
        try:
            with steady_lbfgs(recorder.answers):
                steps = _record_steps(recording, recorder, world, first_step=first_step)
            if recorder.failure is not None:
                raise recorder.failure
            return steps
        except Exception as error:  # the user's model and loss may raise anything
            raise explained(recorder.failure or error, job.name) from error


def _record_steps(
    recording: _Recording, recorder: Recorder, world: World | None, *, first_step: bool
) -> list[RecordedStep] | None:
    """As `_recorded`, under a recorder that runs."""
    job, target = recording.job, recording.target
    strategy = recording.strategy if world is not None else recording.strategy.but(accumulation=1)
    # `install` compiles the program in its way.
    program = build(job, strategy.but(compile=False), DEVICES[target], world)
    recorder.storages.end_loading()
    refuse_compiled_parts(program.model)
    if strategy.compile and job.step is not None:
        check_own_step(job, strategy, program.model, closure=False)
    if world is None and program.own_step is None and strategy.mode == "train" and not strategy.optimizer_in_backward:
        strategy = strategy.but(accumulation=2)
        program.strategy = program.strategy.but(accumulation=2)
    first_step = first_step or program.own_step is not None
    record_clipping_in_backward(program, recorder)
    steps: dict[int, RecordedStep] = {}
    with low_bit_updates():
        quantized.register()
        recorder.modules.watch(program.model)
        if strategy.compile:
            from gpuwise.tracing.compile.install import install  # imports the compiler: a second or two

            install(program.model, recorder)
        create_state(program, recorder, strategy.but(micro_batch=min(recording.micro_batches)), really=first_step)
        state_sizes, unchanged = recorder.storages.sizes(), True
        for micro_batch in sorted(recording.micro_batches):  # upwards: what grows with the batch is seen to grow
            at_this = strategy.but(micro_batch=micro_batch)
            if micro_batch in recording.once:
                at_this = at_this.but(accumulation=1)
            recorder.start()
            trained = one_step(program, recorder, at_this)
            trace = to_trace(job, at_this, program, recorder, target=target, identity=recording.identity)
            steps[micro_batch] = RecordedStep(trace, dict(recorder.of_many), tuple(recorder.shapes))
            unchanged = recorder.storages.sizes() == state_sizes and (trained or first_step)
            if not unchanged:
                break
    if unchanged or (first_step and len(recording.micro_batches) == 1):
        return [steps[micro_batch] for micro_batch in recording.micro_batches]
    return None
