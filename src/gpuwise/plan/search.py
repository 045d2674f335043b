"""plan: every offer, the best strategy on each, time and money, ranked by cost inside budget and deadline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpuwise.cost.inputs import DataPipeline
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.prices import GRACE_DAYS, UsualPrices
from gpuwise.hardware.types import Offer
from gpuwise.notes import Note
from gpuwise.notes.price import old_catalog
from gpuwise.plan.best import BatchChoice, BestStrategies
from gpuwise.plan.buying.candidates import Candidate, candidates
from gpuwise.plan.buying.clusters import with_clusters
from gpuwise.plan.choose import choose
from gpuwise.plan.cpu.choice import Price
from gpuwise.plan.cpu.this_cpu import choices_here
from gpuwise.plan.estimate import Estimate
from gpuwise.plan.fewest_devices import fewest_devices
from gpuwise.plan.no_plan import FitsNowhere, NothingInside
from gpuwise.plan.plan_result import PlanResult
from gpuwise.plan.pricing.step import StepPricer
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.plan.request import Request
from gpuwise.plan.searched import Searched
from gpuwise.plan.space.global_batch import TrainedOn, assumed_global_batch
from gpuwise.plan.why.explain import explain
from gpuwise.trace.header import Header


def plan(
    traces: StepTraces,
    request: Request,
    offers: Sequence[Offer],
    catalog: Catalog,
    *,
    own: Price | None = None,
    compiler: bool = True,
) -> PlanResult:
    """The cheapest ways to train a job inside the budget and the deadline.

    Arguments as for `search`. Plans are ranked, the shown ones are forecast exactly, and ranked again until nothing changes.
    Clusters of request.more_devices are looked at where single machines have too little memory or take too long, and for the
    fastest plan.

    Raises the errors of `search` and `choose`.
    """
    searched = search(traces, request, offers, catalog, own=own, compiler=compiler)
    try:
        return _planned(searched, request, offers, catalog)
    except FitsNowhere as error:
        holding = fewest_devices(
            request,
            offers,
            catalog,
            search=lambda other: search(traces, other, offers, catalog),
            widened=lambda narrow, other: widened(narrow, other, offers, catalog),
        )
        if holding is None:
            raise
        raise error.held_by(holding) from None


def _planned(searched: Searched, request: Request, offers: Sequence[Offer], catalog: Catalog) -> PlanResult:
    """The plans of single machines, or of clusters where those do not do."""
    if request.more_devices is None:
        return chosen_exactly(searched, request)
    wider = replace(request, max_devices=request.more_devices, more_devices=None, machines_joined=True)
    if request.objective != "fastest" and searched.runs_somewhere:
        try:
            return chosen_exactly(searched, request)
        except NothingInside as nothing:
            if request.budget_usd is not None and nothing.cheapest.usd.value > request.budget_usd:
                raise  # more devices cost no less
        except FitsNowhere:
            pass  # what one machine has beside its devices, as host memory, does not do
    return chosen_exactly(widened(searched, wider, offers, catalog), wider)


def chosen_exactly(searched: Searched, request: Request) -> PlanResult:
    """The plans of a search with exact forecasts of all that are shown, explained if the request says so.

    The first, where it is composed, leads on to faster strategies along axes that are not. Raises the errors of `choose` and
    `explain`.
    """
    led_on = False
    while True:
        try:
            result = choose(searched, request)
        except NothingInside as nothing:
            if not (keys := searched.unsettled([nothing.cheapest, nothing.fastest])):
                raise
        else:
            if not (keys := searched.unsettled(result.plans)):
                further = searched if led_on else searched.led_on(result.best)
                if further is searched:
                    break
                searched, led_on = further, True
        searched = searched.verified(keys)
    result = replace(result, priced=searched.strategies.priced, verified=searched.strategies.verified())
    if request.why is None:
        return result
    return explain(searched, request, result, names=request.why, exactly=chosen_exactly)


def search(
    traces: StepTraces,
    request: Request,
    offers: Sequence[Offer],
    catalog: Catalog,
    *,
    own: Price | None = None,
    compiler: bool = True,
) -> Searched:
    """The best strategy of a job on each hardware.

    Arguments:
        traces: the job's traces, the only source of facts about the job.
        request: the user's requirements. Budget, deadline and objective do not enter.
        offers: machines for rent; request.own and request.here are added.
        own: prices steps with the kernels of this machine's CPU, to choose its settings; None prices it as any device.
        compiler: whether this machine has a compiler for torch.compile.

    Raises InputError if the request has no length of the run.
    """
    header = traces.header([request.precision] if request.precision else ["amp-bf16", "fp32", "amp-fp16"], request.techniques)
    samples, _ = request.length.total_samples(header)
    batch, notes = _batch(header, request, samples)
    strategies = BestStrategies(
        StepPricer(traces, catalog=catalog, data=DataPipeline(request.loader_samples_per_s)),
        request,
        batch,
        composes=bool(header.blocks),
    )
    considered = _considered(header, request, offers, catalog)
    by_key = {item.key: item for item in considered if isinstance(item, Candidate)}
    best = strategies.best(by_key)
    choices = {} if own is None else choices_here(by_key, best, own, request, samples=samples, compiler=compiler)
    # Its memory is counted from traces with its own kernels, so nothing is left to verify.
    best |= {key: Estimate.of(choice.forecast, settled=True) for key, choice in choices.items()}
    market = UsualPrices.of(catalog.offers, today=catalog.today)
    unpriced = catalog.incomplete_offers if request.on is None else ()
    return Searched(
        header,
        considered,
        best,
        strategies,
        None if batch.exact else batch.samples,
        (*notes, *strategies.untried(), *_age_note(catalog, market)),
        market,
        choices,
        [f"{row.chip_id or 'unknown chip'} at {row.provider} ({row.instance})" for row in unpriced],
    )


def widened(searched: Searched, request: Request, offers: Sequence[Offer], catalog: Catalog) -> Searched:
    """A search with the hardware added that a wider request has beside. request: of the same job with the same settings."""
    strategies = searched.strategies
    considered = _considered(searched.header, request, offers, catalog)
    more = {item.key: item for item in considered if isinstance(item, Candidate) and item.key not in searched.best}
    best = {**searched.best, **strategies.best(more)}
    notes = dict.fromkeys((*searched.assumption_notes, *strategies.untried()))
    return replace(searched, considered=considered, best=best, assumption_notes=tuple(notes), remembered={})


def _considered(
    header: Header, request: Request, offers: Sequence[Offer], catalog: Catalog
) -> list[Candidate | tuple[Offer, Note]]:
    machines = candidates(request, offers, catalog, parameters=header.trainable_parameters)
    return with_clusters(machines, request, offers, catalog)


def _age_note(catalog: Catalog, market: UsualPrices) -> tuple[Note, ...]:
    """The note on a catalog whose newest price is no longer of this quarter."""
    days = market.age_days(catalog.newest)
    return (old_catalog(newest=catalog.newest, days=days),) if days > GRACE_DAYS else ()


def _batch(header: Header, request: Request, samples: int) -> tuple[BatchChoice, tuple[Note, ...]]:
    """The global batch, and the note on a default."""
    if request.global_batch is not None:
        return BatchChoice(request.global_batch, exact=True), ()
    trained_on = TrainedOn(
        header.sample_unit == "token",
        header.units_per_sample,
        header.parameters,
        header.trainable_parameters,
        samples,
        request.samples_per_epoch,
    )
    batch, note = assumed_global_batch(trained_on)
    return BatchChoice(batch, exact=False), (note,)
