"""plan: every offer, the best strategy on each, time and money, ranked by cost inside budget and deadline."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import gpuwise
from gpuwise.cost.forecast import Forecast, Interval
from gpuwise.errors import DoesNotFitError, GpuwiseError, NoPlanError
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.types import Offer
from gpuwise.plan import economics, space
from gpuwise.plan.candidates import Candidate, Key, candidates
from gpuwise.plan.cpu_choice import CpuChoice, Price
from gpuwise.plan.pricing import NoStrategy, Pricer, Wish, has_headroom
from gpuwise.plan.reasons import forecast_reasons, money_times_time, offer_reasons, rank_reasons
from gpuwise.plan.this_cpu import choices_here
from gpuwise.plan.types import NothingInside, Plan, PlanResult, Rejection, Request, TraceSource
from gpuwise.trace.trace import Header
from gpuwise.units import format_duration, format_usd

_NO_MEMORY = "does not fit in memory"
_EXAMPLES = 3
_SAME_DEVICES = 2  # plans on the same chip and count that the table shows at most
# Without a deadline nothing longer than this is offered: a free tier would win every ranking with a decade of work.
_NO_DEADLINE_S = economics.YEAR_S


class _Rejections:
    """Offers by the reason they are out, with the nearest (smallest distance) as examples."""

    def __init__(self) -> None:
        self._found: dict[str, list[tuple[float, str]]] = {}

    def add(self, reason: str, example: str, *, distance: float = 0.0) -> None:
        self._found.setdefault(reason, []).append((distance, example))

    def result(self) -> dict[str, Rejection]:
        ordered = sorted(self._found.items(), key=lambda item: -len(item[1]))
        nearest = {reason: tuple(dict.fromkeys(text for _, text in sorted(found))) for reason, found in ordered}
        return {reason: Rejection(len(found), nearest[reason][:_EXAMPLES]) for reason, found in ordered}


def plan(source: TraceSource, request: Request, offers: Sequence[Offer], catalog: Catalog, *,
         own: Price | None = None, compiler: bool = True) -> PlanResult:  # fmt: skip
    """The cheapest ways to train a job inside the budget and the deadline.

    Arguments:
        source: gives the job's traces; the only way this function learns about the job.
        offers: what can be rented; request.own and request.here are added.
        own: prices with the kernels of this machine's CPU, to choose its settings by; None: as every device's.
        compiler: whether there is one here for torch.compile.
    Raises NoPlanError (NothingInside, with the cheapest and the fastest, where only budget or deadline stand in the
    way), DoesNotFitError where no device has the memory, InputError where the request does not say how much to train.
    """
    pricer = Pricer(source, sizes=request.sizes, optimizer=request.optimizer, replay=False)
    header = pricer.header([request.precision] if request.precision else ["amp-bf16", "fp32", "amp-fp16"])
    samples, assumptions = request.total_samples(header)
    global_batch, exact = request.global_batch, True
    if global_batch is None:
        exact = False
        global_batch, assumed = space.default_global_batch(header, samples)
        assumptions.append(assumed)
    if request.deadline_s is None:
        assumptions.append("no deadline given: what takes over a year is left out; --deadline changes it")
    considered = candidates(request, offers, catalog, parameters=header.trainable_parameters)
    places = {item.key: item for item in considered if isinstance(item, Candidate)}
    key_of = {item.offer: item.key for item in considered if isinstance(item, Candidate)}

    def search(item: Candidate) -> Forecast | NoStrategy:
        return _best(pricer, item, request, global_batch, exact=exact)

    best = {key: search(item) for key, item in places.items()}
    choices = {} if own is None else choices_here(places, best, own, request, samples=samples, compiler=compiler)
    best |= {key: choice.forecast for key, choice in choices.items()}
    settled = set(choices)  # counted by traces of the very kernels
    while True:  # until the memory of all that would be shown is what the allocator makes of it
        rejected = _Rejections()
        found = _plans(considered, best, request, header, rejected, samples=samples,
                       default_batch=None if exact else global_batch, choices=choices)  # fmt: skip
        inside = _inside(found, request, rejected)
        chosen = _choose(inside, request.limit, rejected)
        unsettled = {key_of[plan.offer] for plan in chosen} - settled
        if not unsettled:
            break
        best |= {key: _settled(pricer, places[key], best[key], search) for key in unsettled}
        settled |= unsettled
    if request.on is None:
        for row in catalog.incomplete_offers:
            rejected.add("no price", f"{row.chip_id or 'unknown chip'} at {row.provider} ({row.instance})")
    if not found:
        raise _nothing(header.job, request, rejected.result())
    if not inside:
        current = [plan for plan in found if request.stale or not plan.offer.stale]
        if not current:
            raise NoPlanError(f"{header.job}: every offer that would do has a price over a year old.",
                              ["rank them all the same: --stale", "list what is offered: gpuwise offers"])  # fmt: skip
        raise NothingInside(request, current, rejected.result())
    chips = {item.chip.id: item.chip for item in considered if isinstance(item, Candidate)}
    ranked = rank_reasons(chosen, chips, inside=len(inside), request=request)
    total = len(considered) + (len(catalog.incomplete_offers) if request.on is None else 0)
    return PlanResult(tuple(ranked), rejected.result(), (*header.assumptions, *assumptions), total, pricer.priced)


def _plans(considered: Sequence[Candidate | tuple[Offer, str]], best: Mapping[Key, Forecast | NoStrategy], request: Request,
           header: Header, rejected: _Rejections, *, samples: int, default_batch: int | None,
           choices: Mapping[Key, CpuChoice]) -> list[Plan]:  # fmt: skip
    """A plan for each candidate that has a strategy and an end; the others are counted."""
    found = []
    for item in considered:
        if not isinstance(item, Candidate):
            out, reason = item
            what = f"{out.devices:g} × {out.chip_id} at {out.provider} ({out.instance})"
            rejected.add(reason, what, distance=out.devices)
            continue
        forecast = best[item.key]
        if isinstance(forecast, NoStrategy):
            detail = f": {forecast.detail.rstrip('.')}" if forecast.detail else ""
            rejected.add(forecast.reason, f"{item}{detail}", distance=forecast.shortfall_bytes)
            continue
        made = _plan(item, forecast, request, header, samples=samples, default_batch=default_batch,
                     choice=choices.get(item.key))  # fmt: skip
        if math.isfinite(made.hours) and math.isfinite(made.usd.high):
            found.append(made)
        else:
            rejected.add("never ends under its interruptions or session limits", str(item))
    return found


def _settled(pricer: Pricer, item: Candidate, found: Forecast | NoStrategy,
             search: Callable[[Candidate], Forecast | NoStrategy]) -> Forecast | NoStrategy:  # fmt: skip
    """What was found on a place with its memory replayed; found again, by replays, where little or nothing is left."""
    assert isinstance(found, Forecast)  # it was to be shown
    memory = pricer.replayed(found.strategy, item.place)
    if has_headroom(memory):
        return replace(found, memory=memory)
    pricer.replays.add(item.place)
    return search(item)


def _best(pricer: Pricer, item: Candidate, request: Request, global_batch: int, *, exact: bool) -> Forecast | NoStrategy:
    place = item.place
    batch = space.batch_for(global_batch, devices=place.count, micro_batch=request.micro_batch, exact=exact)
    if batch is None:
        what = f"{place.count} devices" + (f" × micro-batch {request.micro_batch}" if request.micro_batch else "")
        return NoStrategy("global batch does not divide over the devices", f"{global_batch:,} over {what}")
    wish = Wish(batch, request.precision, request.recompute, request.micro_batch, request.optimizer)
    try:
        return pricer.best(place, wish)
    except GpuwiseError as error:
        return NoStrategy("the step cannot be priced there", error.what)


def _plan(item: Candidate, forecast: Forecast, request: Request, header: Header, *, samples: int,
          default_batch: int | None, choice: CpuChoice | None = None) -> Plan:  # fmt: skip
    batch = forecast.strategy.global_batch
    steps = -(-samples // batch)
    work = forecast.step_time_s.scaled(steps)
    terms = item.terms if choice is None else replace(item.terms, setup_s=item.terms.setup_s + choice.compile_s)
    outcome = economics.outcome(work, terms, deadline_s=request.deadline_s)
    assumptions = [*item.assumptions, *forecast.assumptions]
    if default_batch not in (None, batch):
        assumptions.append(
            f"the assumed global batch is {batch:,} samples here, so that it divides over {item.place.count} devices"
        )
    reasons = [*offer_reasons(item, outcome, request, work_s=work.value), *forecast_reasons(forecast, item),
               *(() if choice is None else choice.reasons)]  # fmt: skip
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
        usd=Interval(bill.usd, outcome.usd_low, outcome.usd_high),
        finish_probability=outcome.finish_probability,
        steps=steps,
        samples=samples,
        price_as_of=item.offer.as_of,
        gpuwise_version=gpuwise.__version__,
        sizes={name: value for name, value in header.sizes.items() if name != "micro_batch"},
        checkpoint_interval_s=bill.checkpoint_interval_s,
        reasons=tuple(reasons),
        assumptions=tuple(assumptions),
    )


def _inside(found: list[Plan], request: Request, rejected: _Rejections) -> list[Plan]:
    """The plans inside budget and deadline, cheapest first; the others are counted with how far they are out."""
    inside = []
    for plan in found:
        hours_limit = (request.deadline_s or _NO_DEADLINE_S) / 3600
        what = f"{plan.count:g} × {plan.device} at {plan.offer.provider} ({plan.offer.instance}, {plan.offer.terms})"
        if plan.hours > hours_limit:
            reason = "past the deadline" if request.deadline_s else "takes over a year"
            rejected.add(reason, f"{what}: {format_duration(plan.hours * 3600)}", distance=plan.hours)
        elif request.budget_usd is not None and plan.usd.value > request.budget_usd:
            rejected.add("over budget", f"{what}: {format_usd(plan.usd.value)}", distance=plan.usd.value)
        elif plan.offer.stale and not request.stale:
            told = f"{what}: {format_usd(plan.usd.value)} at the price of {plan.offer.as_of}"
            rejected.add("price over a year old; --stale ranks them too", told, distance=plan.usd.value)
        else:
            inside.append(plan)
    return sorted(inside, key=_by_cost)


def _by_cost(plan: Plan) -> tuple[float, float, float]:
    """Cheaper first; what differs by less than a cent is ordered by speed."""
    return round(plan.usd.value, 2), plan.hours, plan.usd.value


def _choose(inside: list[Plan], limit: int | None, rejected: _Rejections) -> list[Plan]:
    """The cheapest, no chip and count more than twice, and always the fastest and the best value."""
    if limit is None or not inside:
        return inside
    must = [
        min(inside, key=lambda plan: (plan.hours, plan.usd.value)),
        min(inside, key=money_times_time),
    ]
    chosen: list[Plan] = []
    seen: dict[tuple[str, float], int] = {}
    for plan in inside:
        left = limit - len(chosen) - sum(1 for m in must if m is not plan and not any(m is c for c in chosen))
        same = seen.get((plan.device, plan.count), 0)
        if any(plan is m for m in must) or (same < _SAME_DEVICES and left > 0) or not chosen:
            chosen.append(plan)
            seen[plan.device, plan.count] = same + 1
        else:
            what = f"{plan.count:g} × {plan.device} at {plan.offer.provider}"
            rejected.add("inside, but others on the list are cheaper", what, distance=plan.usd.value)
    return chosen


def _nothing(job: str, request: Request, rejected: dict[str, Rejection]) -> GpuwiseError:
    told = [f"{reason}: {r.count}, e.g. {r.examples[0]}" for reason, r in rejected.items() if reason != _NO_MEMORY]
    others = f" Others are out for: {'; '.join(told[:3])}." if told else ""
    if _NO_MEMORY in rejected:
        short = rejected[_NO_MEMORY]
        return DoesNotFitError(f"{job} fits the memory of none of {short.count} offers of up to {request.max_devices} "
                               f"devices. The nearest is {short.examples[0]}.{others}",
                               ["a smaller model, or shorter samples with --seq-len or --image-size",
                                "see what each memory technique frees: gpuwise fit"])  # fmt: skip
    where = f" on {', '.join(request.on)}" if request.on else ""
    return NoPlanError(f"no offer can train {job}{where}.{others or ' None is in the catalog.'}",
                       ["name another device with --on, or one you have with --own",
                        "list what is offered: gpuwise offers"])  # fmt: skip
