"""EngineServer: an engine that serve_plan has figures of, as it serves on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuwise.serving.formats import Format
from gpuwise.serving.group_server import CheckedServer
from gpuwise.serving.instance import Instance
from gpuwise.serving.policy import BatchingPolicy
from gpuwise.serving.profile import CorrectedIterations, PassProfile, corrected_iterations
from gpuwise.serving.requests import Requests
from gpuwise.serving.served import Served
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
class EngineServer(CheckedServer):
    """An engine with continuous batching.

    Attributes:
        times: of its iterations.
        policy: how it forms them.
        format: of its weights.
        context: most tokens of a sequence.
    """

    times: EngineTimes | CorrectedIterations
    policy: BatchingPolicy
    format: Format
    context: int

    @property
    def settings(self) -> dict[str, object]:
        return {**super().settings, "weights": self.format.name, "context": self.context}

    @property
    def unlimited(self) -> EngineServer:
        return replace(self, policy=replace(self.policy, queue=None))

    def timed(self, profile: PassProfile) -> EngineServer:
        """The same server, with what was timed of it. Its iterations carry all that it adds."""
        return replace(self, times=corrected_iterations(self.times, profile))

    def served(self, load: Requests, *, factor: float = 1.0) -> Served:
        return Instance(self.times, self.policy, self.spread).served(load, factor=factor)
