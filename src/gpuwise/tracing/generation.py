"""record_generation: how a causal model reads new tokens beside those in its cache, recorded on the virtual accelerator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor, nn

from gpuwise.errors import GpuwiseError, JobError, StepFailedError, UnsupportedError
from gpuwise.job import Job
from gpuwise.runtime.build.program import Program, build
from gpuwise.serving.generation import Generation
from gpuwise.serving.parts import attention_layers, tokens_and_head
from gpuwise.serving.weights import Weights, all_blocks
from gpuwise.strategy import Strategy
from gpuwise.strategy.mesh import Mesh
from gpuwise.trace import Axis, Trace, build_family
from gpuwise.trace.memory import live_bytes
from gpuwise.trace.parallel.recorded_rows import RecordedStep
from gpuwise.trace.parallel.repeat import repeated
from gpuwise.tracing import accelerator
from gpuwise.tracing.assemble import to_trace
from gpuwise.tracing.cache_tensors import bytes_of, tensors_of
from gpuwise.tracing.environment import DEVICES, environment
from gpuwise.tracing.few_blocks import Within, few_blocks
from gpuwise.tracing.grouped_experts import grouped_experts
from gpuwise.tracing.recorder import Recorder
from gpuwise.tracing.refusals import explained
from gpuwise.tracing.state_kernels import states_as_kernels
from gpuwise.tracing.step import name_weights
from gpuwise.tracing.weights import weights_of
from gpuwise.tracing.world import fake_world

SEQUENCES = Axis("micro_batch", start=2, step=1, degree=1)
NEW_TOKENS = Axis("new_tokens", start=16, step=16, degree=2)  # within the chunks of scans, which take 64 tokens and more
Point = tuple[int, int, int]  # sequences, new tokens of each, tokens in the cache of each
PAST = (24, 32)  # tokens in the cache of the two recordings whose difference is what one token adds
_PASS_ALONE = "a job without generate=..., for its forward pass alone"
FAR = 1 << 20  # tokens beyond any window; a recording holds no memory


def record_passes(job: Job, points: Sequence[Point], *, precision: str, target: str) -> dict[Point, Trace]:
    """The whole passes of plain PyTorch as the job generates: for each point sequences, new tokens of each, and tokens in the
    cache of each. Arguments and errors as for record_generation."""
    check_generates(job)
    return _recorded(job, Strategy(precision=precision, micro_batch=1, mode="infer"), target, points).traces


def check_generates(job: Job) -> None:
    """Raises JobError where the job cannot generate."""
    if job.generate is None:
        raise JobError(
            f"{job.name or 'the job'} cannot generate: gpuwise does not know its cache of keys and values.",
            [
                "write Job(generate=lambda model, tokens, cache: (logits, cache)), where cache is None at first",
                "forecast one forward pass: gpuwise forecast JOB --mode infer",
            ],
        )


def record_generation(
    job: Job, *, precision: str = "bf16", tp: int = 1, target: str = "accelerator", longest: int | None = None
) -> Generation:
    """Records how the job's model generates.

    Arguments:
        precision: of weights and arithmetic.
        tp: devices of a mesh that share every layer (tensor parallelism); the first of them is recorded. Forecasts record the
            whole model and share it (Generation.shared); this is what that is checked against.
        target: as for gpuwise.tracing.record.
        longest: most tokens of a sequence. None (default): the job's own limit is unknown, or there is none.

    Raises JobError where the job cannot generate, or its attention is not one fused operator.
    """
    check_generates(job)
    strategy = Strategy(precision=precision, micro_batch=1, mode="infer", mesh=Mesh(tp=tp))
    grid = list(product(SEQUENCES.points, NEW_TOKENS.points))
    decoding = [(n, 1, past) for n in SEQUENCES.points for past in PAST]
    far = None if longest is None else min(FAR, longest - 1)
    far_away = [(SEQUENCES.start, 1, far)] if far is not None and far > max(PAST) else []
    points = [*((n, new, 0) for n, new in grid), *decoding, *far_away]
    recorded = _repeated(job, strategy, target, points) or _recorded(job, strategy, target, points, within=_as_engines_run)
    traces, cache_bytes = recorded.traces, recorded.cache_bytes
    if not any(cache_bytes.values()):
        raise JobError(
            f"generate of {job.name or 'the job'} returns a cache without tensors, so each token would be written without "
            "those before it.",
            ["return keys and values, or a state, as the second of (logits, cache)", _PASS_ALONE],
        )
    _check_caches(job, traces)
    family = build_family(
        {point: traces[(*point, 0)] for point in grid}, (SEQUENCES, NEW_TOKENS), {"micro_batch": 1, "new_tokens": 16}
    )
    if family is None:
        raise JobError(
            f"{job.name or 'the job'} runs other operations on prompts of other lengths, as loops over tokens do, which "
            "gpuwise cannot follow yet.",
            [
                "write generate so that it runs the same operations at every length",
                "forecast one forward pass: gpuwise forecast JOB --mode infer",
            ],
        )
    tokens, head = tokens_and_head(family, recorded.weights)
    a, b = (traces[SEQUENCES.start, 1, past] for past in PAST)
    layers = attention_layers(
        a,
        b,
        traces[far_away[0]] if far_away else None,
        past=(*PAST, far or 0),
        cache_bytes_per_token=_growth(cache_bytes),
    )
    return Generation(
        tokens=tokens,
        head=head,
        attention=layers,
        weights=recorded.weights,
        cache_bytes_per_token=_growth(cache_bytes),
        cache_bytes_per_sequence=_constant(cache_bytes),
        activation_bytes_per_token=_activation(*(traces[SEQUENCES.start, new, 0] for new in NEW_TOKENS.points[:2])),
        longest=longest,
    )


def _check_caches(job: Job, traces: Mapping[Point, Trace]) -> None:
    """Raises JobError where a token takes the work of those before it again."""
    n, (few, more) = SEQUENCES.start, PAST
    fewer_new, more_new = NEW_TOKENS.points[:2]
    per_cached = (traces[n, 1, more].model_flops - traces[n, 1, few].model_flops) / (more - few)
    per_new = (traces[n, more_new, 0].model_flops - traces[n, fewer_new, 0].model_flops) / (more_new - fewer_new)
    if per_cached > per_new / 2:
        raise JobError(
            f"generate of {job.name or 'the job'} runs the model over the tokens before again, for each token: what it returns "
            "as its cache holds no keys and values.",
            ["return keys and values, or a state, as the second of (logits, cache)", _PASS_ALONE],
        )


@dataclass(frozen=True)
class _Recorded:
    """Recordings of one program.

    Attributes:
        traces: by sequences, new tokens, and tokens in the cache of each sequence.
        cache_bytes: bytes of the cache by sequences and tokens of each.
        weights: parameters and buffers.
    """

    traces: dict[Point, Trace]
    cache_bytes: dict[tuple[int, int], int]
    weights: tuple[Weights, ...]


def _repeated(job: Job, strategy: Strategy, target: str, points: Sequence[Point]) -> _Recorded | None:
    """The recordings, from those of a few of the model's blocks; None where they do not show the others."""
    few = few_blocks(job, strategy, within=_as_engines_run)
    if few is None:
        return None
    try:
        short, long = (
            _recorded(few.job(job, count), strategy, target, points, within=_as_engines_run) for count in (few.short, few.long)
        )
    except GpuwiseError:  # recorded with all its blocks, the job raises the error that its user is to read
        return None
    traces: dict[Point, Trace] = {}
    for point in points:
        a, b = (RecordedStep(recorded.traces[point], {}, ()) for recorded in (short, long))
        whole = repeated(a, b, copies=few.copies, container=few.container, period=few.period)
        if whole is None:
            return None
        traces[point] = whole.trace
    return _Recorded(
        traces,
        {key: size + few.copies * (long.cache_bytes[key] - size) for key, size in short.cache_bytes.items()},
        all_blocks(short.weights, long.weights, more=few.copies),
    )


