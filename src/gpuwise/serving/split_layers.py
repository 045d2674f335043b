"""Layers of a model split between a card and its host, as llama.cpp runs them with --n-gpu-layers.

The last layers are on the card, the head first of all (ggml-org/llama.cpp#18148, December 2025). A pass over few tokens runs
the others on the host's processor, which reads them from its own memory. A pass over 32 tokens and more copies their weights to
the card, one after the other, and computes there (ggml-org/llama.cpp#6083, #18530): the copy is not hidden behind the products.
Copies reach the bandwidth of the link where the weights are in page-locked memory, as they are with --no-mmap
(ggml-org/llama.cpp#20978).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuwise.errors import InputError
from gpuwise.serving.step_time import EngineStep
from gpuwise.units import format_bytes

COPIED_FROM = 32  # tokens of a pass, from which weights on the host are copied to the card
# How long a processor takes for layers beside a card, over the forecast of a processor that has them all. Fitted on one row,
# qwen3-14b of AlexsJones/llmfit#774; docs/serving-accuracy.md has those kept out, all of one machine. Why is unknown.
BESIDE_A_CARD = 1.48


@dataclass(frozen=True)
class LayerBytes:
    """Bytes of a model and of its requests, by what can lie on a card or on its host.

    Attributes:
        layers: repeating layers.
        layer: weights of one of them; the mean, where they differ.
        layer_cache: keys and values of all requests, in one of them.
        head: the product that makes logits.
        embedding: always on the host.
        buffers: of the card, beside weights and cache.
    """

    layers: int
    layer: int
    layer_cache: int
    head: int
    embedding: int
    buffers: int

    @property
    def most(self) -> int:
        """All that --n-gpu-layers counts: the layers and the head."""
        return self.layers + 1

    def on_card(self, gpu_layers: int) -> int:
        """Bytes on the card with so many of the layers and the head; room for one layer that visits it, where not all are."""
        weights = max(gpu_layers - 1, 0) * (self.layer + self.layer_cache) + (self.head if gpu_layers else 0)
        return self.buffers + weights + (self.layer if gpu_layers < self.most else 0)

    def on_host(self, gpu_layers: int) -> int:
        """Bytes on the host with so many on the card."""
        layers = min(self.layers, self.most - gpu_layers)
        return layers * (self.layer + self.layer_cache) + self.embedding + (0 if gpu_layers else self.head)

    def most_on_card(self, capacity_bytes: int) -> int:
        """The largest number whose bytes a card holds; -1 where it does not even hold the buffers."""
        return max((n for n in range(self.most + 1) if self.on_card(n) <= capacity_bytes), default=-1)


@dataclass(frozen=True)
class HostSplit:
    """How many layers an instance has on its card, and what is on the host.

    Attributes:
        gpu_layers: layers on the card, the head included, as --n-gpu-layers counts them.
        layers: of the model, the head included.
        host: id of the host's processor.
        card_bytes, host_bytes: bytes that card and host hold.
    """

    gpu_layers: int
    layers: int
    host: str
    card_bytes: int
    host_bytes: int

    @property
    def words(self) -> str:
        """A sentence for the report."""
        return (
            f"{self.gpu_layers} of {self.layers} layers, the head included, on the card ({format_bytes(self.card_bytes)}); "
            f"the rest on {self.host} ({format_bytes(self.host_bytes)})"
        )


def split_of(sizes: LayerBytes, gpu_layers: int | None, *, card: str, card_bytes: int, host: str, host_bytes: int) -> HostSplit:
    """How a model is split.

    Arguments:
        gpu_layers: layers on the card, the head included; None for as many as fit.
        card, host: names of both.
        card_bytes, host_bytes: memory of both.

    Raises InputError where the model has fewer layers, or a memory does not hold its part.
    """
    if gpu_layers is not None and gpu_layers > sizes.most:
        raise InputError(
            f"--gpu-layers {gpu_layers:,} is more than the model's {sizes.layers:,} layers and its head.",
            [f"--gpu-layers {sizes.most} (all of them)", "--gpu-layers auto (as many as fit)"],
        )
    most = sizes.most_on_card(card_bytes)
    chosen = most if gpu_layers is None else gpu_layers
    if most < 0 or chosen > most:
        needed = sizes.on_card(max(chosen, 0))
        raise InputError(
            f"{format_bytes(needed)} of layers, cache and buffers are more than the {format_bytes(card_bytes)} of {card}.",
            [f"--gpu-layers {most}" if most >= 0 else "a card with more memory", "shorter requests (--input, --output)"],
        )
    rest = sizes.on_host(chosen)
    if rest > host_bytes:
        raise InputError(
            f"{format_bytes(rest)} of layers and cache are left for the host; {host} has {format_bytes(host_bytes)}.",
            [f"--host-memory {-(-rest // 2**30)}GiB", "fewer bits (--weights), or a card with more memory"],
        )
    return HostSplit(chosen, sizes.most, host, sizes.on_card(chosen), rest)


@dataclass(frozen=True)
class SplitStep:
    """Seconds of iterations (see gpuwise.serving.continuous.IterationTime) of layers on a card and on its host.

    Attributes:
        card, host: seconds of iterations of the whole model on each of them.
        sizes: bytes of the parts.
        gpu_layers: layers on the card, the head included.
        link_bytes_per_s: bandwidth of copies from host to card.

    Layers count as equal: a share of them takes this share of the time of all.
    """

    card: EngineStep
    host: EngineStep
    sizes: LayerBytes
    gpu_layers: int
    link_bytes_per_s: float

    def __call__(self, chunks: Sequence[tuple[int, int]], sequences: int, past_tokens: int) -> float:
        """Seconds of an iteration. Arguments as for IterationTime."""
        users = sequences + len(chunks)
        away = min(self.sizes.layers, self.sizes.most - self.gpu_layers)
        share = away / self.sizes.layers
        card_s = self.card.layers_s(chunks, sequences, past_tokens) if share < 1 else 0.0
        head = self.card if self.gpu_layers else self.host
        seconds = self.card.engine_s(users) + head.head_s(users) + (1 - share) * card_s
        if not away:
            return seconds
        if sequences + sum(new for new, _ in chunks) < COPIED_FROM:
            return seconds + BESIDE_A_CARD * share * self.host.layers_s(chunks, sequences, past_tokens)
        copied = away * self.sizes.layer
        visiting_s = share * (card_s or self.card.layers_s(chunks, sequences, past_tokens))
        return seconds + visiting_s + copied / self.link_bytes_per_s
