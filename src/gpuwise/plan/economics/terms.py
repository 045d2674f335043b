"""The terms of a machine, and the bill of a run under them."""

from __future__ import annotations

from dataclasses import dataclass

HOUR_S = 3600.0
WEEK_S = 7 * 24 * HOUR_S
YEAR_S = 365 * 24 * HOUR_S
Z_90 = 1.6449  # half width of a 90 % interval in standard deviations

SETUP_S = 300.0  # a rented machine boots, installs and loads data before the first step; no public figure, a guess
MINIMUM_BILLING_S = 60.0  # AWS, GCP and Azure bill by the second after the first minute


@dataclass(frozen=True)
class Terms:
    """The terms that a machine is used under.

    Attributes:
        kind: "on-demand" | "spot" | "reserved-1y" | "reserved-3y" | "owned" | "free".
        usd_per_hour: price of the whole machine; for an owned machine, its electricity.
        setup_s: time from renting to the first step.
        minimum_s: shortest time that is billed.
        billing_step_s: billed time is rounded up to a multiple of this, 1 s by default.
        interruptions_per_day: expected interruptions of the whole cluster: machines that are taken away or fail.
        day_machines: machines that the provider takes away after at most 24 hours; see plan.economics.interruptions.
        save_s: time to save a checkpoint.
        restart_s: time from an interruption until training goes on.
        storage_usd_per_hour: of the checkpoints, for all of the calendar time.
        transfer_usd: of what leaves the provider at the end.
        session_s: machine time of one session of a free tier; None (default) where unlimited.
        week_s: machine time a week of a free tier; None (default) where unlimited.
    """

    kind: str
    usd_per_hour: float
    setup_s: float = SETUP_S
    minimum_s: float = MINIMUM_BILLING_S
    billing_step_s: float = 1.0
    interruptions_per_day: float = 0.0
    day_machines: float = 0.0
    save_s: float = 0.0
    restart_s: float = 0.0
    storage_usd_per_hour: float = 0.0
    transfer_usd: float = 0.0
    session_s: float | None = None
    week_s: float | None = None


@dataclass(frozen=True)
class Bill:
    """Expected time and money of one run.

    Attributes:
        machine_s: machine time that is billed, or that draws power.
        calendar_s: calendar time, which the deadline limits.
        usd: total cost.
        data_usd: storage and transfer in it.
        checkpoint_interval_s: work between two checkpoints; None (default) without interruptions.
        interruptions: expected number of interruptions.
    """

    machine_s: float
    calendar_s: float
    usd: float
    checkpoint_interval_s: float | None = None
    interruptions: float = 0.0
    data_usd: float = 0.0
