"""FleetTerms: how the instances that serve_plan plans are rented, started and stopped, and what that adds to a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from gpuwise.api.devices import Device, cheapest_offer
from gpuwise.api.engine_model import EngineModel
from gpuwise.api.serving_arrivals import PlannedLoad
from gpuwise.cost.parameters import parameters
from gpuwise.errors import InputError, UnsupportedError
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.types import Offer
from gpuwise.notes import Note
from gpuwise.notes import serving_load as notes
from gpuwise.plan.economics.spot_rate import spot_rate
from gpuwise.serving.cold_start import cold_start
from gpuwise.serving.energy import EnergyUse, computed_in, energy_use, work_of
from gpuwise.serving.formats import stored
from gpuwise.serving.generation import Generation
from gpuwise.serving.idle import ScaledToZero, scaled_to_zero
from gpuwise.serving.instance import Instance
from gpuwise.serving.rows import ServingRow
from gpuwise.serving.schedule import DAY_S, FleetSchedule
from gpuwise.serving.served import Served
from gpuwise.serving.spot_fleet import SpotFleet, spot_fleet
from gpuwise.serving_settings import ServingSettings
from gpuwise.units import parse_duration

EnergyOf = Callable[[Served, float], EnergyUse | None]


@dataclass(frozen=True)
class FleetTerms:
    """How instances are rented, started and stopped.

    Attributes:
        catalog: source of offers.
        load: that they serve.
        spot: whether at spot prices.
        scales_to_zero: whether to look at stopping idle instances.
        idle_s: how long they are idle before that; None for as long as a cold start takes.
    """

    catalog: Catalog
    load: PlannedLoad
    spot: bool = False
    scales_to_zero: bool = False
    idle_s: float | None = None

    @classmethod
    def of(cls, requested: ServingSettings, *, catalog: Catalog, load: PlannedLoad) -> FleetTerms:
        """The terms that the settings describe. Raises InputError for an idle time of instances that never stop."""
        idle, to_zero = requested.get("idle"), bool(requested.get("scale_to_zero"))
        if idle is not None and not to_zero:
            raise InputError(
                "--idle is the time before an instance stops, and none does.", ["--scale-to-zero", "leave out --idle"]
            )
        return cls(catalog, load, bool(requested.get("spot")), to_zero, None if idle is None else parse_duration(idle))

    @property
    def terms(self) -> str:
        """Of the offers."""
        return "spot" if self.spot else "on-demand"

    @property
    def starts(self) -> bool:
        """Whether instances start while others serve."""
        return self.spot or self.scales_to_zero or self.load.schedule.follows

    @property
    def notes(self) -> tuple[Note, ...]:
        """What is assumed of starts, stops and spot machines."""
        return (
            *((notes.started_ahead(),) if self.load.schedule.follows else ()),
            *((notes.cold_start_figures(),) if self.starts else ()),
            *((notes.stops_when_idle(idle_s=self.idle_s),) if self.scales_to_zero else ()),
            *((notes.lost_spot_machines(),) if self.spot else ()),
        )

    def offer(self, device: Device) -> Offer | None:
        """The offer of a device; raises UnsupportedError where spot prices are requested and there is none."""
        if not self.spot:
            return device.offer
        offer = cheapest_offer(self.catalog, device.chip, device.count, terms="spot") if device.spec.machine is None else None
        if offer is None:
            raise UnsupportedError(f"the catalog has no spot offer of {device.cluster.name}", ["leave out --spot"])
        return offer

    def schedule(self, offer: Offer | None, weight_bytes: float) -> FleetSchedule:
        """When how many instances run. weight_bytes: of an instance, on all of its devices."""
        schedule = self.load.schedule
        if not self.spot and not schedule.follows:
            return schedule
        start_s = cold_start(weight_bytes).total_s.value
        per_day = spot_rate(offer).per_day if offer is not None and self.spot else 0.0
        gone = min(0.5, per_day * start_s / DAY_S)
        return replace(schedule, start_s=start_s if schedule.follows else 0.0, gone=gone)

    def with_running(
        self, row: ServingRow, device: Device, offer: Offer | None, *, instance: Instance, energy: EnergyOf | None
    ) -> ServingRow:
        """The row with energy, cold start, stops and spot machines; one without an answer stays as it is.

        energy: of one of its instances, from the outcome of a load that comes at a rate; None where that is unknown.
        """
        if not row.replicas:
            return row
        served, rate_per_s = self._busiest(row, instance)
        row = replace(row, energy=energy(served, rate_per_s) if energy else None)
        if not self.starts:
            return row
        start, latency_s = cold_start(row.weight_bytes * device.devices), float(np.nanmean(served.latency_s))
        running, start_s = replace(row.running, cold_start=start), start.total_s.value
        if self.scales_to_zero:
            running = replace(running, idle=self._idle(row, start_s, latency_s=latency_s))
        if self.spot and offer is not None:
            running = replace(running, spot=self._spot(row, device.offer, offer, start_s, latency_s=latency_s))
        return replace(row, running=running)

    def _busiest(self, row: ServingRow, instance: Instance) -> tuple[Served, float]:
        """What comes to one instance at the busiest time: its outcome, and its rate."""
        if row.reached_per_s is not None:
            return instance.served_to(row.clients, self.load.shape), row.reached_per_s / row.replicas
        rate_per_s = self.load.rate_per_s * self.load.schedule.peak / row.replicas
        return instance.served(self.load.shape.dealt(row.replicas).at(rate_per_s)), rate_per_s

    def _idle(self, row: ServingRow, start_s: float, *, latency_s: float) -> ScaledToZero:
        rate_per_s, schedule = self.load.rate_per_s, self.load.schedule
        counts = replace(schedule, follows=True).counts(rate_per_s, row.takes).tolist()
        counts = counts if schedule.follows else [max(counts)] * len(counts)
        return scaled_to_zero(
            [(rate_per_s * multiple, count) for multiple, count in zip(schedule.multiples, counts, strict=True)],
            busy_s=latency_s,
            idle_s=start_s if self.idle_s is None else self.idle_s,
            start_s=start_s,
            usd_per_hour=row.usd_per_instance_hour,
            always_on_usd_per_hour=row.usd_per_hour,
        )

    def _spot(self, row: ServingRow, on_demand: Offer | None, offer: Offer, start_s: float, *, latency_s: float) -> SpotFleet:
        needed = replace(row.running.schedule, gone=0.0).counts(self.load.rate_per_s, row.takes)
        return spot_fleet(
            usd_per_hour=offer.usd_per_hour,
            on_demand_usd_per_hour=None if on_demand is None else on_demand.usd_per_hour,
            interruptions_per_day=spot_rate(offer).per_day,
            start_s=start_s,
            spare=row.replicas - int(needed.max()),
            paid=row.running.schedule.paid_at(self.load.rate_per_s, row.takes),
            rate_per_s=self.load.rate_per_s,
            latency_s=latency_s,
        )


def energy_of(device: Device, model: EngineModel, generation: Generation) -> EnergyOf:
    """The energy of an instance of a model on a device, from the outcome of a load that comes at a rate."""
    weights, in_turn = stored(generation, model.format), model.in_turn(device)

    def of(served: Served, rate_per_s: float) -> EnergyUse | None:
        return energy_use(
            device.chip,
            served,
            work_of(served, generation, weights).part(in_turn),
            precision=computed_in(device.chip, weights, model.precision_on(device.chip)),
            devices=device.devices,
            rate_per_s=rate_per_s,
            iterations=model.engine.spread,
            parameters=parameters(),
        )

    return of
