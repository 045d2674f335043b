"""SpotFleet: instances that are taken away: how many more that takes, and whose requests they had."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwise.serving.fleets import HOURS_A_MONTH


@dataclass(frozen=True)
class SpotFleet:
    """Instances on spot machines.

    Attributes:
        usd_per_hour, on_demand_usd_per_hour: of one instance; None on demand where no such offer is known.
        interruptions_per_day: of one instance; a guess for most providers.
        start_s: until the successor of an instance answers, once its machine is there.
        spare: instances of them that are there for those that are gone.
        lost_per_month: instances of the fleet that are taken away.
        retried_per_month: requests that ran on them, and must be sent again.
        retried_share: the same over all requests.
    """

    usd_per_hour: float
    on_demand_usd_per_hour: float | None
    interruptions_per_day: float
    start_s: float
    spare: int
    lost_per_month: float
    retried_per_month: float
    retried_share: float


def spot_fleet(
    *,
    usd_per_hour: float,
    on_demand_usd_per_hour: float | None,
    interruptions_per_day: float,
    start_s: float,
    spare: int,
    paid: float,
    rate_per_s: float,
    latency_s: float,
) -> SpotFleet:
    """A fleet of `paid` instances on average, at a mean rate.

    A request that takes latency_s runs when its instance is taken away with the chance of latency_s over the time between two
    interruptions (Little's law: each instance has its rate times that latency at once).
    """
    per_hour = interruptions_per_day / 24
    requests_per_month = rate_per_s * 3600 * HOURS_A_MONTH
    share = min(1.0, latency_s * per_hour / 3600)
    return SpotFleet(
        usd_per_hour,
        on_demand_usd_per_hour,
        interruptions_per_day,
        start_s,
        spare,
        lost_per_month=paid * per_hour * HOURS_A_MONTH,
        retried_per_month=requests_per_month * share,
        retried_share=share,
    )
