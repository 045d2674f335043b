"""The answer of a sweep. All are frozen; names carry the units."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from gpuwise.cost.forecast import Interval
from gpuwise.hardware.types import Offer
from gpuwise.printed import Printed


@dataclass(frozen=True)
class SweepPlan:
    """All runs on machines of one offer.

    Attributes:
        rank: from 1.
        offer: the machine.
        device: its chip.
        machines: how many are rented at once, at first.
        devices_each: devices of one.
        copies: runs at once on a device.
        busy: share of its step that one run alone keeps a device busy.
        run_hours: of one run alone on a device, or on its devices.
        hours: until all have ended, with its 90 % interval.
        usd: of all machines, set-up included, with its 90 % interval.
        one_at_a_time_usd, one_at_a_time_hours: the same machines with one run on a device at a time; None where they cannot.
        runs_per_hour: of one device, when it is full.
        usd_per_device_hour: likely price.
        strategy: of one run, in the flags of the command line.
        train_obstacle: why `gpuwise train` cannot run it; "" where it can.
        devices_per_run: of one run, more than 1 (default) where one device does not hold it.
    """

    rank: int
    offer: Offer
    device: str
    machines: int
    devices_each: int
    copies: int
    busy: float
    run_hours: float
    hours: Interval
    usd: Interval
    one_at_a_time_usd: float | None
    one_at_a_time_hours: float | None
    runs_per_hour: float
    usd_per_device_hour: float
    strategy: str
    train_obstacle: str
    devices_per_run: int = 1

    def to_dict(self) -> dict[str, object]:
        """The JSON contract of `gpuwise plan --runs --json`, one entry of `plans`."""
        return {**asdict(self), "offer": self.offer.to_dict()}


@dataclass(frozen=True, repr=False)
class SweepResult(Printed):
    """The machines for a sweep, best first.

    Attributes:
        job: its name.
        runs: number of runs.
        plans: the table.
        why: reasons for the first, in sentences.
        rejected: number of offers by reason.
        assumptions: in sentences.
    """

    job: str
    runs: int
    plans: tuple[SweepPlan, ...]
    why: tuple[str, ...]
    rejected: dict[str, int]
    assumptions: tuple[str, ...]

    @property
    def best(self) -> SweepPlan:
        return self.plans[0]

    def to_dict(self) -> dict[str, object]:
        """The JSON contract of `gpuwise plan --runs --json`."""
        return {
            "job": self.job,
            "runs": self.runs,
            "plans": [plan.to_dict() for plan in self.plans],
            "why": list(self.why),
            "rejected": self.rejected,
            "assumptions": list(self.assumptions),
        }
