"""plan: every offer, the best strategy on each, time and money, ranked by cost inside budget and deadline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gpuwise.cost.forecast import Forecast
from gpuwise.cost.inputs import DataPipeline
from gpuwise.errors import GpuwiseError, NoPlanError
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.prices import UsualPrices
from gpuwise.hardware.types import Offer
from gpuwise.notes import rejections
from gpuwise.notes import run as run_notes
from gpuwise.plan.buying.candidates import Candidate, candidates
from gpuwise.plan.buying.owned import owned_machines
from gpuwise.plan.buying.plans import PlanMaker
from gpuwise.plan.cpu.choice import Price
from gpuwise.plan.cpu.this_cpu import choices_here
from gpuwise.plan.no_plan import NothingInside, nearest_fitting, no_plan
from gpuwise.plan.pricing.step import StepPricer, has_headroom
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.plan.reasons import rank_reasons
from gpuwise.plan.rejections import Rejections
from gpuwise.plan.request import Request
from gpuwise.plan.selection import best_at_usual_price, choose_shown, plans_inside
from gpuwise.plan.space import legal
from gpuwise.plan.space.constraints import Constraints, NoStrategy, no_batch
from gpuwise.plan.space.global_batch import TrainedOn, assumed_global_batch
from gpuwise.plan.space.strategies import StrategySearch
from gpuwise.plan.types import PlanResult
from gpuwise.trace.header import Header


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
        traces: the job's traces, the only source of facts about the job.
        offers: machines for rent; request.own and request.here are added.
        own: prices steps with the kernels of this machine's CPU, to choose its settings; None prices it as any device.
        compiler: whether this machine has a compiler for torch.compile.
        with_seq_len: returns the job's traces at another sequence length; None if its length is fixed.

        Raises NoPlanError (NothingInside, with the cheapest and the fastest plan, if only budget or deadline exclude them),
        DoesNotFitError if no device has enough memory, InputError if the request has no length of the run.
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
    choices = {} if own is None else choices_here(by_key, best, own, request, samples=samples, compiler=compiler)
    best |= {key: choice.forecast for key, choice in choices.items()}
    market = UsualPrices.of(catalog.offers, newest=catalog.newest)
    maker = PlanMaker(request, header, samples, None if exact else global_batch, market, choices)
    settled = set(choices)  # its memory is counted from traces with its own kernels
    while True:  # until the memory of every shown plan comes from a replay of the allocator
        rejected = Rejections()
        plans = maker.plans(considered, best, rejected)
        inside = plans_inside(plans, request, rejected)
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
    if not plans:
        raise no_plan(header.job, request, rejected, nearest_fitting(pricer, request, by_key, best, with_seq_len))
    if not inside:
        current = [plan for plan in plans if request.stale or not plan.offer.stale]
        if not current:
            raise NoPlanError(
                f"{header.job}: every offer that would do has a price over a year old.",
                ["rank them all the same: --stale", "list what is offered: gpuwise offers"],
            )
        raise NothingInside(request, current, rejected.result(), owned_machines(rejected.at_hand, plans, (), chips))
    ranked = rank_reasons(chosen, chips, inside=inside, request=request)
    usual = best_at_usual_price(ranked, inside)
    total = len(considered) + (len(catalog.incomplete_offers) if request.on is None else 0)
    return PlanResult(
        tuple(ranked),
        rejected.result(),
        (*header.assumption_notes, *assumptions),
        total,
        pricer.priced,
        owned_machines(rejected.at_hand, plans, ranked, chips),
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


def _settled(
    strategies: StrategySearch,
    item: Candidate,
    forecast: Forecast | NoStrategy,
    search: Callable[[Candidate], Forecast | NoStrategy],
) -> Forecast | NoStrategy:
    """The forecast with its memory replayed; the strategy is searched again with replays if little memory is left."""
    assert isinstance(forecast, Forecast)  # it was to be shown
    memory = strategies.pricer.replayed(forecast.strategy, item.cluster)
    if has_headroom(memory):
        return replace(forecast, memory=memory)
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
        return no_batch(cluster, global_batch, micro_batch=request.micro_batch, accumulation=request.accumulation)
    constraints = Constraints(
        batch, request.precision, request.recompute, request.micro_batch, request.accumulation, request.techniques, exact=exact
    )
    try:
        best = strategies.best(cluster, constraints)
        # Without accumulation a device's whole batch has to fit; a default batch can be smaller.
        while (
            isinstance(best, NoStrategy) and request.techniques.optimizer_in_backward and not exact and batch > cluster.devices
        ):
            batch = max(1, batch // cluster.devices // 2) * cluster.devices
            best = strategies.best(cluster, replace(constraints, global_batch=batch))
        return best
    except GpuwiseError as error:
        return NoStrategy(rejections.cannot_be_priced(), error.what)
