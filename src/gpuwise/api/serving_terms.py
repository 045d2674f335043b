"""FleetTerms: how the instances that serve_plan plans are rented, started and stopped, and what that adds to a row."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuwise.api.devices import Device, cheapest_offer
from gpuwise.api.engine_model import EngineModel
from gpuwise.api.serving_arrivals import PlannedLoad
from gpuwise.cost.parameters import parameters
from gpuwise.errors import InputError, UnsupportedError
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.providers import provider
from gpuwise.hardware.types import Offer
from gpuwise.notes import Note
from gpuwise.notes import serving_load as notes
from gpuwise.plan.economics.rented import spot_interruptions_per_day
from gpuwise.serving.cold_start import cold_start
from gpuwise.serving.energy import EnergyUse, energy_use, work_of
from gpuwise.serving.formats import stored
from gpuwise.serving.generation import Generation
from gpuwise.serving.idle import ScaledToZero, scaled_to_zero
from gpuwise.serving.instance import Instance
from gpuwise.serving.rows import ServingRow
from gpuwise.serving.schedule import DAY_S, FleetSchedule
from gpuwise.serving.spot_fleet import SpotFleet, spot_fleet
from gpuwise.serving_settings import ServingSettings
from gpuwise.units import parse_duration


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
        idle_s = -1.0 if self.idle_s is None else self.idle_s
        return (
            *((notes.started_ahead(),) if self.load.schedule.follows else ()),
            *((notes.cold_start_figures(),) if self.starts else ()),
            *((notes.stops_when_idle(idle_s=idle_s),) if self.scales_to_zero else ()),
            *((notes.lost_spot_machines(),) if self.spot else ()),
        )

    def offer(self, device: Device) -> Offer | None:
        """The offer of a device; raises UnsupportedError where spot prices are asked for and none is known."""
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
        per_day = spot_interruptions_per_day(provider(offer.provider)) if offer is not None and self.spot else 0.0
        gone = min(0.5, per_day * start_s / DAY_S)
        return replace(schedule, start_s=start_s if schedule.follows else 0.0, gone=gone)

    def with_running(self, row: ServingRow, device: Device, offer: Offer | None) -> ServingRow:
        """The row with cold start, stops and spot machines; one without an answer stays as it is."""
        if not row.replicas or not self.starts:
            return row
        start = cold_start(row.weight_bytes * device.devices)
        row = replace(row, cold_start=start)
        if self.scales_to_zero:
            row = replace(row, idle=self._idle(row, start.total_s.value))
        return replace(row, spot=self._spot(row, device, offer, start.total_s.value)) if self.spot and offer else row

    def _idle(self, row: ServingRow, start_s: float) -> ScaledToZero:
        multiples = self.load.schedule.multiples
        counts = FleetSchedule(multiples, follows=True).counts(self.load.rate_per_s, row.takes).tolist()
        follows = self.load.schedule.follows
        parts = [
            (self.load.rate_per_s * m, count if follows else max(counts)) for m, count in zip(multiples, counts, strict=True)
        ]
        return scaled_to_zero(
            parts,
            busy_s=row.latency["latency_s"].p50.value,
            idle_s=start_s if self.idle_s is None else self.idle_s,
            start_s=start_s,
            usd_per_hour=row.usd_per_instance_hour,
            always_on_usd_per_hour=row.usd_per_hour,
        )

    def _spot(self, row: ServingRow, device: Device, offer: Offer, start_s: float) -> SpotFleet:
        on_demand = device.offer
        fleet = row.schedule.paid_at(self.load.rate_per_s, row.takes)
        needed = replace(row.schedule, gone=0.0).counts(self.load.rate_per_s, row.takes)
        return spot_fleet(
            usd_per_hour=offer.usd_per_hour,
            on_demand_usd_per_hour=None if on_demand is None else on_demand.usd_per_hour,
            interruptions_per_day=spot_interruptions_per_day(provider(offer.provider)),
            start_s=start_s,
            spare=row.replicas - int(needed.max()),
            paid=fleet,
            rate_per_s=self.load.rate_per_s,
            latency_s=row.latency["latency_s"].p50.value,
        )

    def energy(
        self, row: ServingRow, device: Device, model: EngineModel, instance: Instance, generation: Generation
    ) -> EnergyUse | None:
        """The energy of one of the row's instances at the busiest time; None where its power is unknown."""
        if not row.replicas:
            return None
        weights = stored(generation, model.format)
        if row.reached_per_s is not None:
            rate_per_s = row.reached_per_s / row.replicas
            served = instance.served_to(row.clients, self.load.shape)
        else:
            rate_per_s = self.load.rate_per_s * self.load.schedule.peak / row.replicas
            served = instance.served(self.load.shape.at(rate_per_s))
        return energy_use(
            device.chip,
            served,
            work_of(served, generation, weights),
            precision=weights.arithmetic or model.precision,
            devices=device.devices,
            rate_per_s=rate_per_s,
            parameters=parameters(),
        )
