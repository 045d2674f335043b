"""BatchingPolicy: how an engine forms its iterations."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuwise.errors import InputError


@dataclass(frozen=True)
class BatchingPolicy:
    """Continuous batching over a paged cache.

    Attributes:
        batched_tokens: most new tokens of an iteration, those of decoding sequences included.
        sequences: most sequences that run at once.
        cache_tokens: tokens whose keys and values fit into memory.
        block_tokens: tokens of a block of the cache; 16 by default.
        chunked: whether an iteration mixes a part of a prompt with decoding (the default). If False, waiting prompts run
            first, whole and alone, and decoding waits for them.
        whole: whether prompts that are mixed with decoding are not split, so that one that does not fit beside it waits; False
            by default.
        ahead: whether a batch is put together while the one before it runs, so that a request which comes meanwhile joins the
            one after it; False by default.
        queue: most requests that wait; one more is turned away. None (default) for no limit.
        brought: whether cached tokens of a prompt come with the request and take memory of its own, as where another instance
            read the prompt. If False (the default), they are in the prefix cache, which many requests share.
        request_s: seconds from a request's arrival to the queue; 0 by default.
    """

    batched_tokens: int
    sequences: int
    cache_tokens: int
    block_tokens: int = 16
    chunked: bool = True
    whole: bool = False
    ahead: bool = False
    queue: int | None = None
    brought: bool = False
    request_s: float = 0.0

    def __post_init__(self) -> None:
        if min(self.batched_tokens, self.sequences, self.block_tokens) < 1:
            raise InputError("An engine must take at least one token, one sequence and blocks of one token.")
        if self.cache_tokens < self.block_tokens:
            raise InputError(
                f"The cache holds {self.cache_tokens:,} tokens, less than one block of {self.block_tokens}.",
                ["take a device with more memory", "store weights or cache in fewer bits"],
            )
        if self.queue is not None and self.queue < 0:
            raise InputError("A queue holds 0 requests or more.")

    def with_slots(self, tokens: int) -> BatchingPolicy:
        """The policy of an engine whose sequences each have a context of their own, of so many tokens: no more sequences than
        the cache has such contexts, and at least one."""
        return replace(self, sequences=max(1, min(self.sequences, self.cache_tokens // tokens)))

    @property
    def blocks(self) -> int:
        """Whole blocks of the cache."""
        return self.cache_tokens // self.block_tokens

    def blocks_of(self, tokens: int) -> int:
        """Blocks that the keys and values of `tokens` tokens take."""
        return -(-tokens // self.block_tokens)
