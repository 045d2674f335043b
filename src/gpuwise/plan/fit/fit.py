"""fit: the largest micro-batch on a device, where its memory peaks, and what each technique would free and cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from gpuwise.cost.forecast import Forecast
from gpuwise.cost.memory.peak import MOSTLY_STATE, peak_of
from gpuwise.cost.rates import check_can_run
from gpuwise.errors import GpuwiseError, InputError, MissingDependencyError, PrecisionError, UnsupportedError
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.links import link_inside
from gpuwise.hardware.types import Chip
from gpuwise.notes import Note
from gpuwise.notes.step import memory_not_known
from gpuwise.plan.fit import nearest
from gpuwise.plan.fit.techniques import techniques
from gpuwise.plan.fit.types import LEAST_FREED, FitResult, FitRow
from gpuwise.plan.space import legal
from gpuwise.plan.space.micro_batch import MOST_MICRO_BATCH, largest_counted, largest_micro_batch, needed_bytes, remember
from gpuwise.plan.step import forecast_of
from gpuwise.plan.traces import Traces
from gpuwise.strategy import Mesh, Strategy
from gpuwise.trace.update.compose import with_plain_update
from gpuwise.units import format_bytes

if TYPE_CHECKING:
    from gpuwise.plan.types import TraceSource

# The share of a device that tensors take where nothing is known of a step's fragments (see SURE_SHARE).
_USUAL_SHARE = 0.9


def fit(
    source: TraceSource,
    cluster: Cluster,
    *,
    catalog: Catalog,
    asked: Strategy,
    precision: str | None = None,
    micro_batch: int | None = None,
    sizes: Mapping[str, int] | None = None,
    at_hand: Callable[[Strategy, Strategy], bool] | None = None,
) -> FitResult:
    """What fits a device, and what each memory technique changes.

    Arguments:
        cluster: the devices; each holds a full copy where the mesh of what is asked is not theirs.
        catalog: where nearer chips and the links of sharded rows come from.
        asked: everything but the micro-batch and the precision. precision: the chip's best where None.
        micro_batch: the one to compare techniques at; the largest that fits where None.
        at_hand: whether a variant may be asked of the source, given it and the one of what is asked; None: any may.
    Raises UnsupportedError where the chip cannot run the job in that precision, and what the source raises.
    """
    traces = Traces(source, sizes or {}, asked.optimizer, asked.mode)
    chip, count, capacity = cluster.chip, cluster.devices, cluster.capacity_bytes
    check_can_run(chip, mode=asked.mode)
    chosen, assumptions = _precision(traces, asked, chip, precision)
    if at_hand is not None:
        mine = asked.but(precision=chosen).variant
        plain = with_plain_update(mine)
        traces.at_hand = lambda variant: variant in (mine, plain) or at_hand(variant, plain)
    asked = asked.but(precision=chosen, mesh=asked.mesh if asked.mesh.devices == count else Mesh(dp_replicate=count))
    largest = largest_micro_batch(traces, asked, cluster)
    equal = micro_batch or largest or 1
    if capacity is None:
        equal = micro_batch or 1
        assumptions.append(memory_not_known())
    asked = asked.but(micro_batch=equal)
    table = _Table(traces, catalog, cluster, asked, largest)
    rows = [table.first(), *sorted(table.rows(), key=lambda row: row.trade)]
    header = table.base_header
    best = None
    if largest is not None:
        best = table.base if largest == equal or capacity is None else table.priced(asked.but(micro_batch=largest), cluster)
    result = FitResult(
        header.job,
        chip.id,
        count,
        capacity,
        equal,
        tuple(rows),
        best,
        table.peak,
        assumption_notes=(*header.assumption_notes, *assumptions),
    )
    return result if largest is not None else _with_ways_out(result, table, catalog)


class _Table:
    """The rows of one answer, each priced against what is asked.

    base: its forecast; peak: where its memory peaks.
    """

    def __init__(self, traces: Traces, catalog: Catalog, cluster: Cluster, asked: Strategy, largest: int | None):
        self.traces, self.catalog, self.cluster, self.asked, self.largest = traces, catalog, cluster, asked, largest
        self.base = self.priced(asked, cluster, exact=True)
        remember(traces, asked, cluster.chip, self.base.memory)
        trace = traces.trace(asked)[0]
        self.base_header = trace.header
        self.peak = peak_of(trace)
        self._needed_bytes = needed_bytes(traces, asked, cluster)
        self._holds_bytes = self._tensors_it_holds()
        named = asked.but(optimizer=asked.optimizer or traces.family(asked).header.strategy.optimizer)
        self.techniques = techniques(named, cluster.chip)

    def priced(self, strategy: Strategy, cluster: Cluster, *, exact: bool = True) -> Forecast:
        """A forecast with what offloading adds. exact: the allocator is replayed."""
        return forecast_of(
            self.traces.trace,
            strategy,
            cluster,
            catalog=self.catalog,
            replay=exact,
        )

    def first(self) -> FitRow:
        return FitRow("as asked", self.cluster.devices, self.asked, self.largest, self.base.memory, 0, 1.0)

    def rows(self) -> Iterator[FitRow]:
        for technique in self.techniques:
            strategy = technique.of(self.asked)
            if strategy is None:
                continue
            row = FitRow(
                technique.name,
                strategy.mesh.devices,
                strategy,
                kind=technique.kind,
                note=technique.note,
                changes_training=technique.changes_training,
            )
            if technique.kind == "allocator":
                yield self._with_expandable_segments(row)
            else:
                yield self._row(row)

    def _row(self, row: FitRow) -> FitRow:
        cluster = self.cluster_of(row.strategy)
        try:
            largest = self._near_largest(row.strategy, cluster)
            forecast = self.priced(row.strategy, cluster, exact=False)
        except (UnsupportedError, MissingDependencyError, InputError) as error:
            return replace(row, unavailable=error.what)
        ratio = (self.base.throughput / self.base.count) / (forecast.throughput / forecast.count)
        freed = self._needed_bytes - needed_bytes(self.traces, row.strategy, cluster)
        row = replace(
            row,
            largest_micro_batch=MOST_MICRO_BATCH if cluster.capacity_bytes is None else largest,
            memory=forecast.memory,
            freed_bytes=freed,
            step_time_ratio=ratio,
        )
        return row if row.frees else replace(row, note=self._why_nothing(row, freed))

    def _tensors_it_holds(self) -> int | None:
        """Bytes that the device holds beside what fragments take: learned from where the step as asked stops to fit."""
        capacity, asked = self.cluster.capacity_bytes, self.asked
        if capacity is None:
            return None
        if self.largest is None:
            return int(capacity * _USUAL_SHARE)
        more = self.largest + 1
        if not self.traces.family(asked).covers({"micro_batch": more}):
            return capacity
        return min(capacity, needed_bytes(self.traces, asked.but(micro_batch=more), self.cluster) - 1)

    def _near_largest(self, strategy: Strategy, cluster: Cluster) -> int | None:
        """The largest micro-batch by counted bytes; whether one sample fits is decided by a replay where it is close."""
        near = largest_counted(self.traces, strategy, replace(cluster, memory_bytes=self._holds_bytes))
        if self.largest is not None or cluster.capacity_bytes is None:
            return near
        return max(1, near or 1) if nearest.holds(self.traces, strategy, cluster) else None

    def _with_expandable_segments(self, row: FitRow) -> FitRow:
        memory = self.base.memory
        reserved = memory.peak_reserved_expandable_bytes
        if reserved is None:
            return replace(row, unavailable="the allocator was not replayed")
        freed = memory.peak_reserved_bytes - reserved
        largest = largest_micro_batch(self.traces, row.strategy, self.cluster, expandable=True)
        memory = replace(memory, peak_reserved_bytes=reserved, device_bytes=memory.device_bytes - freed)
        row = replace(row, largest_micro_batch=largest, memory=memory, freed_bytes=freed, step_time_ratio=1.0)
        return row if row.frees else replace(row, note=f"{row.note}; little is lost to fragments here")

    def _why_nothing(self, row: FitRow, freed: int) -> str:
        if row.kind == "accumulation" and freed < 0:
            return "adds one copy of the gradients, kept from one micro-batch to the next"
        if freed < -LEAST_FREED * self._needed_bytes:
            return f"takes {format_bytes(-freed)} more"
        if freed > 0:
            return f"frees only {format_bytes(freed)}"
        where = {"loss": "the loss", "optimizer": "the optimizer step"}.get(self.peak.where, f"in {self.peak.where}")
        made_of = ", made of parameters, gradients and optimizer state" if self.peak.state_share > MOSTLY_STATE else ""
        return f"the peak is {where}{made_of}: this leaves it as it is"

    def cluster_of(self, strategy: Strategy) -> Cluster:
        """The device, or as many of it as the strategy's mesh has."""
        devices, cluster = strategy.mesh.devices, self.cluster
        if devices == cluster.devices:
            return cluster
        return replace(cluster, devices_per_machine=devices, inside=link_inside(cluster.chip, devices, catalog=self.catalog))


