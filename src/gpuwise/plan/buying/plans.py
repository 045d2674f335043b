"""Makes a plan from a strategy on a candidate: steps, time, money and reasons."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpuwise.cost.forecast import Forecast
from gpuwise.hardware.prices import UsualPrices, share_of_median
from gpuwise.hardware.types import Offer
from gpuwise.notes import Note, rejections
from gpuwise.notes import run as run_notes
from gpuwise.plan.buying.candidates import Candidate, Key
from gpuwise.plan.buying.runnable import train_obstacle
from gpuwise.plan.cpu.choice import CpuChoice
from gpuwise.plan.economics.bill import bill as bill_of
from gpuwise.plan.economics.bill import outcome as outcome_of
from gpuwise.plan.economics.likely_price import likely_price
from gpuwise.plan.reasons import forecast_reasons, offer_reasons, price_reasons
from gpuwise.plan.rejections import Rejections
from gpuwise.plan.request import Request
from gpuwise.plan.space.constraints import NoStrategy
from gpuwise.plan.types import Plan
from gpuwise.trace.header import Header
from gpuwise.version import __version__


@dataclass(frozen=True)
class PlanMaker:
    """Makes the plans of one request.

    Attributes:
        request: the user's requirements.
        header: header of the job's trace.
        samples: number of samples to train on.
        assumed_batch: the default global batch; None if the user sets one. A plan with another batch has a note on it.
        market: what a device-hour usually costs.
        choices: settings chosen for this machine's CPU.
    """

    request: Request
    header: Header
    samples: int
    assumed_batch: int | None
    market: UsualPrices
    choices: Mapping[Key, CpuChoice]

    def plans(
        self,
        considered: Sequence[Candidate | tuple[Offer, Note]],
        best: Mapping[Key, Forecast | NoStrategy],
        rejected: Rejections,
    ) -> list[Plan]:
        """A plan for each candidate with a strategy and a finite run. The others are counted."""
        plans = []
        for item in considered:
            if not isinstance(item, Candidate):
                offer, reason = item
                what = f"{offer.devices:g} × {offer.chip_id} at {offer.provider} ({offer.instance})"
                rejected.add(reason, what, distance=offer.devices, offer=offer)
                continue
            forecast = best[item.key]
            if isinstance(forecast, NoStrategy):
                detail = forecast.detail.rstrip(".")
                rejected.add(forecast.reason, str(item), detail, distance=forecast.shortfall_bytes, offer=item.offer)
                continue
            plan = self.plan(item, forecast)
            if math.isfinite(plan.hours) and math.isfinite(plan.usd.high):
                plans.append(plan)
            else:
                rejected.add(rejections.never_ends(), str(item), offer=item.offer)
        return plans

    def plan(self, item: Candidate, forecast: Forecast) -> Plan:
        """One plan without a rank."""
        request, header, choice = self.request, self.header, self.choices.get(item.key)
        batch = forecast.strategy.global_batch
        steps = -(-self.samples // batch)
        work = forecast.step_time_s.scaled(steps)
        terms = item.terms if choice is None else replace(item.terms, setup_s=item.terms.setup_s + choice.compile_s)
        price = likely_price(item.offer, self.market, run_s=bill_of(work.value, terms).calendar_s)
        hour = price.usd_per_hour
        item = replace(item, terms=replace(terms, usd_per_hour=hour.value))
        outcome = outcome_of(work, item.terms, deadline_s=request.deadline_s, usd_per_hour=hour)
        listed_usd = outcome.bill.usd * price.listed_usd / hour.value if hour.value else outcome.bill.usd
        assumptions = [*item.assumptions, *forecast.assumption_notes]
        if self.assumed_batch not in (None, batch):
            why = f"so that it divides over {item.cluster.devices} devices"
            if header.own_step:
                why = "the largest micro-batch that serves: the job's own step takes one"
            assumptions.append(run_notes.global_batch_here(samples=batch, why=why))
        obstacle = train_obstacle(item.chip, forecast.strategy)
        reasons = [
            *price_reasons(price, outcome.usd, listed_usd=listed_usd),
            *offer_reasons(item, outcome, request, work_s=work.value, train_obstacle=obstacle),
            *forecast_reasons(forecast, item, train_obstacle=obstacle),
            *(() if choice is None else choice.reasons),
        ]
        bill = outcome.bill
        return Plan(
            rank=1,
            job=header.job,
            job_fingerprint=header.fingerprint,
            job_argument=request.job_argument,
            strategy=forecast.strategy,
            offer=item.offer,
            device=item.chip.id,
            count=item.offer.devices,
            forecast=forecast,
            hours=bill.calendar_s / 3600,
            machine_hours=bill.machine_s / 3600,
            usd=outcome.usd,
            finish_probability=outcome.finish_probability,
            steps=steps,
            samples=self.samples,
            price_as_of=item.offer.as_of,
            gpuwise_version=__version__,
            sizes={name: value for name, value in header.sizes.items() if name != "micro_batch"},
            checkpoint_interval_s=bill.checkpoint_interval_s,
            reason_notes=tuple(reasons),
            assumption_notes=tuple(assumptions),
            hours_interval=outcome.calendar_s.scaled(1 / 3600),
            train_obstacle=obstacle,
            price_of_median=share_of_median(item.offer, self.market.on_demand),
            usd_per_hour=hour,
            usd_at_listed_price=listed_usd,
        )