def _recorded(
    job: Job,
    strategy: Strategy,
    target: str,
    points: Iterable[Point],
    *,
    within: Within = nullcontext,
) -> _Recorded:
    """The recordings. within: what the model runs in."""
    if (problem := accelerator.problem()) is not None:
        raise UnsupportedError(
            f"PyTorch {torch.__version__} does not run gpuwise's virtual accelerator: {problem}.",
            ["another version of PyTorch"],
        )
    device, mesh = DEVICES[target], strategy.mesh
    traces: dict[Point, Trace] = {}
    cache_bytes: dict[tuple[int, int], int] = {}
    with fake_world(mesh, 0, device) as world, environment(target), Recorder(device, mesh) as recorder:
        try:
            program = build(job, strategy, device, world)
            recorder.storages.end_loading()
            recorder.modules.watch(program.model)
            recorder.answers.filling = True
            name_weights(program.model, recorder)  # which shows the blocks of weights that devices share
            with torch.no_grad(), within(program.model):
                for sequences, new, past in points:
                    recorder.paused = True
                    cache = _read(program, _tokens(sequences, past, device), None)[1] if past else None
                    if past:
                        cache_bytes[sequences, past] = bytes_of(tensors_of(cache))
                    tokens = _tokens(sequences, new, device)
                    recorder.paused = False
                    recorder.start()
                    recorder.receive({"tokens": tokens})
                    _read(program, tokens, cache)
                    trace = to_trace(job, strategy.but(micro_batch=sequences), program, recorder, target=target, identity="")
                    sizes = {"micro_batch": sequences, "new_tokens": new, "past_tokens": past}
                    traces[sequences, new, past] = replace(trace, header=replace(trace.header, sizes=sizes))
        except Exception as error:  # the user's model may raise anything
            raise _of_generate(explained(error, job.name)) from error
        weights = weights_of(program.model, {trace.modules[index] for index in set(trace.sequence.module.tolist())})
    return _Recorded(traces, cache_bytes, weights)


