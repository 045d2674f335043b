"""BlockTable: a model's blocks, and what lies before and behind them, priced on one chip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuwise.cost.parameters import Parameters
from gpuwise.hardware.types import Chip
from gpuwise.plan.compose.blocks import JobBlocks, VariantRows
from gpuwise.plan.compose.holdings import Holdings, UpdateCost
from gpuwise.plan.compose.lives import Lives
from gpuwise.plan.compose.parts import CELLS
from gpuwise.plan.compose.variant import BlockVariant
from gpuwise.plan.compose.workload import Workload
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.strategy import Strategy
from gpuwise.trace.trace import Trace


@dataclass(frozen=True)
class PricedParts:
    """The parts of a step at several micro-batches, by CELLS: section, phase and micro-step.

    Attributes:
        device_s: of their kernels. Shape (micro-batches, *CELLS).
        calls, kernels: that the host launches. Shape CELLS.
    """

    device_s: np.ndarray
    calls: np.ndarray
    kernels: np.ndarray


@dataclass(frozen=True)
class VariantBlocks:
    """The blocks of one variant on one of tp ranks, priced at the table's micro-batches.

    Attributes:
        rows: what they run.
        parts: their seconds.
    """

    rows: VariantRows
    parts: PricedParts

    @property
    def payload_bytes(self) -> np.ndarray:
        return self.rows.payload_bytes

    @property
    def calls(self) -> np.ndarray:
        return self.rows.calls

    @property
    def send_bytes(self) -> np.ndarray:
        return self.rows.send_bytes


class BlockTable:
    """Blocks of one job on one chip, priced at their first use. Arguments and errors as for JobBlocks.

    Arguments:
        chip: every device.
    """

    def __init__(
        self,
        traces: StepTraces,
        chip: Chip,
        techniques: Strategy,
        *,
        micro_batches: Sequence[int],
        parameters: Parameters | None = None,
        by_heads: bool = False,
    ):
        self.job = JobBlocks(traces, techniques, micro_batches=micro_batches, parameters=parameters, by_heads=by_heads)
        self.chip, self.techniques = chip, techniques
        self.micro_batches, self.parameters = self.job.micro_batches, self.job.parameters
        self.priced = 0  # points: a variant at one micro-batch and tensor-parallel degree
        self._variants: dict[tuple[int, bool, BlockVariant], VariantBlocks] = {}
        self._holdings: dict[tuple[int, bool], tuple[Holdings, UpdateCost]] = {}

    @property
    def whole(self) -> Trace:
        """The step of the whole model on one device."""
        return self.job.whole

    def blocks(self, variant: BlockVariant, *, tp: int, sharded: bool) -> VariantBlocks:
        """The blocks of a variant. Raises the errors of JobBlocks.rows and of pricing."""
        key = (tp, sharded, variant)
        if key not in self._variants:
            rows = self.job.rows(variant, tp=tp, sharded=sharded)
            workload = Workload([rows.parts.work], precision=self.techniques.precision)
            device_s = workload.seconds(self.chip, self.parameters)[0].reshape(-1, *CELLS)
            self._variants[key] = VariantBlocks(rows, PricedParts(device_s, rows.parts.calls, rows.parts.kernels))
            self.priced += len(self.micro_batches)
        return self._variants[key]

    def lives(self, variant: BlockVariant, *, tp: int, sharded: bool, freed: bool) -> Lives:
        """What lives in a variant's blocks, as JobBlocks has it."""
        return self.job.lives(variant, tp=tp, sharded=sharded, freed=freed)

    def holdings(self, *, tp: int, sharded: bool) -> tuple[Holdings, UpdateCost]:
        """What a rank holds, and the cost of its update. Errors as for `blocks`."""
        if (tp, sharded) not in self._holdings:
            of_rank, update = self.job.holdings(tp=tp, sharded=sharded)
            works = Workload(update.works, precision=self.techniques.precision)
            device_s = [float(seconds.sum()) for seconds in works.seconds(self.chip, self.parameters)]
            self._holdings[tp, sharded] = of_rank, update.cost(device_s)
        return self._holdings[tp, sharded]

    def element_bytes(self, *, sharded: bool) -> tuple[int, float]:
        """As JobBlocks has it."""
        return self.job.element_bytes(sharded=sharded)
