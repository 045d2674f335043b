"""buy: machines to buy for a mix of jobs, against each other and against renting."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from gpuwise.api.devices import device_of
from gpuwise.api.fitting import fitting_change_of
from gpuwise.api.own_costs import machine_of
from gpuwise.api.plain_arguments import plainly
from gpuwise.api.planning import plan
from gpuwise.api.source import StepSource
from gpuwise.api.sources import source_of
from gpuwise.errors import DoesNotFitError, GpuwiseError
from gpuwise.hardware.catalog import load_catalog
from gpuwise.plan.advice.advise import RunHere, Week, bought, ranked, rent_all
from gpuwise.plan.advice.machine_for_sale import MachineForSale, machine_for_sale
from gpuwise.plan.advice.mix import Mix, WeeklyJob, read_mix
from gpuwise.plan.advice.types import BuyingAdvice, CheapestRental
from gpuwise.plan.fit.change import FittingChange
from gpuwise.plan.space.legal import precisions_for
from gpuwise.plan_settings import PlanSettings
from gpuwise.step_settings import StepSettings, part_of, sizes_of, strategy_of
from gpuwise.strategy import Mesh
from gpuwise.units import format_usd

if TYPE_CHECKING:
    from gpuwise.plan.plan_result import PlanResult

_RENTED = ("on-demand", "spot")
_TRIED_SAMPLES = 1_000_000  # of the run whose hours say how fast a device is
_OTHER_PLANS = 12  # of the table of each job, beside the machines to buy


@plainly
def buy(path: str) -> BuyingAdvice:
    """What to buy for a mix of jobs, or whether to rent: cost a year, hours a week and break-even of each machine.

    Arguments:
        path: of a TOML file, see gpuwise.plan.advice.mix.

    Raises FileFormatError for a mistake in the file, and the errors of `plan` for a job that nothing can train.
    """
    from gpuwise.plan.economics.costs_file import FILE_KEYS, costs_in
    from gpuwise.plan.economics.owned import USD_PER_KWH

    catalog = load_catalog()
    mix, file = read_mix(path, cost_keys=FILE_KEYS)
    costs, in_file = costs_in(file, machine_of=machine_of)
    usd_per_kwh = USD_PER_KWH if in_file is None else in_file
    machines, left_out = [], []
    for name in mix.machines:
        try:
            chip_id, count = machine_of(name)
        except GpuwiseError as error:
            raise file.fail("machines", f"{name!r} is no machine: {error.what.rstrip('.')}", *error.ways_out) from None
        machine = machine_for_sale(catalog.chip(chip_id), count, costs)
        if isinstance(machine, MachineForSale):
            machines.append(machine)
        else:
            left_out.append((name, machine))
    weeks, runs = _forecasts(mix, machines)
    answers = [bought(m, weeks, runs[id(m)], usd_per_kwh=usd_per_kwh, circuit=mix.circuit) for m in machines]
    in_cloud = [job.name for job in mix.jobs if job.in_cloud]
    for machine in machines if in_cloud else ():
        here = {name: RunHere(None, reason="rented") if name in in_cloud else run for name, run in runs[id(machine)].items()}
        moved = any(runs[id(machine)][name].hours is not None for name in in_cloud)
        if moved and any(run.hours is not None for run in here.values()):
            hybrid = bought(machine, weeks, here, usd_per_kwh=usd_per_kwh, circuit=mix.circuit)
            answers.append(replace(hybrid, with_cloud=True))
    renting = rent_all(weeks)
    usual = costs.usual
    return BuyingAdvice(
        ranked([*answers, *([renting] if renting else [])]),
        tuple(week.rental for week in weeks if week.rental is not None),
        tuple(left_out),
        (
            f"a lifetime of {usual.lifetime_years:g} years, then sold; each machine is off while it does not work",
            f"electricity at {format_usd(usd_per_kwh)}/kWh, PUE {usual.pue:g}; electricity, pue, lifetime_years and resale in "
            "the file change these",
            "prices, power and resale of hosts and cards are of hardware/data/hosts.toml and the catalog; "
            '[machine."rtx-4090:2"] with purchase = ... replaces them',
            "taxes, repairs, your time and the room are not counted; free tiers are left out",
        ),
    )


def _forecasts(mix: Mix, machines: list[MachineForSale]) -> tuple[list[Week], dict[int, dict[str, RunHere]]]:
    """Each job's part of a week with its cheapest rental, and its run on each machine (by id of the machine, then name)."""
    weeks: list[Week] = []
    runs: dict[int, dict[str, RunHere]] = {id(machine): {} for machine in machines}
    names = list(dict.fromkeys(f"{m.chip.id}:{m.count}" for m in machines))
    for job in mix.jobs:
        settings = dict(job.settings)
        if job.runs_a_week is None:
            settings["samples"] = _samples_of(job)
        result = plan(job.job, own=names, limit=_OTHER_PLANS + 2 * len(names), **cast(PlanSettings, settings))
        weeks.append(Week(job.name, job.runs_a_week or 1.0, _cheapest_rental(job, result)))
        source = source_of(job.job, **sizes_of(part_of(job.settings, StepSettings)))
        for machine in machines:
            runs[id(machine)][job.name] = _run_on(machine, job, result, source)
    return weeks, runs


