"""choose: ranks the best strategies of a search inside budget and deadline."""

from __future__ import annotations

from gpuwise.errors import NoPlanError
from gpuwise.notes import rejections
from gpuwise.notes import run as run_notes
from gpuwise.plan.buying.owned import owned_machines
from gpuwise.plan.buying.plans import PlanMaker
from gpuwise.plan.cpu.network_enough import enough_for_network
from gpuwise.plan.front import front_of
from gpuwise.plan.no_plan import NothingInside, no_plan
from gpuwise.plan.plan_result import PlanResult
from gpuwise.plan.priced import priced_options
from gpuwise.plan.reasons import rank_reasons
from gpuwise.plan.rejections import Rejections
from gpuwise.plan.request import Request
from gpuwise.plan.searched import Searched
from gpuwise.plan.selection import best_at_usual_price, choose_shown
from gpuwise.plan.standing import Standing


def choose(searched: Searched, request: Request) -> PlanResult:
    """The best plans of a search inside the budget and the deadline of a request. The same arguments give the same result.

    Arguments:
        request: that of the search, or one with another amount, budget, deadline, objective, confidence or limit.

        Raises NoPlanError (NothingInside, with the cheapest and the fastest plan, if only budget or deadline exclude them),
        DoesNotFitError if no device has enough memory.
    """
    header = searched.header
    samples, length_notes = request.length.total_samples(header)
    assumptions = [*request.length.relevant(header.assumption_notes), *length_notes, *searched.assumption_notes]
    if request.deadline_s is None:
        assumptions.append(run_notes.no_deadline())
    maker, priced = PlanMaker(searched, request, samples), priced_options(searched, request, samples=samples)
    standing, rejected = Standing.of(priced, request), priced.rejected.copy()
    standing.reject(rejected)
    inside = standing.best_inside()
    chosen = choose_shown(inside, request.limit, rejected)
    for what in searched.incomplete:
        rejected.add(rejections.no_price(), what)
    if not priced.options:
        raise no_plan(header.job, request, rejected, searched.what_fits())
    if not inside:
        raise _nothing_inside(standing, maker, rejected)
    ranked = rank_reasons([maker.plan(option) for option in chosen], searched.chips, inside=inside, request=request)
    usual = best_at_usual_price(chosen, inside)
    plan_of = {id(option): plan for option, plan in zip(chosen, ranked, strict=True)}
    rows = standing.ranking()[: len(inside)]
    ranks = {row: plan_of[id(option)].rank for row, option in zip(rows, inside, strict=True) if id(option) in plan_of}
    return PlanResult(
        tuple(ranked),
        rejected.result(),
        tuple(assumptions),
        len(searched.considered) + len(searched.incomplete),
        searched.strategies.priced,
        owned_machines(rejected.at_hand, priced.options, ranked, searched.chips, inside=inside, rates=searched.rates),
        None if usual is None else plan_of.get(id(usual)) or maker.plan(usual),
        front_of(header.job, standing, ranks=ranks),
        cpu_enough=enough_for_network(priced.options, request),
        composed=searched.strategies.composed,
    )


def _nothing_inside(standing: Standing, maker: PlanMaker, rejected: Rejections) -> NoPlanError:
    """The error for options that are all outside the limits."""
    request, searched = maker.request, maker.searched
    options = standing.options(range(len(standing.priced.options)))
    current = [option for option in options if request.stale or not option.offer.stale]
    if not current:
        return NoPlanError(
            f"{searched.header.job}: every offer that would do has a price over a year old.",
            ["rank them all the same: --stale", "list what is offered: gpuwise offers"],
        )
    return NothingInside(
        request,
        current,
        rejected.result(),
        owned_machines(rejected.at_hand, options, (), searched.chips, inside=(), rates=searched.rates),
        cheapest=maker.plan(min(current, key=lambda option: (option.usd.value, option.hours))),
        fastest=maker.plan(min(current, key=lambda option: (option.hours, option.usd.value))),
    )
