"""What money buys: the terms of a machine, and the bill of a run under them."""

from __future__ import annotations

import math
from dataclasses import dataclass

HOUR_S = 3600.0
WEEK_S = 7 * 24 * HOUR_S
YEAR_S = 365 * 24 * HOUR_S

SETUP_S = 300.0  # a rented machine boots, installs and loads data before the first step; no public figure, a guess
MINIMUM_BILLING_S = 60.0  # AWS, GCP and Azure bill by the second after the first minute


@dataclass(frozen=True)
class Terms:
    """What the money buys.

    Attributes:
        kind: "on-demand" | "spot" | "reserved-1y" | "reserved-3y" | "owned" | "free".
        usd_per_hour: of the whole machine; of an owned one its electricity.
        setup_s: from renting to the first step.
        minimum_s: billed at least.
        billing_step_s: time is billed in whole steps of this, 1 s by default.
        interruptions_per_day: of a spot machine.
        save_s: a checkpoint takes, on spot machines and free tiers.
        restart_s: from an interruption to training again.
        session_s, week_s: machine time a session and a week of a free tier; None (default) where unlimited.
    """

    kind: str
    usd_per_hour: float
    setup_s: float = SETUP_S
    minimum_s: float = MINIMUM_BILLING_S
    billing_step_s: float = 1.0
    interruptions_per_day: float = 0.0
    save_s: float = 0.0
    restart_s: float = 0.0
    session_s: float | None = None
    week_s: float | None = None

    def usd(self, machine_s: float) -> float:
        """What so much time of the machine costs."""
        billed_s = max(machine_s, self.minimum_s)
        if self.billing_step_s > 1:
            billed_s = math.ceil(billed_s / self.billing_step_s) * self.billing_step_s
        return billed_s / HOUR_S * self.usd_per_hour


@dataclass(frozen=True)
class Bill:
    """Expected time and money of one run.

    Attributes:
        machine_s: billed or drawn.
        calendar_s: what a deadline sees.
        usd: in all.
        checkpoint_interval_s: work between two checkpoints; None (default) where nothing interrupts.
        interruptions: expected.
    """

    machine_s: float
    calendar_s: float
    usd: float
    checkpoint_interval_s: float | None = None
    interruptions: float = 0.0
