"""RunningFleet: when how many instances run, start, stop and are lost."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from gpuwise.serving.cold_start import ColdStart
from gpuwise.serving.idle import ScaledToZero
from gpuwise.serving.schedule import CONSTANT, FleetSchedule
from gpuwise.serving.spot_fleet import SpotFleet


@dataclass(frozen=True)
class RunningFleet:
    """How the instances of a row run.

    Attributes:
        schedule: when how many run; all the time as many by default.
        instances: how many run in each of its parts.
        cold_start: of a new instance; None where none starts while others run.
        idle: what stopping an idle instance saves, and who waits; None where that is not looked at.
        spot: what it takes that instances are taken away; None for offers on demand.
    """

    schedule: FleetSchedule = CONSTANT
    instances: tuple[int, ...] = ()
    cold_start: ColdStart | None = None
    idle: ScaledToZero | None = None
    spot: SpotFleet | None = None

    @property
    def hours_paid_per_day(self) -> float:
        """Hours of instances that are paid a day, starts included."""
        return 24 * float(self.schedule.paid_of(np.array([self.instances]))[0])

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "cold_start": None if self.cold_start is None else self.cold_start.to_dict()}


ALL_THE_TIME = RunningFleet()
