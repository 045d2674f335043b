"""The fastest strategies of a job on each of many clusters, whatever their chips."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpuwise.cost.parameters import Parameters
from gpuwise.errors import UnsupportedError
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.types import Chip
from gpuwise.plan.compose.search import ComposedPoint, limits_of, search
from gpuwise.plan.compose.table import BlockTable
from gpuwise.plan.compose.variant import BlockVariant
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.plan.space.layouts import Layouts, ModelLimits, layouts
from gpuwise.strategy import Strategy


class JobBlocks:
    """The blocks of one job, priced on each chip at its first use.

    Arguments:
        traces: the job's traces.
        techniques: precision, optimizer and what else all strategies share; its mesh and batch do not count.
        micro_batches: ascending.
        parameters: figures of the cost model; None takes the shipped ones.

    Raises UnsupportedError for techniques that are not composed.
    """

    def __init__(
        self,
        traces: StepTraces,
        techniques: Strategy,
        *,
        micro_batches: Sequence[int],
        parameters: Parameters | None = None,
    ):
        self.traces, self.techniques, self.micro_batches = traces, techniques, tuple(micro_batches)
        self.parameters = parameters
        self._tables: dict[Chip, BlockTable] = {}

    def on(self, chip: Chip) -> BlockTable:
        """The blocks on a chip."""
        if chip not in self._tables:
            self._tables[chip] = BlockTable(
                self.traces, chip, self.techniques, micro_batches=self.micro_batches, parameters=self.parameters
            )
        return self._tables[chip]


@dataclass(frozen=True)
class BestOnCluster:
    """The best strategies on one cluster.

    Attributes:
        points: the fastest that fit, the best first.
        least_bytes: memory that the strategy needs that needs least; None where no layout makes the global batch.
        problem: why nothing is composed here, as of a link without figures; "" where nothing is in the way.
    """

    points: tuple[ComposedPoint, ...]
    least_bytes: float | None
    problem: str = ""


def best_on(
    blocks: JobBlocks,
    clusters: Sequence[Cluster],
    *,
    global_batch: int,
    recomputes: Sequence[str] = ("none", "full"),
    keep: int = 1,
    layouts_of: Callable[[int, ModelLimits], Layouts] = layouts,
) -> list[BestOnCluster]:
    """The fastest strategies of a global batch on each cluster that fit, in the order of the clusters.

    Arguments:
        global_batch: samples of a step.
        recomputes: those to try, of which the job has traces.
        keep: strategies to return for a cluster.
        layouts_of: layouts to try on a number of devices; by default all. Tensor parallelism stays within a machine.

    Raises UnsupportedError where the job's blocks cannot be composed, and the errors of tracing.
    """
    result = []
    for cluster in clusters:
        table = blocks.on(cluster.chip)
        table.blocks(BlockVariant(recomputes[0]), tp=1, sharded=False)  # what fails here is of the job, not of the cluster
        chosen = layouts_of(cluster.devices, limits_of(table, cluster.devices_per_machine))
        try:
            searched = search(table, cluster, global_batch=global_batch, recomputes=recomputes, keep=keep, chosen=chosen)
        except UnsupportedError as error:
            result.append(BestOnCluster((), None, error.what))
        else:
            result.append(BestOnCluster(searched.best, searched.least_bytes))
    return result
