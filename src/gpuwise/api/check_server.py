"""The server that serve_check runs, as forecast."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from gpuwise.api.check_settings import PACKED, check_packs, check_runs_graph, policy_of
from gpuwise.api.devices import Device
from gpuwise.api.serving_llama_cpp import ENGINE as LLAMA_CPP
from gpuwise.api.serving_llama_cpp import check_llama_cpp, llama_cpp_server
from gpuwise.api.serving_times import ForecastTimes, forward_times, generation_times, packed_times
from gpuwise.api.sources import source_of
from gpuwise.plan.space.legal import precisions_for
from gpuwise.serving.engine_server import EngineTimes
from gpuwise.serving.engines import engine_of
from gpuwise.serving.graph_engines import GraphEngine, graph_engine_of
from gpuwise.serving.group_server import COUNT, CheckedServer, GroupServer, PackedServer
from gpuwise.serving.instance import LoadShape
from gpuwise.serving.pass_times import PackedTimes
from gpuwise.serving.policy import BatchingPolicy
from gpuwise.serving.windowed import WindowPolicy
from gpuwise.serving_settings import CheckSettings

if TYPE_CHECKING:
    from gpuwise.job import Job

BATCHED_TOKENS, PAGE_TOKENS = 256, 16  # of Transformers' continuous batching
SPARE = 1.3  # pages over those of as many requests as run, each the longest: prompts wait where less than 15 % are free
BEYOND = 2  # longest request that passes are priced for, over the longest of COUNT requests


@dataclass(frozen=True)
class ForecastServer:
    """A server and the times of its passes.

    Attributes:
        forecast: the times, with what was assumed for them.
        server: simulates it.
        policy: how requests wait for it, as the user named it.
        graphs: engine that runs the exported graph; None for another server.
    """

    forecast: ForecastTimes
    server: CheckedServer
    policy: WindowPolicy
    graphs: GraphEngine | None


def forecast_server(
    job: str | Job, resolved: Job, device: Device, requested: CheckSettings, shape: LoadShape
) -> ForecastServer:
    """The server of a job, whose passes are recorded and priced.

    Arguments:
        job: as the user names it.
        resolved: the job itself.

    Raises InputError, UnsupportedError or MissingDependencyError where the engine cannot serve it here.
    """
    generates, engine = resolved.generate is not None, requested.get("engine")
    longest, prompt = _longest(shape, resolved.context_length)
    graphs, joining = graph_engine_of(engine), 0
    if graphs is not None:
        check_runs_graph(graphs, resolved, device, precision=requested.get("precision"))
    elif engine == "transformers":
        check_packs(resolved, requested)
        joining = PACKED
    elif engine == LLAMA_CPP:
        check_llama_cpp(resolved, device, requested, longest=longest)
        joining = engine_of(engine).sequences
    policy = policy_of(requested, generates=generates, joining=joining, spread=shape.lengths.input_variation)
    precision = requested.get("precision") or _precision(device)
    if engine == "transformers":
        return ForecastServer(*_packed(resolved, device, policy, precision=precision, longest=longest), policy, None)
    if engine == LLAMA_CPP:
        slots = llama_cpp_server(resolved, device, requested, slots=policy.batch, queue=policy.queue, longest=longest)
        return ForecastServer(*slots, policy, None)
    if generates:
        forecast = generation_times(
            resolved, device, batch=policy.batch, precision=precision, longest_prompt=prompt, longest=longest
        )
    else:
        source = source_of(job, seq_len=requested.get("seq_len"), image_size=requested.get("image_size"))
        named = graphs.precision if graphs else requested.get("precision")
        forecast = forward_times(source, batch=policy.batch, precision=named, engine=graphs)
    assert not isinstance(forecast.times, PackedTimes | EngineTimes)
    return ForecastServer(forecast, GroupServer(forecast.times, policy), policy, graphs)


def _packed(
    job: Job, device: Device, policy: WindowPolicy, *, precision: str, longest: int
) -> tuple[ForecastTimes, PackedServer]:
    """Transformers' continuous batching."""
    blocks = policy.batch * ceil(longest / PAGE_TOKENS)
    forecast = packed_times(job, device, precision=precision, batched_tokens=BATCHED_TOKENS, cached_tokens=PAGE_TOKENS * blocks)
    assert isinstance(forecast.times, PackedTimes)
    cache_tokens = PAGE_TOKENS * ceil(blocks * SPARE)
    return forecast, PackedServer(
        forecast.times, BatchingPolicy(BATCHED_TOKENS, policy.batch, cache_tokens, block_tokens=PAGE_TOKENS)
    )


def _longest(shape: LoadShape, context: int | None) -> tuple[int, int]:
    """Most tokens of a request, and of its prompt, that passes are priced for."""
    drawn = shape.at(1.0, count=COUNT)
    beyond = 1 if shape.lengths.input_variation == 0 else BEYOND
    longest = beyond * int((drawn.input_tokens + drawn.output_tokens).max())
    prompt = beyond * int(drawn.input_tokens.max())
    return (longest, prompt) if context is None else (min(longest, context), min(prompt, context))


def _precision(device: Device) -> str:
    """The fastest precision of whole models on this machine; fp32 on its CPU."""
    able = ["fp32"] if device.target == "cpu" else precisions_for(device.chip, mode="infer")
    return able[0] if able else "fp32"
