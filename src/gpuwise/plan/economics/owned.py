"""The user's own machines: purchase, power at the wall, resale, and when buying beats renting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuwise.hardware.hosts import kept_a_year
from gpuwise.plan.economics.terms import HOUR_S, WEEK_S, YEAR_S

USD_PER_KWH = 0.17  # US residential average 2024 is 0.165 (EIA Electric Power Monthly)
UTILISATION = 0.8  # share of the board power drawn while training, where a forecast has no energy; a guess
DEFAULT_TDP_W = 300.0  # if the catalog has no board power; a guess
DEFAULT_CPU_TDP_W = 65.0  # the same for CPUs: a desktop's; a guess
WEEKS_A_YEAR = YEAR_S / WEEK_S
WEEK_HOURS = WEEK_S / HOUR_S


@dataclass(frozen=True)
class OwnedCosts:
    """What a machine of one's own costs beside the price of electricity.

    Attributes:
        purchase_usd: price of the whole machine, spread over its lifetime; None (default): it is owned already, and what it has
            cost is not counted.
        host_w: watts of everything but the chips while training. Default 100, a guess.
        psu_efficiency: share of the power at the wall that leaves the power supply. Default 0.9 (80 PLUS Gold at half load).
        pue: power at the meter over power at the machine's plug. Default 1, a room without cooling; data centres have 1.56 on
            average (Uptime Institute, Global Data Center Survey 2024).
        hours_a_week: hours that it works. Default 40, an assumption that matters only where a purchase is counted.
        lifetime_years: until it is sold. Default 4; machines are written off over 3 to 5 years.
        resale_share: of the purchase, at the end of the lifetime; None (default) takes hardware/data/hosts.toml.
    """

    purchase_usd: float | None = None
    host_w: float = 100.0
    psu_efficiency: float = 0.9
    pue: float = 1.0
    hours_a_week: float = 40.0
    lifetime_years: float = 4.0
    resale_share: float | None = None

    def wall_w(self, chips_w: float) -> float:
        """Watts at the meter while the chips draw chips_w."""
        return (chips_w + self.host_w) / self.psu_efficiency * self.pue

    def electricity_usd_per_hour(self, chips_w: float, *, usd_per_kwh: float) -> float:
        """The price of an hour's electricity."""
        return self.wall_w(chips_w) / 1000 * usd_per_kwh

    def lost_usd(self, purchase_usd: float, kind: str) -> float:
        """What the machine loses from purchase to resale. kind: of its chip."""
        kept = kept_a_year(kind) ** self.lifetime_years if self.resale_share is None else self.resale_share
        return purchase_usd * (1 - kept)

    def capital_usd_per_hour(self, kind: str) -> float:
        """The loss of value an hour of work; 0 for a machine that is owned already."""
        if self.purchase_usd is None:
            return 0.0
        return self.lost_usd(self.purchase_usd, kind) / (self.lifetime_years * WEEKS_A_YEAR * self.hours_a_week)


@dataclass(frozen=True)
class OwnedRate:
    """What an hour of one's own machines costs in a job.

    Attributes:
        costs: of one machine.
        kind: of its chip.
        usd_per_kwh: price of electricity.
        assumed_w: watts of the chips of all machines where the forecast has no energy.
        machines: number of machines.
        share: of the devices of a machine that work; the others are free for other work, and bear their share of the purchase.
    """

    costs: OwnedCosts
    kind: str
    usd_per_kwh: float
    assumed_w: float
    machines: int = 1
    share: float = 1.0

    def usd_per_hour(self, chips_w: float | None) -> float:
        """chips_w: of all chips in the job; None takes assumed_w."""
        each_w = (self.assumed_w if chips_w is None else chips_w) / self.machines
        electricity = self.costs.electricity_usd_per_hour(each_w, usd_per_kwh=self.usd_per_kwh)
        return self.machines * (electricity + self.share * self.costs.capital_usd_per_hour(self.kind))


@dataclass(frozen=True)
class MachineCosts:
    """The costs of every machine of the user's. by_name: (chip id, devices) of those that a file names."""

    usual: OwnedCosts = OwnedCosts()
    by_name: Mapping[tuple[str, int], OwnedCosts] = field(default_factory=dict, hash=False)

    def of(self, chip_id: str, devices: int) -> OwnedCosts:
        return self.by_name.get((chip_id, devices), self.usual)


def break_even_months(purchase_usd: float, *, own_usd: float, own_hours: float, rental_usd: float) -> float | None:
    """Months of uninterrupted work after which a bought machine has cost less than renting.

    Arguments:
        own_usd: electricity of one run on the bought machine.
        own_hours: calendar time of that run.
        rental_usd: cost of the same run on a rented machine.

    None if its electricity alone costs as much as renting. Resale is not counted.
    """
    saved_usd = rental_usd - own_usd
    return None if saved_usd <= 0 else purchase_usd / saved_usd * own_hours * HOUR_S / (YEAR_S / 12)


def break_even_hours_a_week(
    lost_usd: float, *, own_usd: float, own_hours: float, rental_usd: float, lifetime_years: float
) -> float | None:
    """Hours a week that a bought machine has to work so that it costs no more than renting over its lifetime.

    Arguments:
        lost_usd: purchase less resale.
        own_usd: electricity of one run on the bought machine.
        own_hours: hours of that run.
        rental_usd: cost of the same run on a rented machine.

    None if no week has so many hours, or electricity alone costs as much as renting.
    """
    saved_usd = rental_usd - own_usd
    if saved_usd <= 0:
        return None
    hours = lost_usd / saved_usd * own_hours / (lifetime_years * WEEKS_A_YEAR)
    return hours if hours <= WEEK_HOURS else None