@contextmanager
def _as_engines_run(model: nn.Module) -> Iterator[None]:
    """Within it, what engines replace by kernels of their own runs as those."""
    with states_as_kernels(model), grouped_experts(model):
        yield


def _of_generate(error: GpuwiseError) -> GpuwiseError:
    """The error, with what Job.generate takes and returns where its own code fails."""
    if not isinstance(error, StepFailedError):
        return error
    ways = [
        "call Job.generate yourself: it takes (model, tokens, cache), with None as the first cache, and returns (logits, cache)"
    ]
    return StepFailedError(error.what, ways, problem=error.problem)


def _read(program: Program, tokens: Tensor, cache: object) -> tuple[Tensor, object]:
    assert program.job.generate is not None
    result: object = program.job.generate(program.model, tokens, cache)
    if not (isinstance(result, tuple | list) and len(result) == 2 and isinstance(result[0], Tensor)):
        kind = "Tensor" if isinstance(result, Tensor) else type(result).__name__
        raise JobError(
            f"generate of {program.job.name or 'the job'} returns a {kind}, not (logits, cache).",
            ["return logits of each sequence's last token, a tensor, and the cache with the new tokens", _PASS_ALONE],
        )
    return result[0], result[1]


def _tokens(sequences: int, count: int, device: str) -> Tensor:
    return torch.zeros((sequences, count), dtype=torch.long, device=device)


def _activation(few: Trace, more: Trace) -> int:
    """Bytes that each new token adds to the peak beside weights and cache."""
    above = []
    for trace in (few, more):
        live = live_bytes(trace)
        above.append(live.peak_bytes - live.persistent_bytes)
    sizes = [trace.header.sizes["micro_batch"] * trace.header.sizes["new_tokens"] for trace in (few, more)]
    return max(0, round((above[1] - above[0]) / (sizes[1] - sizes[0])))


def _growth(cache_bytes: dict[tuple[int, int], int]) -> int:
    n, (few, more) = SEQUENCES.start, PAST
    return (cache_bytes[n, more] - cache_bytes[n, few]) // (more - few) // n


def _constant(cache_bytes: dict[tuple[int, int], int]) -> int:
    n = SEQUENCES.start
    return cache_bytes[n, PAST[0]] // n - PAST[0] * _growth(cache_bytes)
