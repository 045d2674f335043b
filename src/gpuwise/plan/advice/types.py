"""The answer of buying advice. All are frozen; names carry the units."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from gpuwise.printed import Printed


@dataclass(frozen=True)
class JobHere:
    """One job of the mix on a bought machine.

    Attributes:
        name: of the job.
        hours: of one run; None where the job does not fit or cannot run.
        hours_a_week: of all runs of a week; None likewise.
        throughput: units a second; None likewise.
        unit: of throughput.
        wall_w: watts at the meter while it runs; None likewise.
        usd_a_run: purchase less resale and electricity, by its share of the machine's hours; of a job that is rented instead,
            the rent.
        rented: whether the job is rented instead.
        reason: why it does not run here; "" where it does.
        would_fit: the change that would fit it, with its flags; "" where none is known or needed.
    """

    name: str
    hours: float | None
    hours_a_week: float | None
    throughput: float | None
    unit: str
    wall_w: float | None
    usd_a_run: float
    rented: bool = False
    reason: str = ""
    would_fit: str = ""


@dataclass(frozen=True)
class BoughtMachine:
    """A machine to buy for the mix; with `device` "" nothing is bought and everything rented.

    Attributes:
        device, count: its chips; "" and 0 for renting only.
        host: the computer around them, in words.
        purchase_usd: of chips and host.
        resale_usd: at the end of its lifetime.
        peak_w: watts at the wall with every chip at its board power.
        hours_a_week: of work; above 168 it is too slow for the mix.
        jobs: each job of the mix on it.
        capital_usd_a_year: purchase less resale.
        electricity_usd_a_year, rent_usd_a_year: of the jobs that run on it, and of those that are rented instead.
        break_even_hours_a_week: of work in this mix from which on it is cheaper than renting all; None: never.
        without_resale_usd_a_year: the whole cost a year if nobody buys the machine.
        remarks: what else decides, in sentences.
        with_cloud: whether jobs are rented that could run on it, because the user wants that compared.
    """

    device: str
    count: int
    host: str
    purchase_usd: float
    resale_usd: float
    peak_w: float
    hours_a_week: float
    jobs: tuple[JobHere, ...]
    capital_usd_a_year: float
    electricity_usd_a_year: float
    rent_usd_a_year: float
    break_even_hours_a_week: float | None
    without_resale_usd_a_year: float
    remarks: tuple[str, ...] = ()
    with_cloud: bool = False

    @property
    def name(self) -> str:
        return f"{self.count} x {self.device}{' + cloud' * self.with_cloud}" if self.device else "rent all"

    @property
    def usd_a_year(self) -> float:
        return self.capital_usd_a_year + self.electricity_usd_a_year + self.rent_usd_a_year

    @property
    def fast_enough(self) -> bool:
        """Whether a week has enough hours for the mix."""
        return self.hours_a_week <= 168

    def to_dict(self) -> dict[str, object]:
        """The JSON contract of `gpuwise plan --buy --json`, one entry of `machines`."""
        return {**asdict(self), "name": self.name, "usd_a_year": self.usd_a_year, "fast_enough": self.fast_enough}


@dataclass(frozen=True)
class CheapestRental:
    """The cheapest rental of one job: in words, hours and dollars of a run, runs a week."""

    name: str
    rental: str
    hours: float
    usd: float
    runs_a_week: float


@dataclass(frozen=True, repr=False)
class BuyingAdvice(Printed):
    """Machines to buy for a mix of jobs, cheapest first; those too slow for it last.

    Attributes:
        machines: all of them, renting only among them.
        rentals: the cheapest rental of each job; none for one that nothing rented can train.
        left_out: machines that cannot be compared, with the reason.
        assumptions: in sentences.
    """

    machines: tuple[BoughtMachine, ...]
    rentals: tuple[CheapestRental, ...]
    left_out: tuple[tuple[str, str], ...]
    assumptions: tuple[str, ...]

    @property
    def best(self) -> BoughtMachine:
        return self.machines[0]

    def to_dict(self) -> dict[str, object]:
        """The JSON contract of `gpuwise plan --buy --json`."""
        return {
            "machines": [machine.to_dict() for machine in self.machines],
            "rentals": [asdict(rental) for rental in self.rentals],
            "left_out": [{"machine": name, "reason": reason} for name, reason in self.left_out],
            "assumptions": list(self.assumptions),
        }
