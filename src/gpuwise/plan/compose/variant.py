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
    """

    recompute: str = "none"
    sequence_parallel: bool = False
    loss_parallel: bool = False

    def of(self, strategy: Strategy, *, tp: int) -> Strategy:
        """The strategy with these settings, on tensor-parallel ranks alone."""
        parallelism = Parallelism(sequence_parallel=self.sequence_parallel, loss_parallel=self.loss_parallel)
        return strategy.but(recompute=self.recompute, mesh=Mesh(tp=tp), parallelism=parallelism)
