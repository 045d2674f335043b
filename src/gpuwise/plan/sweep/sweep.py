"""Ranks machines for a sweep: every offer, packed exactly, by money within the deadline or by time within the budget."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from gpuwise.cost.forecast import Interval
from gpuwise.hardware.prices import UsualPrices
from gpuwise.notes import Note
from gpuwise.plan.buying.candidates import Candidate
from gpuwise.plan.buying.owned import price_in_this_job
from gpuwise.plan.buying.runnable import train_obstacle
from gpuwise.plan.economics.bill import bill
from gpuwise.plan.economics.likely_price import likely_price
from gpuwise.plan.economics.terms import HOUR_S, YEAR_S
from gpuwise.plan.estimate import Estimate
from gpuwise.plan.pricing.step import HEADROOM
from gpuwise.plan.request import Request
from gpuwise.plan.sweep.packing import Packing, Seconds, cheapest_packing, device_times, fastest_packing
from gpuwise.plan.sweep.sharing import SPEED_SPREAD, busy_share, most_copies, slowdown
from gpuwise.plan.sweep.types import SweepPlan
from gpuwise.step_settings import flags_of

MOST_DEVICES = 64  # rented at once unless the user says; quotas of new accounts are far below
_SAME = 2  # rows of the table with the same chip and count
_OWNED = "owned"
_times = cache(device_times)


@dataclass(frozen=True)
class Sweep:
    """All runs of one request.

    Attributes:
        request: budget, deadline and objective are of all runs together.
        runs: number of runs.
        samples: of one run.
        market: what a device-hour usually costs.
        most_devices: that are rented at once.
    """

    request: Request
    runs: int
    samples: int
    market: UsualPrices
    most_devices: int = MOST_DEVICES

    def plans(
        self, considered: Sequence[Candidate | tuple[object, Note]], estimates: Mapping[str, Sequence[Estimate]]
    ) -> tuple[list[SweepPlan], Counter[str]]:
        """The table, best first, and the number of offers that are not in it by reason.

        Arguments:
            estimates: of one run, by chip, on as few devices as hold it: strategies of which the one that packs best is taken.
        """
        reasons: Counter[str] = Counter()
        items: list[tuple[float, Candidate, Sequence[Estimate]]] = []
        for item in considered:
            if not isinstance(item, Candidate):
                reasons[item[1].text] += 1
            elif item.offer.stale and not self.request.stale:
                reasons["price over a year old"] += 1
            elif item.terms.kind == "free" or item.devices < 1:
                reasons["a free tier, or a share of a chip"] += 1
            elif not (own := estimates.get(item.chip.id)) or _devices_of(own[0]) > item.devices:
                reasons["one run does not fit the machine"] += 1
            else:
                items.append((min(self._least_usd(item, estimate) for estimate in own), item, own))
        fastest = self.request.objective == "fastest"
        rows: list[SweepPlan] = []
        limit = self.request.limit or math.inf
        for bound_usd, item, own in sorted(items, key=lambda each: each[0]):
            # Nothing that follows can be cheaper than its bound.
            done = len(shown := _shown(rows, limit)) >= limit and all(not row.train_obstacle for row in shown)
            if not fastest and done and bound_usd > shown[-1].usd.value + 0.01:
                reasons["dearer than the table"] += 1
                continue
            packed = [self.plan(item, estimate) for estimate in own]
            if inside := [row for row in packed if isinstance(row, SweepPlan)]:
                rows.append(_with_best_alone(min(inside, key=self._key), inside))
                rows.sort(key=self._key)
            else:
                reasons[str(packed[0])] += 1
        return [replace(row, rank=rank) for rank, row in enumerate(_shown(rows, limit), 1)], reasons

    def plan(self, item: Candidate, estimate: Estimate) -> SweepPlan | str:
        """The runs packed on machines of one offer, or why not."""
        device_groups, run_s, busy = _device_groups(item, estimate), self._run_s(estimate), _busy(estimate)
        copies = self._copies(item, estimate)
        packing = self._packing(item, estimate, copies=copies)
        if packing is None:
            return "past the deadline" if self.request.objective != "fastest" else "over budget"
        if self.request.budget_usd is not None and packing.usd > self.request.budget_usd:
            return "over budget"
        alone = self._packing(item, estimate, copies=1) if copies > 1 else packing
        hour = self._hour_usd(item, estimate)
        on_device = min(copies, math.ceil(packing.each[0] / device_groups))
        spread = _spread(estimate, shared=on_device > 1)
        obstacle = train_obstacle(item.chip, estimate.strategy)
        return SweepPlan(
            1,
            item.offer,
            item.chip.id,
            len(packing.each),
            round(item.devices),
            on_device,
            busy,
            run_s / HOUR_S,
            Interval(1, *spread).scaled(packing.seconds / HOUR_S),
            Interval(1, spread[0] * hour.low / hour.value, spread[1] * hour.high / hour.value).scaled(packing.usd)
            if hour.value
            else Interval(0.0, 0.0, 0.0),
            None if alone is None else alone.usd,
            None if alone is None else alone.seconds / HOUR_S,
            on_device / (run_s * slowdown(on_device, busy)) * HOUR_S / _devices_of(estimate),
            hour.value / round(item.devices),
            flags_of(estimate.strategy),
            obstacle,
            _devices_of(estimate),
        )

    def _packing(self, item: Candidate, estimate: Estimate, *, copies: int) -> Packing | None:
        device_groups = _device_groups(item, estimate)
        times = _device_times(self.runs, self._run_s(estimate), _busy(estimate), copies)
        terms = replace(item.terms, usd_per_hour=self._hour_usd(item, estimate).value)

        @cache
        def billed(work_s: float) -> tuple[float, float]:
            of_one = bill(work_s, terms)
            return of_one.usd, of_one.calendar_s

        most = 1 if item.terms.kind == _OWNED else max(1, self.most_devices // round(item.devices))
        limit_s = self.request.deadline_s or YEAR_S
        if self.request.objective == "fastest":
            limit_usd = math.inf if self.request.budget_usd is None else self.request.budget_usd
            packing = fastest_packing(
                self.runs, times=times, devices=device_groups, bill=billed, most_machines=most, limit_usd=limit_usd
            )
            return None if packing is None or packing.seconds > limit_s else packing
        return cheapest_packing(self.runs, times=times, devices=device_groups, bill=billed, most_machines=most, limit_s=limit_s)

    def _run_s(self, estimate: Estimate) -> float:
        return estimate.step_time_s.value * -(-self.samples // estimate.strategy.global_batch)

    def _copies(self, item: Candidate, estimate: Estimate) -> int:
        capacity = item.cluster.capacity_bytes if _devices_of(estimate) == 1 else None  # runs over several devices share none
        if item.chip.kind == "cpu" or not item.chip.kind.startswith("gpu"):
            capacity = None
        return most_copies(
            busy=_busy(estimate),
            copy_bytes=estimate.device_bytes,
            capacity_bytes=None if capacity is None else capacity * HEADROOM,
            cores=None if item.offer.vcpus is None else item.offer.vcpus // 2,  # two virtual CPUs are a core
            devices=round(item.devices),
        )

    def _hour_usd(self, item: Candidate, estimate: Estimate) -> Interval:
        if item.rate is not None:
            return price_in_this_job(item.rate, estimate).usd_per_hour
        run_s = min(self.runs * self._run_s(estimate) / _device_groups(item, estimate), self.request.deadline_s or YEAR_S)
        listed_usd = item.offer.usd_per_hour
        paid_share = item.terms.usd_per_hour / listed_usd if listed_usd else 1.0  # with the user's discount
        return likely_price(item.offer, self.market, run_s=run_s).usd_per_hour.scaled(paid_share)

    def _least_usd(self, item: Candidate, estimate: Estimate) -> float:
        """A lower bound of the money: every device always full, nothing set up."""
        best_s = max(_busy(estimate), 1 / self._copies(item, estimate)) * self._run_s(estimate)
        return self._hour_usd(item, estimate).value * self.runs * best_s / _device_groups(item, estimate) / HOUR_S

    def _key(self, row: SweepPlan) -> tuple[object, ...]:
        obstacle = bool(row.train_obstacle) and not self.request.xla
        if self.request.objective == "fastest":
            return obstacle, row.hours.value, row.usd.value
        return obstacle, round(row.usd.value, 2), row.hours.value


def _devices_of(estimate: Estimate) -> int:
    """Devices of one run."""
    return estimate.strategy.mesh.devices


def _device_groups(item: Candidate, estimate: Estimate) -> int:
    """Runs of a machine, one on each device or group of devices."""
    return round(item.devices) // _devices_of(estimate)


def _device_times(runs: int, run_s: float, busy: float, most: int) -> Seconds:
    return _times(runs, run_s=run_s, busy=busy, most=most)


def _busy(estimate: Estimate) -> float:
    return 1.0 if estimate.forecast is None else busy_share(estimate.forecast.bound)


def _spread(estimate: Estimate, *, shared: bool) -> tuple[float, float]:
    """Low and high of the time over its value: the forecast's interval, and that of shared devices."""
    step = estimate.step_time_s
    low, high = math.log(step.low / step.value), math.log(step.high / step.value)
    if shared:
        low, high = -math.hypot(low, math.log(SPEED_SPREAD[1])), math.hypot(high, math.log(SPEED_SPREAD[0]))
    return math.exp(low), math.exp(high)


def _with_best_alone(row: SweepPlan, of_same: Sequence[SweepPlan]) -> SweepPlan:
    """The row with the cheapest way to take one run at a time among strategies on the same machines."""
    alone = min(of_same, key=lambda other: math.inf if other.one_at_a_time_usd is None else other.one_at_a_time_usd)
    return replace(row, one_at_a_time_usd=alone.one_at_a_time_usd, one_at_a_time_hours=alone.one_at_a_time_hours)


def _shown(rows: Sequence[SweepPlan], limit: float) -> list[SweepPlan]:
    """The first rows, with no chip and count more than twice; the user's own machines always."""
    seen: Counter[tuple[str, int]] = Counter()
    shown: list[SweepPlan] = []
    for row in rows:
        key = row.device, row.devices_each
        if row.offer.terms == _OWNED or (seen[key] < _SAME and len(shown) < limit):
            shown.append(row)
            seen[key] += 1
    return shown
