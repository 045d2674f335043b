"""explain: why the winner, and any plan that the user names, stand where they stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpuwise.errors import InputError
from gpuwise.hardware.device import parse_device
from gpuwise.hardware.names import split_device
from gpuwise.notes import Note, rejections
from gpuwise.notes import plan as notes
from gpuwise.plan.buying.candidates import Candidate
from gpuwise.plan.estimate import Estimate
from gpuwise.plan.option import Option
from gpuwise.plan.plan_result import PlanResult
from gpuwise.plan.priced import priced_options
from gpuwise.plan.request import Request
from gpuwise.plan.searched import Searched
from gpuwise.plan.selection import may_miss
from gpuwise.plan.standing import Standing, outside
from gpuwise.plan.time_and_money import describe
from gpuwise.plan.types import Plan
from gpuwise.plan.why.job_changes import Exactly, job_changes
from gpuwise.plan.why.types import Neighbour, PlanWhy

_NEXT = 0.99  # a neighbour is cheaper, or faster, by a hundredth at least


def explain(searched: Searched, request: Request, result: PlanResult, *, names: Sequence[str], exactly: Exactly) -> PlanResult:
    """The result with `why`: the first plan, then those named.

    Arguments:
        searched: with exact estimates of the plans of the table.
        names: ranks of the table ("2") or devices ("h100-sxm:8", "h100-sxm" for any number).
        exactly: `choose` with exact forecasts of all that is shown.

    Raises InputError for a name without an offer, UnknownNameError for an unknown chip.
    """
    options, answers = _options(searched, request), []
    for name in dict.fromkeys(["1", *names]):
        option = _named(name, options, result, searched)
        while isinstance(option, Option) and not option.estimate.settled:
            searched = searched.verified([option.item.key])
            options = _options(searched, request)
            option = _named(name, options, result, searched)
        if isinstance(option, PlanWhy):
            answers.append(option)
            continue
        first = next(each for each in options if _is(each, result.best))
        answers.append(_why(name, option, first, options, request, result, searched=searched, exactly=exactly))
    return replace(result, why=tuple(answers))


def _options(searched: Searched, request: Request) -> list[Option]:
    """All options, best first."""
    samples, _ = request.length.total_samples(searched.header)
    standing = Standing.of(priced_options(searched, request, samples=samples), request)
    return standing.options(standing.ranking())


def _is(option: Option, plan: Plan) -> bool:
    return option.offer == plan.offer and option.count == plan.count


def _named(name: str, options: Sequence[Option], result: PlanResult, searched: Searched) -> Option | PlanWhy:
    """The best option with this name, or why there is none."""
    if name.isascii() and name.isdigit():
        if not 1 <= int(name) <= len(result.plans):
            raise InputError(f"--why {name}: the table has {len(result.plans)} plans.", ["--why 2", "--why h100-sxm:8"])
        return next(option for option in options if _is(option, result.plans[int(name) - 1]))
    chip = parse_device(name, catalog=searched.strategies.pricer.catalog).chip.id
    _, each, machines = split_device(name)
    devices = None if each is None else each * machines
    for option in options:
        if option.device == chip and devices in (None, option.count):
            return option
    for item in searched.considered:
        offer = item.offer if isinstance(item, Candidate) else item[0]
        count = item.devices if isinstance(item, Candidate) else offer.devices
        if offer.chip_id == chip and devices in (None, count):
            what = f"{count:g} × {chip} at {offer.provider} ({offer.instance}, {offer.terms})"
            return PlanWhy(name, what, fell_notes=(_why_not(item, searched),))
    raise InputError(f"--why {name}: none of the offers has it.", ["list what is offered: gpuwise offers", "--why h100-sxm"])


def _why_not(item: Candidate | tuple[object, Note], searched: Searched) -> Note:
    """Why an offer has no option."""
    if not isinstance(item, Candidate):
        return item[1]
    estimate = searched.best[item.key]
    if isinstance(estimate, Estimate):
        return rejections.never_ends()
    return estimate.reason.with_detail(estimate.detail.rstrip("."))


def _why(
    name: str,
    option: Option,
    first: Option,
    options: Sequence[Option],
    request: Request,
    result: PlanResult,
    *,
    searched: Searched,
    exactly: Exactly,
) -> PlanWhy:
    rank = next((plan.rank for plan in result.plans if _is(option, plan)), None)
    forecast = option.estimate.forecast
    return PlanWhy(
        name,
        describe(option),
        rank,
        () if option is first else tuple(_fell(option, first, request)),
        {} if forecast is None else dict(forecast.bound),
        "" if forecast is None else forecast.why,
        _neighbour(option, options, request, cheaper=True),
        _neighbour(option, options, request, cheaper=False),
        job_changes(searched, request, option, exactly),
    )


def _fell(option: Option, first: Option, request: Request) -> list[Note]:
    """Why an option is not the first."""
    fell: list[Note] = []
    problem = outside(option, request)
    if problem is not None:
        reason, detail, _ = problem
        fell.append(reason.with_detail(detail))
    elif may_miss(option, request):
        fell.append(notes.may_miss(chance=option.chance))
    if option.train_obstacle and not request.xla and not first.train_obstacle:
        fell.append(notes.not_for_train(obstacle=option.train_obstacle))
    fell.append(notes.against_the_first(pace=option.hours / first.hours, extra_usd=option.usd.value - first.usd.value))
    return fell


def _neighbour(option: Option, options: Sequence[Option], request: Request, *, cheaper: bool) -> Neighbour | None:
    """Of the cheaper options the fastest, or of the faster ones the cheapest, among those that could be used."""
    usable = [other for other in options if request.stale or not other.offer.stale]
    if not (request.xla or option.train_obstacle):
        usable = [other for other in usable if not other.train_obstacle]
    if cheaper:
        better = [other for other in usable if other.usd.value < _NEXT * option.usd.value]
        chosen = min(better, key=lambda other: (other.hours, other.usd.value), default=None)
    else:
        better = [other for other in usable if other.hours < _NEXT * option.hours]
        chosen = min(better, key=lambda other: (other.usd.value, other.hours), default=None)
    if chosen is None:
        return None
    return Neighbour(
        describe(chosen),
        chosen.hours,
        chosen.usd.value,
        chosen.hours - option.hours,
        chosen.usd.value - option.usd.value,
        inside=outside(chosen, request) is None,
    )
