"""What each machine costs for a mix of jobs: purchase less resale, electricity, and the rent of what does not run on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuwise.plan.advice.machine_for_sale import MachineForSale
from gpuwise.plan.advice.types import BoughtMachine, CheapestRental, JobHere
from gpuwise.plan.economics.owned import WEEK_HOURS, WEEKS_A_YEAR


@dataclass(frozen=True)
class RunHere:
    """One run of a job on a machine, as forecast.

    Attributes:
        hours: of the run; None where it cannot run.
        chips_w: watts of all chips; None takes their board power.
        throughput, unit: of the step.
        reason: why it cannot run.
        would_fit: the change that would fit it.
    """

    hours: float | None
    chips_w: float | None = None
    throughput: float | None = None
    unit: str = ""
    reason: str = ""
    would_fit: str = ""


@dataclass(frozen=True)
class Week:
    """A job's part of a week.

    Attributes:
        name: of the job.
        runs: a week.
        rental: its cheapest rental; None where nothing rented trains it.
    """

    name: str
    runs: float
    rental: CheapestRental | None


def bought(
    machine: MachineForSale, weeks: Sequence[Week], runs: Mapping[str, RunHere], *, usd_per_kwh: float, circuit: str = ""
) -> BoughtMachine:
    """What a machine costs a year for the mix.

    Arguments:
        weeks: the jobs of the mix.
        runs: a run of each job on the machine, by name.
        circuit: as for MachineForSale.remarks.
    """
    costs = machine.costs
    hours = {week.name: run.hours * week.runs for week in weeks if (run := runs[week.name]).hours is not None}
    busy_h = sum(hours.values())
    lost_usd = costs.lost_usd(machine.purchase_usd, machine.chip.kind)
    capital_usd = lost_usd / costs.lifetime_years  # a year
    capital_per_hour = capital_usd / WEEKS_A_YEAR / busy_h if busy_h else 0.0
    jobs, electricity_usd, rent_usd, replaced_usd, longest_h = [], 0.0, 0.0, 0.0, 0.0
    for week in weeks:
        run = runs[week.name]
        rental_usd = week.rental.usd if week.rental else 0.0
        if run.hours is None:
            rent_usd += rental_usd * week.runs * WEEKS_A_YEAR
            jobs.append(
                JobHere(
                    week.name,
                    None,
                    None,
                    None,
                    run.unit,
                    None,
                    rental_usd,
                    rented=week.rental is not None,
                    reason=run.reason,
                    would_fit=run.would_fit,
                )
            )
            continue
        chips_w = (machine.chip.tdp_w or 0.0) * machine.count if run.chips_w is None else run.chips_w
        power_usd = costs.electricity_usd_per_hour(chips_w, usd_per_kwh=usd_per_kwh) * run.hours
        electricity_usd += power_usd * week.runs * WEEKS_A_YEAR
        replaced_usd += rental_usd * week.runs * WEEKS_A_YEAR
        longest_h = max(longest_h, run.hours)
        usd = power_usd + capital_per_hour * run.hours
        jobs.append(JobHere(week.name, run.hours, hours[week.name], run.throughput, run.unit, costs.wall_w(chips_w), usd))
    saved_usd = replaced_usd - electricity_usd  # a year, by what runs on the machine
    even_h = busy_h * capital_usd / saved_usd if saved_usd > 0 else None
    return BoughtMachine(
        machine.chip.id,
        machine.count,
        machine.host.name,
        machine.purchase_usd,
        machine.purchase_usd - lost_usd,
        machine.peak_w,
        busy_h,
        tuple(jobs),
        capital_usd,
        electricity_usd,
        rent_usd,
        even_h if even_h is not None and even_h <= WEEK_HOURS else None,
        machine.purchase_usd / costs.lifetime_years + electricity_usd + rent_usd,
        machine.remarks(longest_h=longest_h, circuit=circuit),
    )


def rent_all(weeks: Sequence[Week]) -> BoughtMachine | None:
    """Renting everything; None where some job cannot be rented."""
    rentals = [week.rental for week in weeks]
    if any(rental is None for rental in rentals):
        return None
    jobs = tuple(JobHere(r.name, r.hours, None, None, "", None, r.usd, rented=True) for r in rentals if r is not None)
    usd = sum(r.usd * r.runs_a_week for r in rentals if r is not None) * WEEKS_A_YEAR
    return BoughtMachine("", 0, "", 0.0, 0.0, 0.0, 0.0, jobs, 0.0, 0.0, usd, None, usd)


def ranked(machines: Sequence[BoughtMachine]) -> tuple[BoughtMachine, ...]:
    """Those that do the whole mix first: fast enough, with each job run here or rented; then the cheapest a year."""
    return tuple(
        sorted(
            machines,
            key=lambda machine: (
                not machine.fast_enough,
                any(job.hours is None and not job.rented for job in machine.jobs),
                machine.usd_a_year,
            ),
        )
    )
