"""Rows of a recording: the positions of its step, and where each comes from."""

from __future__ import annotations

from typing import NamedTuple


class Origin(NamedTuple):
    """Where an operation comes from: index of its phase, and of its module."""

    phase: int
    module: int


class PositionRow(NamedTuple):
    """One position of the step: index of its operation, module and phase, the micro-batch (0, 1; 2: the update), stream."""

    operation: int
    module: int
    phase: int
    micro_step: int
    stream: int
