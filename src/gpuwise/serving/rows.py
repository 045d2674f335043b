"""ServingRow: what serving a model takes on one kind of instance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isfinite

import numpy as np

from gpuwise.serving.apart import PromptsApart
from gpuwise.serving.api_price import ApiBreakEven
from gpuwise.serving.energy import EnergyUse
from gpuwise.serving.fleets import HOURS_A_MONTH, Fleet
from gpuwise.serving.forward_instance import BatchedPass, ForwardInstance
from gpuwise.serving.in_turn import fewest_in_turn
from gpuwise.serving.instance import Instance, Latency, LoadShape, latencies
from gpuwise.serving.modes import ServingMode
from gpuwise.serving.reasons import beyond_cache, floor
from gpuwise.serving.requests import Requests
from gpuwise.serving.running import ALL_THE_TIME, RunningFleet
from gpuwise.serving.saturation import Limits
from gpuwise.serving.schedule import CONSTANT, FleetSchedule

_JUST_BELOW = 1 - 1e-6
MOST_SHARE = 0.95  # of the saturation rate that a replica is given: beyond it the tail of waiting depends on luck


@dataclass(frozen=True)
class ServingRow:
    """A model on one kind of instance.

    Attributes:
        device: devices of one instance, as on the command line.
        replicas: instances that the rate takes, that of the busiest hour of a day; 0 where none serves it.
        saturation_rate: highest rate of one instance within the limits, requests a second.
        alone_ttft_s, alone_latency_s: of the mean request with nobody else there.
        latency: percentiles by name: "ttft_s", "tpot_s", "latency_s"; empty where no instance serves the rate.
        share_within: share of requests within all limits.
        load: the rate over what all replicas serve within the limits.
        cache_tokens: tokens that the cache of one instance holds.
        weight_bytes: bytes of weights on one device.
        usd_per_hour: of all replicas, the mean over the day; None without a price.
        usd_per_instance_hour: of one replica.
        clients: users of one instance in a closed loop; 0 where requests come at a rate.
        reached_per_s: requests a second that a closed loop reaches, of all replicas.
        usd_per_million_output: dollars for a million written tokens, prompts and idle time included; None without a price.
        usd_per_million_tokens: the same for a million read and written tokens together.
        usd_per_request: the same for one request.
        offer: whose price it is, "" without one.
        over_budget: whether it costs more than the user's budget, or has no price to compare with it.
        break_even: the rates at which it is cheaper than the user's API; None where it is at no rate, and without an API.
        running: when how many instances run, start, stop and are lost.
        energy: of the devices of one instance at this load; None where their power is unknown.
        launch: the command that starts an instance, "" where none is known.
        mode: what is special about it, such as layers on the host; None (default) for a model on its devices.
        reason: why there is no answer, or "".
        way_out: with which setting there may be one; "" where none is known.
        forward: how forward passes run, of a model without a cache; None (default) of one that generates.
        owned: whether it is this machine. False by default.
    """

    device: str
    replicas: int = 0
    saturation_rate: float = 0.0
    alone_ttft_s: float = float("nan")
    alone_latency_s: float = float("nan")
    latency: dict[str, Latency] = field(default_factory=dict)
    share_within: float = 0.0
    load: float = 0.0
    cache_tokens: int = 0
    weight_bytes: int = 0
    usd_per_hour: float | None = None
    usd_per_instance_hour: float | None = None
    clients: int = 0
    reached_per_s: float | None = None
    usd_per_million_output: float | None = None
    usd_per_million_tokens: float | None = None
    usd_per_request: float | None = None
    offer: str = ""
    over_budget: bool = False
    break_even: ApiBreakEven | None = None
    running: RunningFleet = ALL_THE_TIME
    energy: EnergyUse | None = None
    launch: str = ""
    mode: ServingMode | None = None
    reason: str = ""
    way_out: str = ""
    forward: BatchedPass | None = None
    owned: bool = False

    @property
    def is_free(self) -> bool:
        """Whether it is this machine and no further one, so that nothing has to be rented."""
        return self.owned and self.replicas == 1

    @property
    def why_not(self) -> str:
        """Why there is no answer, with the way out."""
        return f"{self.reason} ({self.way_out})" if self.way_out else self.reason

    @property
    def takes(self) -> float:
        """Requests a second that one instance is given at most."""
        return MOST_SHARE * self.saturation_rate

    @property
    def fleet(self) -> Fleet | None:
        """Its instances at any rate; None without a price or an answer, and where two kinds of instance serve."""
        if self.usd_per_instance_hour is None or not self.replicas or isinstance(self.mode, PromptsApart):
            return None
        return Fleet(self.device, self.usd_per_instance_hour, self.takes, self.running.schedule)

    @property
    def usd_per_month(self) -> float | None:
        """Dollars a month, all replicas running all the time."""
        return None if self.usd_per_hour is None else self.usd_per_hour * HOURS_A_MONTH

    @property
    def least_usd_per_month(self) -> float | None:
        """The same, or with instances that stop when idle where that was looked at and costs less."""
        idle, usd = self.running.idle, self.usd_per_month
        return usd if usd is None or idle is None or idle.usd_per_month is None else min(usd, idle.usd_per_month)

    def to_dict(self) -> dict[str, object]:
        readable = {
            name: value if not isinstance(value, float) or isfinite(value) else None for name, value in asdict(self).items()
        }
        return {**readable, "running": self.running.to_dict(), "usd_per_month": self.usd_per_month}


def row_of(
    device: str,
    instance: Instance | ForwardInstance,
    load: LoadShape,
    limits: Limits,
    *,
    rate_per_s: float,
    weight_bytes: int,
    usd_per_hour: float | None,
    saturation: float | None = None,
    schedule: FleetSchedule = CONSTANT,
) -> ServingRow:
    """The row of a device.

    Arguments:
        usd_per_hour: of one instance.
        saturation: its saturation rate; None (default) searches for it.
        schedule: of the instances; latencies are those of the busiest part of the day.

    Requests reach replicas in turn, so each has its part of every burst; they are taken to be no more even than those of
    independent users. A replica is given at most MOST_SHARE of what it serves within the limits. `saturation_rate` is that of
    one of so many: with bursts it rises with their number.
    """
    base = row_alone(device, instance, load, limits, weight_bytes=weight_bytes)
    peak_per_s = rate_per_s * schedule.peak
    saturation = instance.saturation_rate(load, limits) if saturation is None else saturation
    if load.is_in_bursts and (
        count := fewest_in_turn(instance, load, limits, rate_per_s=peak_per_s, saturation=saturation, share=MOST_SHARE)
    ):
        saturation = instance.saturation_rate(load.dealt(count), limits)
        if count > 1:  # one fewer do not serve the rate: each would have a larger part of every burst
            saturation = min(saturation, _JUST_BELOW * peak_per_s / (count - 1) / MOST_SHARE)
    if saturation == 0:
        return base
    fleet = Fleet(device, usd_per_hour or 0.0, MOST_SHARE * saturation, schedule)
    replicas = fleet.replicas(rate_per_s)
    at_rate = load.dealt(replicas).at(peak_per_s / replicas)
    outcomes = instance.outcomes(at_rate)
    row = replace(
        base,
        reason="",
        replicas=replicas,
        saturation_rate=saturation,
        latency=latencies(outcomes, instance.first_token_spread),
        share_within=limits.share_of(outcomes[0]),
        load=peak_per_s / (replicas * saturation),
        running=RunningFleet(schedule, tuple(schedule.counts(rate_per_s, fleet.takes).tolist())),
        usd_per_instance_hour=usd_per_hour,
    )
    return with_price(row, fleet.usd_per_hour_at(rate_per_s), at_rate, rate_per_s=rate_per_s)


def row_alone(
    device: str, instance: Instance | ForwardInstance, load: LoadShape, limits: Limits, *, weight_bytes: int
) -> ServingRow:
    """The row of a device that serves nobody, with the reason: what one request alone takes."""
    alone = instance.alone(load)
    return ServingRow(
        device,
        alone_ttft_s=float(alone.ttft_s[0]),
        alone_latency_s=float(alone.latency_s[0]),
        cache_tokens=instance.cache_tokens,
        weight_bytes=weight_bytes,
        reason=beyond_cache(instance, load, limits) or floor(alone, limits),
    )


def with_price(row: ServingRow, usd_per_hour: float, load: Requests, *, rate_per_s: float) -> ServingRow:
    """The row with the dollars of its instances, where they have a price. load: requests that they serve at a mean rate."""
    if row.usd_per_instance_hour is None:
        return row
    usd_per_request = usd_per_hour / 3600 / rate_per_s
    written = float(np.mean(load.output_tokens))
    return replace(
        row,
        usd_per_hour=usd_per_hour,
        usd_per_million_output=1e6 * usd_per_request / written,
        usd_per_million_tokens=1e6 * usd_per_request / (written + float(np.mean(load.input_tokens))),
        usd_per_request=usd_per_request,
    )


def cheapest_first(rows: Sequence[ServingRow]) -> tuple[ServingRow, ...]:
    """This machine first where it is enough; then rows with a price, by dollars; then those without; then those that do not
    serve the rate."""
    return tuple(
        sorted(
            rows,
            key=lambda row: (
                row.replicas == 0,
                row.over_budget,
                not row.is_free,
                row.usd_per_hour is None,
                row.usd_per_hour or 0.0,
                row.replicas,
            ),
        )
    )
