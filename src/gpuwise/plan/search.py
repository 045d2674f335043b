"""plan: every offer, the best strategy on each, time and money, ranked by cost inside budget and deadline."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from gpuwise.cost.forecast import Forecast
from gpuwise.cost.inputs import DataPipeline
from gpuwise.errors import DoesNotFitError, GpuwiseError, NoPlanError
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.prices import median_prices, share_of_median
from gpuwise.hardware.types import Offer
from gpuwise.notes import Note, rejections
from gpuwise.notes import run as run_notes
from gpuwise.plan.buying.candidates import Candidate, Key, candidates
from gpuwise.plan.buying.owned import owned_machines
from gpuwise.plan.buying.runnable import train_obstacle
from gpuwise.plan.cpu.choice import CpuChoice, Price
from gpuwise.plan.cpu.this_cpu import choices_here
from gpuwise.plan.economics.bill import outcome as outcome_of
from gpuwise.plan.fit.change import FitProblem, FittingChange
from gpuwise.plan.fit.change_search import fitting_change
from gpuwise.plan.pricing.step import StepPricer, has_headroom
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.plan.reasons import forecast_reasons, offer_reasons, rank_reasons
from gpuwise.plan.rejections import Rejections
from gpuwise.plan.selection import best_at_usual_price, choose_shown, plans_inside
from gpuwise.plan.space import legal
from gpuwise.plan.space.global_batch import TrainedOn, assumed_global_batch
from gpuwise.plan.space.strategies import Constraints, NoStrategy, StrategySearch
from gpuwise.plan.types import NothingInside, Plan, PlanResult, Request, own_machines
from gpuwise.step_settings import job_word
from gpuwise.strategy import Mesh
from gpuwise.trace.header import Header
from gpuwise.version import __version__

_NO_MEMORY = rejections.out_of_memory()


def plan(
    traces: StepTraces,
    request: Request,
    offers: Sequence[Offer],
    catalog: Catalog,
    *,
    own: Price | None = None,
    compiler: bool = True,
    with_seq_len: Callable[[int], StepTraces] | None = None,
) -> PlanResult:
    """The cheapest ways to train a job inside the budget and the deadline.

    Arguments:
        traces: of the job, the only way this function learns about it.
        offers: what can be rented; request.own and request.here are added.
        own: prices with the kernels of this machine's CPU, to choose its settings by; None: as every device's.
        compiler: whether there is one here for torch.compile.
        with_seq_len: the job's traces at another length of its samples; None where it has one length.
    Raises NoPlanError (NothingInside, with the cheapest and the fastest, where only budget or deadline stand in the
    way), DoesNotFitError where no device has the memory, InputError where the request does not say how much to train.
    """
    pricer = StepPricer(traces, catalog=catalog, data=DataPipeline(request.loader_samples_per_s))
    strategies = StrategySearch(pricer)
    header = traces.header([request.precision] if request.precision else ["amp-bf16", "fp32", "amp-fp16"], request.techniques)
    samples, assumptions = request.length.total_samples(header)
    global_batch, exact = request.global_batch, True
    if global_batch is None:
        exact = False
        global_batch, assumed = assumed_global_batch(_trained_on(header, request, samples))
        assumptions.append(assumed)
    if request.deadline_s is None:
        assumptions.append(run_notes.no_deadline())
    considered = candidates(request, offers, catalog, parameters=header.trainable_parameters)
    by_key = {item.key: item for item in considered if isinstance(item, Candidate)}
    key_of = {item.offer: item.key for item in considered if isinstance(item, Candidate)}

    def search(item: Candidate) -> Forecast | NoStrategy:
        return _best(strategies, item, request, global_batch, exact=exact)

    best = {key: search(item) for key, item in by_key.items()}
    medians = median_prices(catalog.offers)
    choices = {} if own is None else choices_here(by_key, best, own, request, samples=samples, compiler=compiler)
    best |= {key: choice.forecast for key, choice in choices.items()}
    settled = set(choices)  # counted by traces of the very kernels
    while True:  # until the memory of all that would be shown is what the allocator makes of it
        rejected = Rejections()
        found = _plans(
            considered,
            best,
            request,
            header,
            rejected,
            samples=samples,
            default_batch=None if exact else global_batch,
            choices=choices,
        )
        found = [replace(made, price_of_median=share_of_median(made.offer, medians)) for made in found]
        inside = plans_inside(found, request, rejected)
        chosen = choose_shown(inside, request.limit, rejected)
        unsettled = {key_of[plan.offer] for plan in chosen} - settled
        if not unsettled:
            break
        best |= {key: _settled(strategies, by_key[key], best[key], search) for key in unsettled}
        settled |= unsettled
    if request.on is None:
        for row in catalog.incomplete_offers:
            rejected.add(rejections.no_price(), f"{row.chip_id or 'unknown chip'} at {row.provider} ({row.instance})")
    chips = {item.chip.id: item.chip for item in considered if isinstance(item, Candidate)}
    if not found:
        answer = None
        if any(isinstance(each, NoStrategy) and each.reason == _NO_MEMORY for each in best.values()):
            answer = _what_would_fit(pricer, request, by_key, best, with_seq_len)
        raise _nothing(header.job, request, rejected, answer)
    if not inside:
        current = [plan for plan in found if request.stale or not plan.offer.stale]
        if not current:
            raise NoPlanError(
                f"{header.job}: every offer that would do has a price over a year old.",
                ["rank them all the same: --stale", "list what is offered: gpuwise offers"],
            )
        raise NothingInside(request, current, rejected.result(), owned_machines(rejected.at_hand, found, (), chips))
    ranked = rank_reasons(chosen, chips, inside=inside, request=request)
    usual = best_at_usual_price(ranked, inside)
    total = len(considered) + (len(catalog.incomplete_offers) if request.on is None else 0)
    return PlanResult(
        tuple(ranked),
        rejected.result(),
        (*header.assumption_notes, *assumptions),
        total,
        pricer.priced,
        owned_machines(rejected.at_hand, found, ranked, chips),
        usual,
    )


def _trained_on(header: Header, request: Request, samples: int) -> TrainedOn:
    return TrainedOn(
        header.sample_unit == "token",
        header.units_per_sample,
        header.parameters,
        header.trainable_parameters,
        samples,
        request.samples_per_epoch,
    )


def _plans(
    considered: Sequence[Candidate | tuple[Offer, Note]],
    best: Mapping[Key, Forecast | NoStrategy],
    request: Request,
    header: Header,
    rejected: Rejections,
    *,
    samples: int,
    default_batch: int | None,
    choices: Mapping[Key, CpuChoice],
) -> list[Plan]:
    """A plan for each candidate that has a strategy and an end; the others are counted."""
    found = []
    for item in considered:
        if not isinstance(item, Candidate):
            out, reason = item
            what = f"{out.devices:g} × {out.chip_id} at {out.provider} ({out.instance})"
            rejected.add(reason, what, distance=out.devices, offer=out)
            continue
        forecast = best[item.key]
        if isinstance(forecast, NoStrategy):
            rejected.add(
                forecast.reason, str(item), forecast.detail.rstrip("."), distance=forecast.shortfall_bytes, offer=item.offer
            )
            continue
        made = _plan(
            item, forecast, request, header, samples=samples, default_batch=default_batch, choice=choices.get(item.key)
        )
        if math.isfinite(made.hours) and math.isfinite(made.usd.high):
            found.append(made)
        else:
            rejected.add(rejections.never_ends(), str(item), offer=item.offer)
    return found


def _settled(
    strategies: StrategySearch,
    item: Candidate,
    found: Forecast | NoStrategy,
    search: Callable[[Candidate], Forecast | NoStrategy],
) -> Forecast | NoStrategy:
    """What was found on a cluster with its memory replayed; found again, by replays, where little or nothing is left."""
    assert isinstance(found, Forecast)  # it was to be shown
    memory = strategies.pricer.replayed(found.strategy, item.cluster)
    if has_headroom(memory):
        return replace(found, memory=memory)
    strategies.exact_on.add(item.cluster)
    return search(item)


def _best(
    strategies: StrategySearch, item: Candidate, request: Request, global_batch: int, *, exact: bool
) -> Forecast | NoStrategy:
    cluster = item.cluster
    batch = legal.batch_for(
        global_batch, devices=cluster.devices, micro_batch=request.micro_batch, accumulation=request.accumulation, exact=exact
    )
    if batch is None:
        what = f"{cluster.devices} devices" + (f" × micro-batch {request.micro_batch}" if request.micro_batch else "")
        what += f" × {request.accumulation} accumulated" if request.accumulation else ""
        return NoStrategy(rejections.batch_does_not_divide(), f"{global_batch:,} over {what}")
    constraints = Constraints(
        batch, request.precision, request.recompute, request.micro_batch, request.accumulation, request.techniques, exact=exact
    )
    try:
        found = strategies.best(cluster, constraints)
        # Without accumulation a device's whole batch has to fit; an assumed one can be smaller.
        while (
            isinstance(found, NoStrategy) and request.techniques.optimizer_in_backward and not exact and batch > cluster.devices
        ):
            batch = max(1, batch // cluster.devices // 2) * cluster.devices
            found = strategies.best(cluster, replace(constraints, global_batch=batch))
        return found
    except GpuwiseError as error:
        return NoStrategy(rejections.cannot_be_priced(), error.what)


def _plan(
    item: Candidate,
    forecast: Forecast,
    request: Request,
    header: Header,
    *,
    samples: int,
    default_batch: int | None,
    choice: CpuChoice | None = None,
) -> Plan:
    batch = forecast.strategy.global_batch
    steps = -(-samples // batch)
    work = forecast.step_time_s.scaled(steps)
    terms = item.terms if choice is None else replace(item.terms, setup_s=item.terms.setup_s + choice.compile_s)
    outcome = outcome_of(work, terms, deadline_s=request.deadline_s)
    assumptions = [*item.assumptions, *forecast.assumption_notes]
    if default_batch not in (None, batch):
        why = f"so that it divides over {item.cluster.devices} devices"
        if header.own_step:
            why = "the largest micro-batch that serves: the job's own step takes one"
        assumptions.append(run_notes.global_batch_here(samples=batch, why=why))
    reasons = [
        *offer_reasons(item, outcome, request, work_s=work.value),
        *forecast_reasons(forecast, item),
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
        samples=samples,
        price_as_of=item.offer.as_of,
        gpuwise_version=__version__,
        sizes={name: value for name, value in header.sizes.items() if name != "micro_batch"},
        checkpoint_interval_s=bill.checkpoint_interval_s,
        reason_notes=tuple(reasons),
        assumption_notes=tuple(assumptions),
        hours_interval=outcome.calendar_s.scaled(1 / 3600),
        train_obstacle=train_obstacle(item.chip, item.offer.devices),
    )


def _what_would_fit(
    pricer: StepPricer,
    request: Request,
    by_key: Mapping[Key, Candidate],
    best: Mapping[Key, Forecast | NoStrategy],
    with_seq_len: Callable[[int], StepTraces] | None,
) -> tuple[Candidate, FittingChange] | None:
    """The smallest change that fits the candidate which lacks the least memory."""
    short = {key: each for key, each in best.items() if isinstance(each, NoStrategy) and each.reason == _NO_MEMORY}
    nearest = by_key[min(short, key=lambda key: (short[key].shortfall_bytes, str(by_key[key])))]
    cluster = nearest.cluster
    for precision in legal.precisions_for(cluster.chip, request.precision):
        requested = request.techniques.but(
            precision=precision,
            recompute=request.recompute or "none",
            micro_batch=request.micro_batch or 1,
            accumulation=request.accumulation or 1,
            mesh=Mesh(dp_replicate=cluster.devices),
        )
        problem = FitProblem(
            StepPricer(pricer.traces, catalog=pricer.catalog),
            requested,
            cluster,
            nearest.offer.host_memory_bytes,
            with_seq_len,
            request.job_argument,
            f"{cluster.chip.id}:{cluster.devices}",
        )
        try:
            answer = fitting_change(problem)
        except GpuwiseError:
            continue
        if isinstance(answer, FittingChange):
            return nearest, answer
    return None


def _nothing(job: str, request: Request, rejected: Rejections, found: tuple[Candidate, FittingChange] | None) -> GpuwiseError:
    reasons = rejected.result()
    told = [f"{reason}: {r.count}, e.g. {r.examples[0]}" for reason, r in reasons.items() if r.reason != _NO_MEMORY]
    others = (f" Others are out for: {'; '.join(told[:3])}." if told else "") + own_machines(rejected.at_hand)
    if _NO_MEMORY.text in reasons:
        short = reasons[_NO_MEMORY.text]
        job_argument = job_word(request.job_argument)
        ways = [
            "a smaller model, or shorter samples with --seq-len or --image-size",
            f"see what would fit a device: gpuwise fit {job_argument} --on DEVICE",
        ]
        if found is not None:
            nearest, answer = found
            ways[0] = f"{answer.words} fits {nearest}: add {answer.flags}"
            ways[1] = f"see its step: {answer.command}"
        return DoesNotFitError(
            f"{job} fits the memory of none of {short.count} offers of up to {request.max_devices} "
            f"devices. The nearest is {short.examples[0]}.{others}",
            ways,
        )
    where = f" on {', '.join(request.on)}" if request.on else ""
    return NoPlanError(
        f"no offer can train {job}{where}.{others or ' None is in the catalog.'}",
        ["name another device with --on, or one you have with --own", "list what is offered: gpuwise offers"],
    )
