"""What is composed anew: a variant of the step's blocks, and the micro-batches at which they are priced."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwise.strategy import Mesh, Parallelism, Strategy


@dataclass(frozen=True)
class BlockVariant:
    """Settings under which blocks run other operations.

    Attributes:
        recompute: as in Strategy, none by default.
        sequence_parallel, loss_parallel: as in Parallelism, False by default.
        cp, ep: ranks that each hold a part of a sequence, or of the experts, as in Mesh; 1 by default.
    """

    recompute: str = "none"
    sequence_parallel: bool = False
    loss_parallel: bool = False
    cp: int = 1
    ep: int = 1

    def of(self, strategy: Strategy, *, tp: int, shards: int = 1) -> Strategy:
        """The strategy with these settings, on the ranks of tp and cp, and so many shards of each."""
        parallelism = Parallelism(sequence_parallel=self.sequence_parallel, loss_parallel=self.loss_parallel)
        return strategy.but(
            recompute=self.recompute, mesh=Mesh(tp=tp, cp=self.cp, ep=self.ep, dp_shard=shards), parallelism=parallelism
        )
