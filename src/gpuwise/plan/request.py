"""Request: the user's requirements for a plan."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from gpuwise.errors import InputError
from gpuwise.hardware.device import DeviceSpec
from gpuwise.hardware.types import Machine
from gpuwise.plan.buying.offer_choice import OfferChoice
from gpuwise.plan.economics.length import RunLength
from gpuwise.plan.economics.owned import USD_PER_KWH, MachineCosts
from gpuwise.plan_settings import CONFIDENCE, OBJECTIVES
from gpuwise.strategy import PRECISIONS, RECOMPUTES, Strategy

# Larger values are typing mistakes. Interruptions: one a minute.
_MOST = {
    "global_batch": 10_000_000,
    "micro_batch": 10_000_000,
    "accumulation": 10_000_000,
    "budget_usd": 10**15,
    "usd_per_kwh": 1000,
    "interruptions_per_day": 1440,
}
_NOT_NEGATIVE = {
    "budget_usd": "a budget in dollars",
    "usd_per_kwh": "the price of electricity in dollars a kWh",
    "interruptions_per_day": "interruptions a day",
}


@dataclass(frozen=True)
class Request:
    """The user's requirements for a plan.

    Attributes:
        samples, epochs, tokens: length of the run. An epoch has samples_per_epoch samples, or `samples` if both are set.
        samples_per_epoch: samples in the job's data set; None where unknown.
        budget_usd, deadline_s: None for no limit.
        objective: what the first plan is the best in, one of gpuwise.plan_settings.OBJECTIVES.
        confidence: probability to keep both limits that a plan needs; plans with less follow those with more.
        on: devices to consider ("rtx-4090", "h100-80gb-sxm:8", "cpu" for any CPU, "here"); None for all.
        own: (chip, count) of the user's own machines; "cpu" is the catalog's CPU nearest to this machine's.
        own_clusters: the user's own clusters of several machines, with what joins them.
        here: this machine; None leaves it out.
        spot: True for spot only, False for no spot, None for both.
        global_batch: samples in an optimizer step; None takes a default.
        precision, recompute, micro_batch, accumulation: pinned values; None is searched.
        techniques: the other fields of every strategy.
        allow: techniques that change what is trained and may be tried, see gpuwise.plan.space.permission.
        named: names of the settings that the user set.
        loader_samples_per_s: samples a second from the data pipeline of a machine; None if it is never the limit.
        max_devices: larger offers are left out; a package that is sold as one, such as a chip of two cores, counts once.
        machines_joined: whether several rented machines are joined to clusters of up to max_devices; those that `on` names are.
        more_devices: where time or memory leaves nothing of up to max_devices, clusters of up to so many are looked at;
            None (default) for none.
        usd_per_kwh: electricity price for the user's own machines.
        costs: what else the user's own machines cost.
        interruptions_per_day: rate of a spot machine; None takes the provider's usual rate.
        offers: which offers are considered, and at which discounts.
        stale: whether to also rank offers whose price is over a year old.
        xla: whether to rank plans that `gpuwise train` cannot run (PyTorch/XLA, vendors' plug-ins) by price.
        job_argument: the JOB argument as the user typed it; "" for a Job object.
        why: plans to explain beside the first, as ranks or devices; None explains none.
        limit: largest number of plans; None for all.

    Raises InputError for senseless values.
    """

    samples: int | None = None
    epochs: float | None = None
    tokens: int | None = None
    samples_per_epoch: int | None = None
    budget_usd: float | None = None
    deadline_s: float | None = None
    objective: str = OBJECTIVES[0]
    confidence: float = CONFIDENCE
    on: tuple[str, ...] | None = None
    own: tuple[tuple[str, int], ...] = ()
    own_clusters: tuple[DeviceSpec, ...] = ()
    here: Machine | None = None
    spot: bool | None = None
    global_batch: int | None = None
    precision: str | None = None
    recompute: str | None = None
    micro_batch: int | None = None
    accumulation: int | None = None
    techniques: Strategy = field(default_factory=Strategy)
    allow: frozenset[str] = frozenset()
    named: frozenset[str] = frozenset()
    loader_samples_per_s: float | None = None
    max_devices: int = 16
    machines_joined: bool = False
    more_devices: int | None = None
    usd_per_kwh: float = USD_PER_KWH
    costs: MachineCosts = field(default_factory=MachineCosts)
    interruptions_per_day: float | None = None
    offers: OfferChoice = field(default_factory=OfferChoice)
    stale: bool = False
    xla: bool = False
    job_argument: str = ""
    why: tuple[str, ...] | None = None
    limit: int | None = 12

    def __post_init__(self) -> None:
        assert self.length  # raises where it makes no sense
        for name in ("deadline_s", "global_batch", "micro_batch", "accumulation", "max_devices", "limit"):
            value, most = getattr(self, name), _MOST.get(name, math.inf)
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"{name.replace('_', ' ')} must be a number above zero, got {value!r}.")
            if value is not None and value > most:
                raise InputError(f"{name.replace('_', ' ')} {value:,} is no sensible number: at most {most:,}.")
            if value is not None and name != "deadline_s" and value != int(value):
                raise InputError(f"{name.replace('_', ' ')} must be a whole number, got {value!r}.")
        for name, meaning in _NOT_NEGATIVE.items():
            value = getattr(self, name)
            if value is not None and not 0 <= value <= _MOST.get(name, math.inf):
                raise InputError(f"{meaning} must be from 0 to {_MOST.get(name, math.inf):,}, got {value!r}.")
        if not 0 <= self.confidence < 1:
            raise InputError(
                f"confidence is a share from 0 to below 1, got {self.confidence!r}.", ["--confidence 0.95 is 95 %"]
            )
        for name, allowed in (("objective", OBJECTIVES), ("precision", PRECISIONS), ("recompute", RECOMPUTES)):
            if getattr(self, name) not in (None, *allowed):
                raise InputError(f"unknown {name} {getattr(self, name)!r}.", [f"one of: {', '.join(allowed)}"])

    @property
    def length(self) -> RunLength:
        return RunLength(self.samples, self.epochs, self.tokens, self.samples_per_epoch)
