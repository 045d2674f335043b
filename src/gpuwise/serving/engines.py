"""Engines: how each forms its batches by default, and what it adds to the kernels of an iteration."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from gpuwise.errors import InputError, unknown_name
from gpuwise.serving.batch_defaults import BatchDefaults, BatchLimits
from gpuwise.serving.engine_costs import EngineCosts, PlatformCosts
from gpuwise.serving.formats import CacheFormat, Format, cache_format_of, format_of, formats
from gpuwise.serving.generation import Generation
from gpuwise.serving.policy import BatchingPolicy

GRAPHS_BYTES = 500_000_000  # of captured CUDA graphs with their pools: 0.3 to 0.8 GB in logs of vLLM 0.6 to 0.19
LOGIT_BYTES = 8  # of a logit of each sequence, in fp32, and its copy that sampling sorts


@dataclass(frozen=True)
class Engine:
    """An inference engine with its defaults.

    Attributes:
        name: name on the command line.
        versions: versions that the figures are of.
        source: where they come from.
        limits: sequences and new tokens at once.
        block_tokens, chunked: see BatchingPolicy.
        memory_share: share of the device's memory that the engine takes.
        costs: what it adds to an iteration.
        spread: low and high of measured over forecast times of iterations; 90 % of runs lie between.
        logits: sequences whose logits take memory of the engine's share; 0 (default) for all that it runs at once, as vLLM's
            profile does.
        first_token_spread: the same of times to the first token, where that is wider.
        precision: of activations and cache, by default.
        format: of weights, by default; "" for that of the activations.
        on_cpus: whether it has figures for CPUs.
        shares_heads: whether several devices share each layer; llama.cpp gives each layers of its own (--split-mode layer).
        slots: whether each sequence has a context of its own, as long as the longest request.
        window_pool: tokens that layers with a window have room for, over those of the other layers; 0 where they have what
            their windows need, 1 (default) where windows save no memory.
    """

    name: str
    versions: str
    source: str
    limits: BatchDefaults
    block_tokens: int
    chunked: bool
    memory_share: float
    costs: EngineCosts
    spread: tuple[float, float]
    logits: int = 0
    first_token_spread: tuple[float, float] = (1.0, 1.0)
    precision: str = "bf16"
    format: str = ""
    on_cpus: bool = False
    shares_heads: bool = True
    slots: bool = False
    window_pool: float = 1.0

    @property
    def batched_tokens(self) -> int:
        """Most new tokens of an iteration on the smallest devices."""
        return self.limits.least.batched_tokens

    @property
    def sequences(self) -> int:
        """Most sequences at once on the smallest devices."""
        return self.limits.least.sequences

    def format_of(self, name: str | None) -> Format | None:
        """The format of weights of that name, or the engine's own where it is None; None for the type of the activations.

        Raises UnknownNameError, or InputError where the engine does not read it.
        """
        if not (name := name or self.format):
            return None
        format = format_of(name)
        if self.name not in format.engines:
            usable = [other.name for other in formats().values() if self.name in other.engines]
            raise InputError(
                f"{self.name} has no figures for weights in {name}.",
                [
                    f"--weights {', '.join(usable)}" if usable else "no --weights: they have the type of --precision",
                    f"--engine {format.engines[0]}",
                ],
            )
        return format

    def cache_of(self, name: str | None) -> CacheFormat | None:
        """The format of keys and values of that name; None for None, the type of the activations.

        Raises UnknownNameError, or InputError where the engine does not have it.
        """
        if not name:
            return None
        cache = cache_format_of(name)
        if self.name not in cache.engines:
            raise InputError(f"{self.name} has no cache in {name}.", [f"--engine {cache.engines[0]}", "no --cache"])
        return cache

    def beside_bytes(
        self, generation: Generation, *, outside_bytes: int, logits: int, batched_tokens: int | None = None
    ) -> int:
        """Memory that an instance takes beside weights and cache.

        logits: tokens of an iteration that get some. batched_tokens: most new tokens; None (default) for the engine's own.
        """
        activations = generation.activation_bytes_per_token * (batched_tokens or self.batched_tokens)
        return activations + GRAPHS_BYTES + outside_bytes + logits * generation.vocabulary * LOGIT_BYTES

    def policy(
        self,
        generation: Generation,
        *,
        capacity_bytes: int,
        outside_bytes: int,
        longest: int,
        weight_bytes: int | None = None,
        sequences: int | None = None,
        batched_tokens: int | None = None,
        queue: int | None = None,
        chip: str = "",
    ) -> BatchingPolicy:
        """How the engine serves a model on a device.

        Arguments:
            capacity_bytes: memory of the device.
            outside_bytes: memory that the driver and communicators take.
            longest: tokens of a usual request, of which one must fit, and by which windows of attention are weighed.
            weight_bytes: of the weights on the device; None (default) as recorded.
            sequences, batched_tokens: most sequences, and most new tokens, at once; None (default) for the engine's own.
            queue: see BatchingPolicy.
            chip: id of the device's chip in the catalog, by which defaults may differ; "" (default) for none.

        Raises InputError where the weights, or one request, do not fit.
        """
        limits = self.limits.on(chip, capacity_bytes)
        most, batched_tokens = sequences or limits.sequences, batched_tokens or limits.batched_tokens
        logits = min(most, self.logits or most)
        beside = self.beside_bytes(generation, outside_bytes=outside_bytes, logits=logits, batched_tokens=batched_tokens)
        weight_bytes = generation.weight_bytes if weight_bytes is None else weight_bytes
        free = int(self.memory_share * capacity_bytes) - weight_bytes - beside
        needed = generation.cache_bytes(longest)
        if free < needed:
            parts = {"weights": weight_bytes, "activations and graphs": beside, "one request": needed}
            words = ", ".join(f"{size / 1e9:,.1f} GB for {name}" for name, size in parts.items())
            raise InputError(
                f"{words} of {longest:,} tokens are more than {self.memory_share:.0%} of the device's "
                f"{capacity_bytes / 1e9:,.1f} GB.",
                ["a device with more memory, or more of them (--on CHIP:COUNT)", "shorter requests"],
            )
        cache_tokens = self._tokens_in(generation, free, longest, batched_tokens)
        if sequences is None:
            most = self.limits.grown(most, cache_tokens=cache_tokens, context=generation.longest or longest)
        if generation.cache_bytes_per_token <= 0 and generation.cache_bytes_per_sequence > 0:
            most = min(most, free // generation.cache_bytes_per_sequence)
        return BatchingPolicy(
            batched_tokens=batched_tokens,
            sequences=most,
            cache_tokens=cache_tokens,
            block_tokens=self.block_tokens,
            chunked=self.chunked,
            queue=queue,
            request_s=self.costs.request_s,
        )

    def _tokens_in(self, generation: Generation, free_bytes: int, usual: int, batched_tokens: int) -> int:
        """Tokens whose cache fits: those of as many requests of the usual length as fit, each with its state that does not
        grow. A model without anything that grows is limited by its sequences alone.

        Layers with a window keep no more than it, and all of a prompt's part while that is read.
        """
        a_token, state = generation.cache_bytes_per_token, generation.cache_bytes_per_sequence
        if a_token <= 0:
            return 1 << 40
        if self.window_pool:
            windowed = sum(layer.layers * layer.key_bytes for layer in generation.attention if layer.window is not None)
            of_one = (a_token - round((1 - self.window_pool) * windowed)) * usual
            tokens = free_bytes * usual // (of_one + state)
        else:
            of_one = max(generation.cache_bytes(usual) - state, 1)
            while_read = min(1.0, batched_tokens / usual) * (a_token * usual - of_one)
            whole = free_bytes * usual // (a_token * usual + state)
            tokens = max(int((free_bytes - while_read) * usual // (of_one + state)), whole)
        return tokens * generation.degrees.attention_dp


@cache
def engines() -> dict[str, Engine]:
    """The engines by name."""
    table = tomllib.loads(files("gpuwise.serving").joinpath("data", "engines.toml").read_text(encoding="utf-8"))
    return {
        name: Engine(
            name=name,
            versions=row["versions"],
            source=row["source"],
            limits=BatchDefaults(
                least=BatchLimits(row["batched_tokens"], row["sequences"]),
                by_memory=tuple(
                    (each["gib"], BatchLimits(each["batched_tokens"], each["sequences"])) for each in row.get("by_memory", ())
                ),
                small=tuple(row.get("small", ())),
                most_sequences=row.get("most_sequences", 0),
            ),
            logits=row.get("logits", 0),
            block_tokens=row["block_tokens"],
            chunked=row["chunked"],
            memory_share=row["memory_share"],
            costs=EngineCosts(
                iteration_s=row["iteration_us"] / 1e6,
                sequence_s=row["sequence_us"] / 1e6,
                kernel_s=row.get("kernel_us", 0.0) / 1e6,
                products_per_clock=row.get("products_per_clock", 0.0),
                other_products=row.get("other_products", 1.0),
                platforms=tuple((platform, _platform(own)) for platform, own in row.get("platforms", {}).items()),
                cpu_share=row.get("cpu_share", 0.0),
                cpu_products=row.get("cpu_products", 0.0),
                launch_s=row.get("launch_us", 0.0) / 1e6,
                linear_layer_s=row.get("linear_layer_us", 0.0) / 1e6,
                linear_attention_s=row.get("linear_attention_us", 0.0) / 1e6,
                decoding_launch_s=row.get("decoding_launch_us", 0.0) / 1e6,
                request_s=row.get("request_us", 0.0) / 1e6,
                prompt_token_s=row.get("prompt_token_us", 0.0) / 1e6,
                own_sums=row.get("own_sums", True),
                two_streams_tokens=row.get("two_streams_tokens", 0),
            ),
            precision=row.get("precision", "bf16"),
            format=row.get("format", ""),
            on_cpus=row.get("on_cpus", False),
            shares_heads=row.get("shares_heads", True),
            slots=row.get("slots", False),
            window_pool=row.get("window_pool", 1.0),
            spread=_pair(row["spread"]),
            first_token_spread=_pair(row.get("first_token_spread", (1.0, 1.0))),
        )
        for name, row in table.items()
    }


def _platform(row: Mapping[str, float]) -> PlatformCosts:
    return PlatformCosts(
        kernel_s=row.get("kernel_us", 0.0) / 1e6,
        products_per_clock=row.get("products_per_clock", 0.0),
        attention_s=row.get("attention_us", 0.0) / 1e6,
    )


def _pair(values: Sequence[float]) -> tuple[float, float]:
    low, high = values
    return low, high


def engine_of(name: str) -> Engine:
    """The engine of that name; UnknownNameError where there is none."""
    if name not in engines():
        raise unknown_name("engine", name, list(engines()), listing="gpuwise serve-plan --help")
    return engines()[name]
