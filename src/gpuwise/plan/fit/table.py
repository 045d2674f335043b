"""The rows of a fit: each memory technique beside what is requested, on the same device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpuwise.cost.memory.peak import MOSTLY_STATE, peak_of
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.links import link_inside
from gpuwise.plan.fit.techniques import techniques
from gpuwise.plan.fit.types import LEAST_FREED, FitRow
from gpuwise.plan.pricing.largest import MOST_MICRO_BATCH, largest_counted, largest_micro_batch, one_sample_fits
from gpuwise.plan.pricing.step import StepPricer
from gpuwise.plan.pricing.traces import NOT_TRACED
from gpuwise.strategy import Strategy
from gpuwise.units import format_bytes

# The share of a device that tensors take if the fragmentation of a step is unknown (see SURE_SHARE).
_USUAL_SHARE = 0.9


class TechniqueTable:
    """The rows of one result, each priced against the requested strategy.

    `base` is the forecast of the requested strategy; `peak` is its memory peak.
    """

    def __init__(self, pricer: StepPricer, cluster: Cluster, requested: Strategy, largest: int | None):
        self.pricer, self.cluster, self.requested, self.largest = pricer, cluster, requested, largest
        self.base = pricer.forecast(requested, cluster)
        trace = pricer.trace(requested)
        self.header = trace.header
        self.peak = peak_of(trace)
        self._needed_bytes = pricer.needed_bytes(requested, cluster)
        self._tensor_bytes = self._room_for_tensors()
        optimizer = requested.optimizer or pricer.traces.family(requested).header.strategy.optimizer
        self.techniques = techniques(requested.but(optimizer=optimizer), cluster.chip)

    def first(self) -> FitRow:
        return FitRow("as asked", self.cluster.devices, self.requested, self.largest, self.base.memory, 0, 1.0)

    def rows(self) -> Iterator[FitRow]:
        for technique in self.techniques:
            strategy = technique.of(self.requested)
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
            forecast = self.pricer.forecast(row.strategy, cluster, replay=False)
        except NOT_TRACED as error:
            return replace(row, unavailable=error.what)
        ratio = (self.base.throughput / self.base.count) / (forecast.throughput / forecast.count)
        freed = self._needed_bytes - self.pricer.needed_bytes(row.strategy, cluster)
        row = replace(
            row,
            largest_micro_batch=MOST_MICRO_BATCH if cluster.capacity_bytes is None else largest,
            memory=forecast.memory,
            freed_bytes=freed,
            step_time_ratio=ratio,
        )
        return row if row.frees else replace(row, note=self._why_nothing(row, freed))

    def _room_for_tensors(self) -> int | None:
        """Bytes of tensors that the device holds despite fragmentation, from the largest step that fits."""
        capacity, requested = self.cluster.capacity_bytes, self.requested
        if capacity is None:
            return None
        if self.largest is None:
            return int(capacity * _USUAL_SHARE)
        if self.largest >= MOST_MICRO_BATCH:  # the largest that is tried: nothing shows what fragments take
            return capacity
        more = self.largest + 1
        if not self.pricer.traces.is_of_any_batch(requested):
            return capacity
        return min(capacity, self.pricer.needed_bytes(requested.but(micro_batch=more), self.cluster) - 1)

    def _near_largest(self, strategy: Strategy, cluster: Cluster) -> int | None:
        """The largest micro-batch by counted bytes. If the first row does not fit, `one_sample_fits` decides on one sample."""
        near = largest_counted(self.pricer, strategy, replace(cluster, memory_bytes=self._tensor_bytes))
        if self.largest is not None or cluster.capacity_bytes is None:
            return near
        return max(1, near or 1) if one_sample_fits(self.pricer, strategy, cluster) else None

    def _with_expandable_segments(self, row: FitRow) -> FitRow:
        memory = self.base.memory
        reserved = memory.peak_reserved_expandable_bytes
        if reserved is None:
            return replace(row, unavailable="the allocator was not replayed")
        freed = memory.peak_reserved_bytes - reserved
        largest = largest_micro_batch(self.pricer, row.strategy, self.cluster, expandable=True)
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
        """The device, or as many of it as the strategy's mesh needs."""
        devices, cluster = strategy.mesh.devices, self.cluster
        if devices == cluster.devices:
            return cluster
        inside = link_inside(cluster.chip, devices, catalog=self.pricer.catalog)
        return replace(cluster, devices_per_machine=devices, machines=1, inside=inside)