def _with_ways_out(result: FitResult, table: _Table, catalog: Catalog) -> FitResult:
    """With what would make it fit."""
    traces, asked, cluster, rows = table.traces, table.asked, table.cluster, result.rows[1:]
    alone = ("allocator", "combination", "accumulation")
    useful = [row for row in rows if row.frees and row.devices == cluster.devices and row.kind not in alone]
    known = {technique.name: technique for technique in table.techniques}
    # Best trade first; where the best of each kind is not enough, what frees most.
    strongest = sorted(useful, key=lambda row: (row.changes_training, -(row.freed_bytes or 0)))
    orders = [[known[row.technique] for row in order] for order in (useful, strongest)]
    return replace(
        result,
        nearest_chips=nearest.nearest_chips(traces, asked, catalog, cluster),
        nearest_techniques=tuple(row.technique for row in rows if row.largest_micro_batch),
        nearest_combination=next(
            filter(None, (nearest.nearest_combination(traces, asked, order, cluster) for order in orders)), None
        ),
        nearest_devices=nearest.nearest_devices(traces, asked, catalog, cluster),
    )


def _precision(traces: Traces, asked: Strategy, chip: Chip, pinned: str | None) -> tuple[str, list[Note]]:
    choices = legal.precisions_for(chip, pinned, mode=asked.mode)
    if not choices:
        what = f"in {pinned}" if pinned else "in any known precision"
        way = f"one of: {', '.join(legal.precisions_for(chip))}" if pinned else "gpuwise chips lists others"
        raise UnsupportedError(f"{chip.id} does not compute {what}.", [way])
    problem: GpuwiseError | None = None
    for precision in choices:
        try:
            traces.family(asked.but(precision=precision))
        except (UnsupportedError, MissingDependencyError) as error:
            problem = problem or error
        else:
            refused = problem if isinstance(problem, PrecisionError) else None
            return precision, [] if pinned else [legal.assumed_precision(precision, refused)]
    assert problem is not None
    raise problem
