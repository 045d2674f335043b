"""The experts of a recorded mixture apart from the rest of its model: what runs, and how many of them are read."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpuwise.serving.generation import Generation
from gpuwise.serving.parts import part_at
from gpuwise.serving.sharing import GROUPED, distinct_experts, experts_of


@dataclass(frozen=True)
class ExpertShape:
    """Experts of a mixture.

    Attributes:
        layers: layers that have experts.
        experts: of one layer, among which its router chooses.
        chosen: experts of a token in each layer.
    """

    layers: int
    experts: int
    chosen: int

    def read_share(self, tokens: int) -> float:
        """Share of a layer's experts that some of the tokens choose, if all are equally likely."""
        return distinct_experts(self.experts, self.chosen, tokens) / self.experts


def expert_shape(generation: Generation) -> ExpertShape | None:
    """The experts of a recorded model; None where it has none, or runs all of them in every pass."""
    rows = np.flatnonzero(_grouped(generation))
    if not len(rows):
        return None
    trace = generation.tokens.at(micro_batch=1, new_tokens=1)
    operation = int(trace.sequence.operation[rows[0]])
    experts = experts_of(trace.operations.values[operation], trace.operations.dtype[operation])
    return ExpertShape(len(rows) // 2, experts, int(trace.operations.column("m")[operation]))


def without_experts(generation: Generation) -> Generation:
    """The model that does all but multiply with its experts."""
    return replace(generation, tokens=part_at(generation.tokens, ~_within(generation)))


def experts_alone(generation: Generation) -> Generation:
    """The experts of the model: no attention, no head, no cache."""
    tokens = part_at(generation.tokens, _within(generation))
    return replace(generation, tokens=tokens, attention=(), cache_bytes_per_token=0, cache_bytes_per_sequence=0)


def _grouped(generation: Generation) -> np.ndarray:
    """Which positions multiply with experts. Shape (positions,)."""
    names = np.array([GROUPED in name for name in generation.tokens.operations.name], dtype=bool)
    return names[generation.tokens.sequence.operation]


def _within(generation: Generation) -> np.ndarray:
    """Which positions run in experts: from the product into them to what follows the one out of them, which weighs its
    results. Shape (positions,)."""
    grouped = _grouped(generation)
    inside = np.cumsum(grouped) % 2 == 1
    return grouped | inside | np.concatenate([[False], grouped[:-1] & ~inside[:-1]])
