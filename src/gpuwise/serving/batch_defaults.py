"""How many sequences and new tokens engines take at once where nobody names a number: by the device's memory, and its cache."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30
PER_CONTEXT = 512  # sequences for each context that SGLang's cache has room for (_resolve_max_num_reqs of its model runner)


@dataclass(frozen=True)
class BatchLimits:
    """Most sequences, and most new tokens of an iteration, at once.

    Attributes:
        batched_tokens: new tokens, those of decoding sequences included.
        sequences: that run.
    """

    batched_tokens: int
    sequences: int


@dataclass(frozen=True)
class BatchDefaults:
    """An engine's limits where nobody names any.

    Attributes:
        least: on the smallest devices.
        by_memory: memory in GiB from which a device has others, in ascending order, and those.
        small: beginnings of the ids of chips that have the least ones at any size of memory; none by default.
        most_sequences: up to which they grow with the cache; 0 (default) where they do not.
    """

    least: BatchLimits
    by_memory: tuple[tuple[float, BatchLimits], ...] = ()
    small: tuple[str, ...] = ()
    most_sequences: int = 0

    def on(self, chip: str, capacity_bytes: int) -> BatchLimits:
        """The limits on a device. chip: its id in the catalog, "" where it has none."""
        limits = self.least
        if self.small and chip.startswith(self.small):
            return limits
        for gib, larger in self.by_memory:
            limits = larger if capacity_bytes >= gib * GIB else limits
        return limits

    def grown(self, sequences: int, *, cache_tokens: int, context: int) -> int:
        """Sequences of an instance with this cache. context: tokens of the longest sequence."""
        if not self.most_sequences:
            return sequences
        grown = min(max(PER_CONTEXT * cache_tokens // context, sequences), self.most_sequences)
        return max(1, min(grown, cache_tokens // 2))
