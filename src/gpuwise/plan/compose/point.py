"""ComposedPoint: one strategy of a search over arrays."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwise.strategy import Strategy


@dataclass(frozen=True)
class ComposedPoint:
    """One strategy of a search.

    Attributes:
        strategy: with its mesh and batch.
        step_s: seconds of a step, composed.
        device_bytes: memory of the device that needs most, composed.
    """

    strategy: Strategy
    step_s: float
    device_bytes: float
