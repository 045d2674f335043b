"""An instance across machines: each has a part of the layers, which its devices share, and passes go from one to the next.

As many batches are under way as there are machines, each with its part of the sequences, so all machines work at once (vLLM's
pipeline parallelism). While every batch passes through all machines, each decoding sequence writes one token: this round is
what the queue is simulated in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuwise.serving.step_time import EngineStep


@dataclass(frozen=True)
class Hop:
    """What passes from machine to machine.

    Attributes:
        latency_s: of a message.
        token_s: seconds that each token of a batch adds.
    """

    latency_s: float
    token_s: float


@dataclass(frozen=True)
class PipelinedStep:
    """Seconds of rounds (see gpuwise.serving.continuous.IterationTime) in which every batch passes through all machines once.

    Attributes:
        step: seconds of iterations of the whole model on the devices of one machine.
        stages: machines.
        batched_tokens: most new tokens of a batch.
        hop: between two machines.

    A round is as long as a batch takes through all stages, since the next batch enters a stage when the one before leaves it.
    """

    step: EngineStep
    stages: int
    batched_tokens: int
    hop: Hop

    def __call__(self, chunks: Sequence[tuple[int, int]], sequences: int, past_tokens: int) -> float:
        """Seconds of a round. Arguments as for IterationTime."""
        own = -(-sequences // self.stages)  # of the largest batch
        past = round(past_tokens * own / sequences) if sequences else 0
        first = self._of_one_batch(chunks)
        tokens = own + sum(new for new, _ in first)
        kernels_s = self.step.head_s(own + len(first)) + self.step.layers_s(first, own, past)
        hops_s = (self.stages - 1) * (self.hop.latency_s + tokens * self.hop.token_s)
        return self.step.engine_s(own + len(first)) + max(kernels_s, self.step.launching_s(reads=bool(first))) + hops_s

    def _of_one_batch(self, chunks: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """The parts of prompts of the fullest batch: those that come first, up to its tokens."""
        left, first = self.batched_tokens, list[tuple[int, int]]()
        for new, past in chunks:
            if not left:
                break
            first.append((min(new, left), past))
            left -= first[-1][0]
        return first


@dataclass(frozen=True)
class Pipelined:
    """What a row says of an instance across machines.

    Attributes:
        machines: that have a part of the layers each.
        devices: of one machine, which share its layers.
        layers: most layers of a machine.
        link: name of the network between them.
        hop_s: time of one token from machine to machine.
    """

    machines: int
    devices: int
    layers: int
    link: str
    hop_s: float

    @property
    def words(self) -> str:
        """A sentence for the report."""
        return (
            f"{self.machines} machines with up to {self.layers:,} layers each, which {self.devices} devices share; "
            f"a token takes {1e6 * self.hop_s:.3g} µs from one to the next over {self.link}"
        )
