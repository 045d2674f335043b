"""ServingForecast: what serving a model takes on each of some devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isfinite

import numpy as np

from gpuwise.notes import Note, sentences, to_dicts
from gpuwise.printed import Printed
from gpuwise.serving.api_price import ApiBreakEven, ApiPrice
from gpuwise.serving.fleets import HOURS_A_MONTH, Fleet, RateRange
from gpuwise.serving.forward_instance import BatchedPass, ForwardInstance
from gpuwise.serving.instance import Instance, Latency, LoadShape, latencies
from gpuwise.serving.saturation import Limits
from gpuwise.serving.served import Served
from gpuwise.units import format_duration

MOST_SHARE = 0.95  # of the saturation rate that a replica is given: beyond it the tail of waiting depends on luck


@dataclass(frozen=True)
class ServingRow:
    """A model on one kind of instance.

    Attributes:
        device: devices of one instance, as on the command line.
        replicas: instances that the rate takes; 0 where none serves it.
        saturation_rate: highest rate of one instance within the limits, requests a second.
        alone_ttft_s, alone_latency_s: of the mean request with nobody else there.
        latency: percentiles by name: "ttft_s", "tpot_s", "latency_s"; empty where no instance serves the rate.
        share_within: share of requests within all limits.
        load: the rate over what all replicas serve within the limits.
        cache_tokens: tokens that the cache of one instance holds.
        weight_bytes: bytes of weights on one device.
        usd_per_hour: of all replicas; None without a price.
        usd_per_million_output: dollars for a million written tokens, prompts and idle time included; None without a price.
        usd_per_million_tokens: the same for a million read and written tokens together.
        usd_per_request: the same for one request.
        offer: whose price it is, "" without one.
        over_budget: whether it costs more than the user's budget, or has no price to compare with it.
        break_even: the rates at which it is cheaper than the user's API; None where it is at no rate, and without an API.
        launch: the command that starts an instance, "" where none is known.
        reason: why there is no answer, or "".
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
    usd_per_million_output: float | None = None
    usd_per_million_tokens: float | None = None
    usd_per_request: float | None = None
    offer: str = ""
    over_budget: bool = False
    break_even: ApiBreakEven | None = None
    launch: str = ""
    reason: str = ""
    forward: BatchedPass | None = None
    owned: bool = False

    @property
    def is_free(self) -> bool:
        """Whether it is this machine and no further one, so that nothing has to be rented."""
        return self.owned and self.replicas == 1

    @property
    def takes(self) -> float:
        """Requests a second that one instance is given at most."""
        return MOST_SHARE * self.saturation_rate

    @property
    def fleet(self) -> Fleet | None:
        """Its instances at any rate; None without a price or an answer."""
        if self.usd_per_hour is None or not self.replicas:
            return None
        return Fleet(self.device, self.usd_per_hour / self.replicas, self.takes)

    @property
    def usd_per_month(self) -> float | None:
        """Dollars a month, all replicas running all the time."""
        return None if self.usd_per_hour is None else self.usd_per_hour * HOURS_A_MONTH

    def to_dict(self) -> dict[str, object]:
        readable = {
            name: value if not isinstance(value, float) or isfinite(value) else None for name, value in asdict(self).items()
        }
        return {**readable, "usd_per_month": self.usd_per_month}


