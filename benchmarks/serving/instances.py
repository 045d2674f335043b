"""Instances of published runs, of the same parts that `gpuwise serve-plan` puts together."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from benchmarks.serving.models import generation_of
from gpuwise.api.devices import device_of
from gpuwise.hardware import load_catalog
from gpuwise.serving.engines import engine_of
from gpuwise.serving.formats import StoredWeights, format_of, stored
from gpuwise.serving.generation import Generation
from gpuwise.serving.instance import Instance
from gpuwise.serving.policy import BatchingPolicy
from gpuwise.serving.sharing import Degrees
from gpuwise.serving.step_time import EngineStep

# Names of the tables -> ids of the catalog.
DEVICES = {
    "A100 SXM 80GB": "a100-80gb-sxm",
    "H100 SXM": "h100-80gb-sxm",
    "B200 SXM": "b200-180gb-sxm",
    "B300 SXM": "b300-288gb-sxm",
    "GB200": "gb200-186gb",
    "MI300X": "mi300x",
}
OUTSIDE_BYTES = 700_000_000  # of driver and communicators
MOST_TOKENS = 1 << 15  # of an iteration


def parts_of(
    engine: str,
    device: str,
    family: str,
    degrees: Degrees,
    format: str,
    *,
    cache: str = "",
    longest: int,
    sequences: int | None = None,
    batched_tokens: int | None = None,
    memory_share: float = 0.0,
) -> tuple[EngineStep, BatchingPolicy]:
    """Iterations and batches of a family under an engine on devices of one kind, named as in the tables.

    Arguments:
        format: of weights; "" for bf16.
        cache: format of keys and values; "" for bf16.
        longest: tokens of the longest request.
        sequences, batched_tokens: as for Engine.policy.
        memory_share: of the devices' memory, that the engine takes; 0 for the engine's own.

    Raises InputError where the weights, or one request, do not fit.
    """
    chosen = engine_of(engine)
    step, generation, weights = _step(engine, device, family, degrees, format, cache)
    policy = replace(chosen, memory_share=memory_share or chosen.memory_share).policy(
        generation,
        capacity_bytes=step.cluster.capacity_bytes or 0,
        outside_bytes=OUTSIDE_BYTES,
        longest=longest,
        weight_bytes=weights.bytes,
        sequences=sequences,
        batched_tokens=batched_tokens,
        chip=DEVICES[device],
    )
    return step, policy


def instance_of(engine: str, parts: tuple[EngineStep, BatchingPolicy]) -> Instance:
    """The instance of these parts (parts_of), with the engine's intervals."""
    chosen, (step, policy) = engine_of(engine), parts
    return Instance(step, policy, chosen.spread, first_token_spread=chosen.first_token_spread)


def generation_on(family: str, degrees: Degrees, cache: str) -> Generation:
    """How the family generates on one of the devices."""
    return generation_of(family).shared(degrees).cached_in(1.0 if cache else 2.0)


@lru_cache
def _step(
    engine: str, device: str, family: str, degrees: Degrees, format: str, cache: str
) -> tuple[EngineStep, Generation, StoredWeights]:
    generation = generation_on(family, degrees, cache)
    cluster = device_of(f"{DEVICES[device]}:{degrees.devices}", load_catalog()).cluster
    weights = stored(generation, format_of(format) if format else None)
    step = EngineStep(generation, cluster, weights=weights, costs=engine_of(engine).costs)
    return step, generation, weights


def with_chunks(instance: Instance, *, chunked: bool) -> Instance:
    """The instance with prompts in chunks, or whole."""
    return replace(instance, policy=replace(instance.policy, chunked=chunked))
