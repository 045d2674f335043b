"""Experts of a mixture on the host of a card, as llama.cpp keeps them with --n-cpu-moe (ggml-org/llama.cpp#15077, August 2025).

Attention, routers, shared experts, norms, the head and the whole cache are on the card; the experts of the first layers are on
the host. A pass over few tokens sends the rows of each such layer to the host's processor, which multiplies them with the
experts that they choose, and takes the results of each expert back. A pass over 32 tokens and more copies the experts that some
token chooses to the card, which computes (ggml-org/llama.cpp#15346, #18535); nothing hides the copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gpuwise.errors import InputError
from gpuwise.serving.experts import ExpertShape
from gpuwise.serving.split_layers import BESIDE_A_CARD, COPIED_FROM
from gpuwise.serving.step_time import EngineStep
from gpuwise.units import format_bytes

ExpertLayers = int | Literal["all", "auto"]
# Seconds of a small copy between card and host: 5 to 7 µs were measured (arXiv:2602.21548, section 5.2).
COPY_S = 6e-6
COPIES = 3  # of a layer: rows and the experts that they choose there, results back
ROW_BYTES = 4  # of an element of rows that cross: ggml computes between products in fp32


@dataclass(frozen=True)
class ExpertBytes:
    """Bytes of a mixture and of its requests, by what can lie on a card or on its host.

    Attributes:
        layers: of the model. Those without experts come first (DeepSeek, GLM).
        experts: of each layer that has some.
        rest: all other weights but the embedding.
        cache: keys and values of all requests.
        embedding: always on the host.
        buffers: of the card, beside weights and cache.
    """

    layers: int
    experts: tuple[int, ...]
    rest: int
    cache: int
    embedding: int
    buffers: int

    def away(self, cpu_experts: int) -> tuple[int, ...]:
        """Bytes of the experts of each layer that are on the host, with those of so many layers there."""
        return self.experts[: max(cpu_experts - (self.layers - len(self.experts)), 0)]

    def on_card(self, cpu_experts: int) -> int:
        """Bytes on the card with the experts of so many layers on the host, among them room for those of a layer that visit."""
        away = self.away(cpu_experts)
        return self.buffers + self.rest + self.cache + sum(self.experts) - sum(away) + max(away, default=0)

    def on_host(self, cpu_experts: int) -> int:
        """Bytes on the host with the experts of so many layers there."""
        return self.embedding + sum(self.away(cpu_experts))

    def fewest_on_host(self, capacity_bytes: int) -> int | None:
        """The smallest number with which a card of this memory holds the rest; None where it does not with all."""
        return next((n for n in range(self.layers + 1) if self.on_card(n) <= capacity_bytes), None)


@dataclass(frozen=True)
class ExpertSplit:
    """The layers of an instance whose experts are on the host.

    Attributes:
        cpu_experts: how many of the first layers have theirs on the host, as --n-cpu-moe counts them.
        layers: of the model.
        host: id of the host's processor.
        card_bytes, host_bytes: bytes that card and host hold.
    """

    cpu_experts: int
    layers: int
    host: str
    card_bytes: int
    host_bytes: int

    @property
    def words(self) -> str:
        """A sentence for the report."""
        experts = f"experts of the first {self.cpu_experts} of {self.layers} layers and the " if self.cpu_experts else ""
        return (
            f"{experts}embedding on {self.host} ({format_bytes(self.host_bytes)}); "
            f"all else on the card ({format_bytes(self.card_bytes)})"
        )


def expert_split_of(
    sizes: ExpertBytes, requested: ExpertLayers, *, card: str, card_bytes: int, host: str, host_bytes: int
) -> ExpertSplit:
    """Which experts are on the host.

    Arguments:
        requested: how many of the first layers have theirs there; "all", or "auto" for as few as fit.
        card, host: names of both.
        card_bytes, host_bytes: memory of both.

    Raises InputError where the model has fewer layers, or a memory does not hold its part.
    """
    if isinstance(requested, int) and requested > sizes.layers:
        raise InputError(
            f"--cpu-experts {requested:,} is more than the model's {sizes.layers:,} layers.",
            ["--cpu-experts all", "--cpu-experts auto (as few as fit)"],
        )
    fewest = sizes.fewest_on_host(card_bytes)
    chosen = sizes.layers if requested == "all" or fewest is None else fewest if requested == "auto" else requested
    if sizes.on_card(chosen) > card_bytes:
        raise InputError(
            f"{format_bytes(sizes.on_card(chosen))} of weights, cache and buffers are more than the {format_bytes(card_bytes)} "
            f"of {card}, with the experts of {chosen:,} layers on the host.",
            [
                "--gpu-layers auto: whole layers on the host" if fewest is None else f"--cpu-experts {fewest}",
                "shorter requests (--input, --output)",
            ],
        )
    on_host = sizes.on_host(chosen)
    if on_host > host_bytes:
        raise InputError(
            f"{format_bytes(on_host)} of experts and embeddings are for the host; {host} has {format_bytes(host_bytes)}.",
            [f"--host-memory {-(-on_host // 2**30)}GiB", "fewer bits (--weights), or a card with more memory"],
        )
    return ExpertSplit(chosen, sizes.layers, host, sizes.on_card(chosen), on_host)


@dataclass(frozen=True)
class ExpertStep:
    """Seconds of iterations (see gpuwise.serving.continuous.IterationTime) with experts on the host.

    Attributes:
        rest: seconds of all but the experts, on the card.
        card, host: seconds of the experts of all layers on each of them.
        sizes: bytes of the parts.
        cpu_experts: how many of the first layers have their experts on the host.
        shape: of the experts.
        width: elements of a token between the layers.
        link_bytes_per_s: bandwidth of copies between host and card.
    """

    rest: EngineStep
    card: EngineStep
    host: EngineStep
    sizes: ExpertBytes
    cpu_experts: int
    shape: ExpertShape
    width: int
    link_bytes_per_s: float

    def __call__(self, chunks: Sequence[tuple[int, int]], sequences: int, past_tokens: int) -> float:
        """Seconds of an iteration. Arguments as for IterationTime."""
        users, tokens = sequences + len(chunks), sequences + sum(new for new, _ in chunks)
        away = self.sizes.away(self.cpu_experts)
        share = len(away) / len(self.sizes.experts)
        seconds = self.rest.engine_s(users) + self.rest.head_s(users) + self.rest.layers_s(chunks, sequences, past_tokens)
        if tokens >= COPIED_FROM:
            copied = self.shape.read_share(tokens) * sum(away)
            return seconds + self.card.layers_s(chunks, sequences, past_tokens) + copied / self.link_bytes_per_s
        if share < 1:
            seconds += (1 - share) * self.card.layers_s(chunks, sequences, past_tokens)
        if not away:
            return seconds
        host_s = BESIDE_A_CARD * share * self.host.layers_s(chunks, sequences, past_tokens)
        return seconds + host_s + len(away) * self.crossing_s(tokens)

    def crossing_s(self, tokens: int) -> float:
        """Seconds in which the rows of a layer go to the host, and the results of each expert come back."""
        crossing_bytes = tokens * (1 + self.shape.chosen) * self.width * ROW_BYTES
        return COPIES * COPY_S + crossing_bytes / self.link_bytes_per_s