@dataclass(frozen=True, repr=False)
class ServingForecast(Printed):
    """What serving takes, cheapest first; devices without an answer last.

    Attributes:
        job: name of the job.
        engine: name of the engine, with the versions its figures are of.
        precision: of activations and cache.
        weights: format of the weights, or their precision.
        rate_per_s: requests a second of all users.
        rows: one a device.
        budget_usd_per_month: most dollars a month; None (default) without a budget.
        by_rate: the cheapest of the rows by rate, from 0 to some times this one.
        api: price of an API to compare with; None (default) without one.
        api_usd_per_month: what it would cost for the same requests.
        model: the id or folder of the model's weights in the launch lines, "MODEL" where the user must know it.
        generates: whether the job generates tokens; else a request is one sample of a forward pass. True by default.
        remark_notes: whether this machine is enough, where it is among the rows.
    """

    job: str
    engine: str
    precision: str
    weights: str
    rate_per_s: float
    lengths: dict[str, object]
    limits: Limits
    rows: tuple[ServingRow, ...]
    assumption_notes: tuple[Note, ...] = ()
    budget_usd_per_month: float | None = None
    by_rate: tuple[RateRange, ...] = ()
    api: ApiPrice | None = None
    api_usd_per_month: float | None = None
    model: str = ""
    generates: bool = True
    remark_notes: tuple[Note, ...] = ()

    @property
    def remarks(self) -> tuple[str, ...]:
        """The remarks as sentences."""
        return sentences(self.remark_notes)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions as sentences."""
        return sentences(self.assumption_notes)

    def to_dict(self) -> dict[str, object]:
        """The JSON contract of `gpuwise serve-plan --json`."""
        limits = {name: value if isfinite(value) else None for name, value in asdict(self.limits).items()}
        return {
            "job": self.job,
            "engine": self.engine,
            "precision": self.precision,
            "weights": self.weights,
            "rate_per_s": self.rate_per_s,
            "lengths": self.lengths,
            "limits": limits,
            "rows": [row.to_dict() for row in self.rows],
            "budget_usd_per_month": self.budget_usd_per_month,
            "by_rate": [asdict(each) for each in self.by_rate],
            "api": None if self.api is None else {**asdict(self.api), "usd_per_month": self.api_usd_per_month},
            "model": self.model,
            "generates": self.generates,
            "remarks": list(self.remarks),
            "remark_notes": to_dicts(self.remark_notes),
            "assumptions": list(self.assumptions),
            "assumption_notes": to_dicts(self.assumption_notes),
        }


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
) -> ServingRow:
    """The row of a device.

    Arguments:
        usd_per_hour: of one instance.
        saturation: its saturation rate; None (default) searches for it.

    Users reach replicas in turn, so each sees a Poisson load of its share of the rate; a replica is given at most
    MOST_SHARE of what it serves within the limits.
    """
    alone = instance.alone(load)
    base = ServingRow(
        device,
        alone_ttft_s=float(alone.ttft_s[0]),
        alone_latency_s=float(alone.latency_s[0]),
        cache_tokens=instance.cache_tokens,
        weight_bytes=weight_bytes,
    )
    saturation = instance.saturation_rate(load, limits) if saturation is None else saturation
    if saturation == 0:
        return replace(base, reason=_floor(alone, limits))
    replicas = Fleet(device, usd_per_hour or 0.0, MOST_SHARE * saturation).replicas(rate_per_s)
    at_rate = load.at(rate_per_s / replicas)
    outcomes = instance.outcomes(at_rate)
    usd = None if usd_per_hour is None else usd_per_hour * replicas
    usd_per_request = None if usd is None else usd / 3600 / rate_per_s
    written = float(np.mean(at_rate.output_tokens))
    tokens = written + float(np.mean(at_rate.input_tokens))
    return replace(
        base,
        replicas=replicas,
        saturation_rate=saturation,
        latency=latencies(outcomes),
        share_within=limits.share_of(outcomes[0]),
        load=rate_per_s / (replicas * saturation),
        usd_per_hour=usd,
        usd_per_million_output=None if usd_per_request is None else 1e6 * usd_per_request / written,
        usd_per_million_tokens=None if usd_per_request is None else 1e6 * usd_per_request / tokens,
        usd_per_request=usd_per_request,
    )


def _floor(alone: Served, limits: Limits) -> str:
    """Which limit one request alone exceeds."""
    for name, values, limit_s in (
        ("ttft", alone.ttft_s, limits.ttft_s),
        ("tpot", alone.tpot_s, limits.tpot_s),
        ("latency", alone.latency_s, limits.latency_s),
    ):
        if values[0] > limit_s:
            return (
                f"{name} of one request alone is {format_duration(float(values[0]))}; the limit is {format_duration(limit_s)}"
            )
    return "too few requests stay within the limits at any rate, since some are longer than the mean"


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
