"""EngineServer: an engine that serve_plan has figures of, as it serves on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuwise.serving.formats import Format
from gpuwise.serving.group_server import IterationServer
from gpuwise.serving.step_time import EngineStep


@dataclass(frozen=True)
class EngineTimes:
    """Times of an engine's iterations (an IterationTime of gpuwise.serving.continuous).

    Attributes:
        step: which makes them.
        spread: low and high of measured over forecast times.
    """

    step: EngineStep
    spread: tuple[float, float]

    def __call__(self, chunks: Sequence[tuple[int, int]], sequences: int, past_tokens: int) -> float:
        return self.step(chunks, sequences, past_tokens)


@dataclass(frozen=True)
class EngineServer(IterationServer):
    """An engine with continuous batching.

    Attributes:
        format: of its weights.
        context: most tokens of a sequence.
    """

    format: Format
    context: int

    @property
    def settings(self) -> dict[str, object]:
        return {**super().settings, "weights": self.format.name, "context": self.context}
