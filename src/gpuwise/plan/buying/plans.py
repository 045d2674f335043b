"""Makes options of strategies on candidates: steps, time and money; and plans of options: reasons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuwise.cost.offload import on_host_bytes
from gpuwise.hardware.prices import share_of_median
from gpuwise.notes import Note, rejections
from gpuwise.notes import plan as plan_notes
from gpuwise.notes import run as run_notes
from gpuwise.plan.buying.candidates import Candidate, Key
from gpuwise.plan.buying.owned import power_note, price_in_this_job
from gpuwise.plan.buying.runnable import train_obstacle
from gpuwise.plan.economics.bill import at_price, outcomes
from gpuwise.plan.economics.likely_price import likely_prices
from gpuwise.plan.estimate import Estimate
from gpuwise.plan.option import Option
from gpuwise.plan.reasons import forecast_reasons, offer_reasons, price_reasons
from gpuwise.plan.rejections import Rejections
from gpuwise.plan.request import Request
from gpuwise.plan.searched import Searched
from gpuwise.plan.space.constraints import NoStrategy
from gpuwise.plan.space.permission import BATCH, used
from gpuwise.plan.types import Plan
from gpuwise.strategy import Strategy
from gpuwise.units import format_bytes
from gpuwise.version import __version__


@dataclass(frozen=True)
class PlanMaker:
    """Makes the options and plans of one request.

    Attributes:
        searched: the best strategy on each hardware.
        request: the user's requirements.
        samples: number of samples to train on.
    """

    searched: Searched
    request: Request
    samples: int

    def options(self, rejected: Rejections) -> list[Option]:
        """An option for each candidate with a strategy and a finite run. The others are counted."""
        rows = []
        for item in self.searched.considered:
            if not isinstance(item, Candidate):
                offer, reason = item
                what = f"{offer.devices:g} × {offer.chip_id} at {offer.provider} ({offer.instance})"
                rejected.add(reason, what, distance=offer.devices, offer=offer)
                continue
            estimate = self.searched.best[item.key]
            if isinstance(estimate, NoStrategy):
                detail = estimate.detail.rstrip(".")
                rejected.add(estimate.reason, item, detail, distance=estimate.shortfall_bytes, offer=item.offer)
                continue
            host_bytes = 0 if estimate.strategy.offload == "none" else on_host_bytes(self.searched.header)
            if (missing := host_bytes - (item.offer.host_memory_bytes or host_bytes)) > 0:
                has = format_bytes(host_bytes - missing)
                detail = f"needs offload, and {format_bytes(host_bytes)} of host memory, of {has}"
                rejected.add(rejections.out_of_memory(), item, detail, distance=missing, offer=item.offer)
                continue
            rows.append((item, estimate))
        options = []
        for option in self._remembered(rows):
            if math.isfinite(option.hours) and math.isfinite(option.usd.high):
                options.append(option)
            else:
                rejected.add(rejections.never_ends(), option.item, offer=option.offer)
        return options

    def _remembered(self, rows: Sequence[tuple[Candidate, Estimate]]) -> list[Option]:
        """The options of candidates. Those with the same estimate as before are not made again."""
        options: dict[int, Option] = {}
        for item, estimate in rows:
            option = self.searched.remembered.get((self.samples, id(item)))
            if isinstance(option, Option) and option.item is item and option.estimate is estimate:
                options[id(item)] = option
        others = self._options([(item, estimate) for item, estimate in rows if id(item) not in options])
        options |= {id(option.item): option for option in others}
        self.searched.remembered.clear()
        self.searched.remembered.update({(self.samples, key): option for key, option in options.items()})
        return [options[id(item)] for item, _ in rows]

    def _options(self, rows: Sequence[tuple[Candidate, Estimate]]) -> list[Option]:
        """The time and money of the run on each candidate, computed as columns."""
        market, choices = self.searched.market, self.searched.choices
        steps = [-(-self.samples // estimate.strategy.global_batch) for _, estimate in rows]
        works = [estimate.step_time_s.scaled(count) for (_, estimate), count in zip(rows, steps, strict=True)]
        terms = []
        for item, estimate in rows:
            choice, each_terms = choices.get(item.key), item.terms
            if choice is not None:
                each_terms = replace(each_terms, setup_s=each_terms.setup_s + choice.compile_s)
            if item.rate is not None:
                each_terms = replace(each_terms, usd_per_hour=price_in_this_job(item.rate, estimate).listed_usd)
            terms.append(each_terms)
        listed = outcomes(works, terms, deadline_s=self.request.deadline_s)
        offers = [item.offer for item, _ in rows]
        prices = likely_prices(offers, market, run_s=[each.bill.calendar_s for each in listed])
        for row, (item, estimate) in enumerate(rows):
            if item.rate is not None:
                prices[row] = price_in_this_job(item.rate, estimate)
        obstacles: dict[Key, str] = {}
        for item, estimate in rows:
            if item.key not in obstacles:
                obstacle = train_obstacle(item.chip, estimate.strategy, job_argument=self.request.job_argument)
                obstacles[item.key] = obstacle
        return [
            Option(
                item,
                estimate,
                each_terms,
                price,
                at_price(each, price.listed_usd, price.usd_per_hour),
                count,
                obstacles[item.key],
                share_of_median(item.offer, market.on_demand),
            )
            for (item, estimate), each_terms, price, each, count in zip(rows, terms, prices, listed, steps, strict=True)
        ]

    def _offload_reason(self, strategy: Strategy) -> tuple[Note, ...]:
        """Why the search took offload; empty where it did not."""
        if strategy.offload == self.request.techniques.offload:
            return ()
        return (plan_notes.offloaded(offload=strategy.offload, host_bytes=on_host_bytes(self.searched.header)),)

    def plan(self, option: Option) -> Plan:
        """An option with its reasons, without a rank."""
        terms = replace(option.terms, usd_per_hour=option.terms.usd_per_hour * option.price_ratio)
        item, outcome, obstacle = replace(option.item, terms=terms), option.outcome, option.train_obstacle
        request, header, choice = self.request, self.searched.header, self.searched.choices.get(item.key)
        forecast = option.estimate.to_forecast(header, item.cluster)
        batch = forecast.strategy.global_batch
        work_s = forecast.step_time_s.value * option.steps
        assumptions = [*item.assumptions, *request.length.relevant(forecast.assumption_notes)]
        if item.rate is not None:
            assumptions.insert(0, power_note(item.rate, option.estimate))
        usual_batch = self.searched.assumed_batch or request.global_batch
        changed = used(
            forecast.strategy,
            requested=request.techniques,
            precision=request.precision,
            global_batch=usual_batch if BATCH in request.allow else None,
        )
        if self.searched.assumed_batch not in (None, batch) and BATCH not in changed:
            why = f"so that it divides over {item.cluster.devices} devices"
            if header.own_step:
                why = "the largest micro-batch that serves: the job's own step takes one"
            assumptions.append(run_notes.global_batch_here(samples=batch, why=why))
        reasons = [
            *(plan_notes.changes_training(permission=name, words=words) for name, words in changed.items()),
            *price_reasons(option.price, outcome.usd, listed_usd=option.usd_at_listed_price),
            *self._offload_reason(forecast.strategy),
            *offer_reasons(item, outcome, request, work_s=work_s, train_obstacle=obstacle),
            *(
                reason
                for reason in forecast_reasons(forecast, item, train_obstacle=obstacle)
                if (reason.kind, "bf16" in changed) != ("pure-bf16", True)
            ),
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
            count=option.count,
            forecast=forecast,
            hours=bill.calendar_s / 3600,
            machine_hours=bill.machine_s / 3600,
            usd=outcome.usd,
            finish_probability=option.finish_probability,
            steps=option.steps,
            samples=self.samples,
            price_as_of=item.offer.as_of,
            gpuwise_version=__version__,
            sizes={name: value for name, value in header.sizes.items() if name != "micro_batch"},
            checkpoint_interval_s=bill.checkpoint_interval_s,
            reason_notes=tuple(reasons),
            assumption_notes=tuple(assumptions),
            hours_interval=outcome.calendar_s.scaled(1 / 3600),
            train_obstacle=obstacle,
            price_of_median=option.price_of_median,
            usd_per_hour=option.price.usd_per_hour,
            usd_at_listed_price=option.usd_at_listed_price,
            machines=option.machines,
            chance=option.chance,
        )