def _samples_of(job: WeeklyJob) -> int:
    """Samples that the device `on` trains in the job's hours a week, as `plan` would train there.

    Raises DoesNotFitError where it cannot train the job.
    """
    chip_id, count = machine_of(job.on or "")
    result = plan(job.job, own=f"{chip_id}:{count}", limit=1, **cast(PlanSettings, {**job.settings, "samples": _TRIED_SAMPLES}))
    at_hand = next(m for m in result.at_hand if (m.device, m.count, m.offer.provider) == (chip_id, count, "own"))
    if at_hand.hours is None:
        raise DoesNotFitError(
            f"{job.name}: {job.on} cannot train it ({at_hand.reason}), so hours there say nothing of its size.",
            ["another device for on", "runs_a_week with samples, epochs or tokens instead of hours_a_week"],
        )
    return max(1, round((job.hours_a_week or 0.0) / at_hand.hours * _TRIED_SAMPLES))


def _run_on(machine: MachineForSale, job: WeeklyJob, result: PlanResult, source: StepSource) -> RunHere:
    chip, count = machine.chip, machine.count
    at_hand = next(m for m in result.at_hand if (m.device, m.count, m.offer.provider) == (chip.id, count, "own"))
    if at_hand.hours is None:
        return RunHere(None, reason=at_hand.reason, would_fit=_would_fit(machine, job, source))
    own = next((p for p in result.plans if p.offer == at_hand.offer), None)
    if own is None:
        return RunHere(at_hand.hours)
    step = own.forecast
    chips_w = None if step.energy_j is None else step.energy_j / step.step_time_s.value
    return RunHere(at_hand.hours, chips_w, step.throughput, step.throughput_unit)


def _would_fit(machine: MachineForSale, job: WeeklyJob, source: StepSource) -> str:
    """The smallest change that fits the job, with its flags; "" where none is known."""
    named = part_of(job.settings, StepSettings)
    device = device_of(f"{machine.chip.id}:{machine.count}", load_catalog())
    for precision in precisions_for(machine.chip, named.get("precision")):
        try:
            requested = strategy_of(named).but(precision=precision, mesh=Mesh(dp_replicate=machine.count))
            if named.get("micro_batch") is None:
                requested = requested.but(micro_batch=1)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                change = fitting_change_of(source, device, requested)
        except GpuwiseError:
            continue
        if isinstance(change, FittingChange):
            return f"{change.words} ({change.flags})" if change.flags else change.words
    return ""


def _cheapest_rental(job: WeeklyJob, result: PlanResult) -> CheapestRental | None:
    """Of what `gpuwise train` can run if there is any, the cheapest that is neither free nor owned."""
    rented = [p for p in result.plans if p.offer.terms in _RENTED and not p.offer.stale]
    if not rented:
        return None
    best = min(rented, key=lambda p: (bool(p.train_obstacle), p.usd.value))
    words = f"{best.count:g} x {best.device} at {best.offer.provider} ({best.offer.terms})"
    return CheapestRental(job.name, words, best.hours, best.usd.value, job.runs_a_week or 1.0)
