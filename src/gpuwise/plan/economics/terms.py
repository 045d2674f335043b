"""From the length of a training run to calendar time and money under the terms it is bought on.

Interruptions: J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps" (2006), after
Young (1974). Every constant that is a guess is named in the `assumptions` of the result, with the flag that changes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from gpuwise.cost.forecast import Interval
from gpuwise.notes import Note
from gpuwise.notes import run as notes

HOUR_S = 3600.0
WEEK_S = 7 * 24 * HOUR_S
YEAR_S = 365 * 24 * HOUR_S

SETUP_S = 300.0  # a rented machine boots, installs and loads data before the first step; no public figure, a guess
RESTART_S = 600.0  # from an interruption to training again, on top of reading the checkpoint; a guess
# Interruptions a day of one spot machine; no provider publishes a rate for GPUs, so these are guesses.
INTERRUPTIONS_PER_DAY = {"vast": 2.0, "runpod": 2.0}
DEFAULT_INTERRUPTIONS_PER_DAY = 1.0
# fp32 parameters and two fp32 Adam moments; gradients are not saved.
CHECKPOINT_BYTES_PER_PARAMETER = 12
WRITE_BYTES_PER_S = 250e6  # to network storage, where the offer's network is not known; a guess
MAX_WRITE_BYTES_PER_S = 1e9  # what one stream to object storage reaches at most; a guess
MINIMUM_BILLING_S = 60.0  # AWS, GCP and Azure bill by the second after the first minute
HOURLY_BILLING = ("paperspace",)  # billed by the started hour
USD_PER_KWH = 0.17  # US residential average 2024 is 0.165 (EIA Electric Power Monthly)
UTILISATION = 0.8  # share of the board power drawn while training; a guess
DEFAULT_TDP_W = 300.0  # where the catalog knows no board power; a guess
DEFAULT_CPU_TDP_W = 65.0  # the same for CPUs: a desktop's; a guess
HOST_W = 100.0  # the rest of an owned machine under load; a guess
Z_90 = 1.6449  # half width of a 90 % interval in standard deviations


@dataclass(frozen=True)
class Terms:
    """What the money buys.

    kind: "on-demand" | "spot" | "reserved-1y" | "reserved-3y" | "owned" | "free". usd_per_hour: of the whole machine;
    for owned machines its electricity. interruptions_per_day, save_s and restart_s matter for spot; session_s and
    week_s (machine time a session and a week) for free tiers, None where unlimited.
    """

    kind: str
    usd_per_hour: float
    setup_s: float = SETUP_S
    minimum_s: float = MINIMUM_BILLING_S
    billing_step_s: float = 1.0
    interruptions_per_day: float = 0.0
    save_s: float = 0.0
    restart_s: float = 0.0
    session_s: float | None = None
    week_s: float | None = None


@dataclass(frozen=True)
class Bill:
    """Expected time and money of one run. machine_s is billed or drawn, calendar_s is what a deadline sees."""

    machine_s: float
    calendar_s: float
    usd: float
    checkpoint_interval_s: float | None = None
    interruptions: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """A bill, 90 % intervals of its money and calendar time from the forecast's, and the probability to finish before the
    deadline."""

    bill: Bill
    usd: Interval
    calendar_s: Interval
    finish_probability: float


def checkpoint_bytes(parameters: int, *, bytes_per_parameter: float = CHECKPOINT_BYTES_PER_PARAMETER) -> int:
    """Bytes of one checkpoint."""
    return round(parameters * bytes_per_parameter)


def write_rate_bytes_per_s(network_bytes_per_s: float | None) -> float:
    """What a checkpoint is saved at: half the machine's network, at most 1 GB/s. Spot machines lose their own disk."""
    return WRITE_BYTES_PER_S if not network_bytes_per_s else min(network_bytes_per_s / 2, MAX_WRITE_BYTES_PER_S)


def daly_interval_s(save_s: float, between_s: float) -> float:
    """Work between two checkpoints that loses least, for one taking save_s and interruptions between_s apart.

    Source: Daly (2006), the higher-order optimum: sqrt(2 δ M) (1 + x/3 + x²/9) - δ with x = sqrt(δ / 2M), M from
    δ = 2 M on. Never below a second, or what it takes to save.
    """
    if save_s >= 2 * between_s:
        return between_s
    x = math.sqrt(save_s / (2 * between_s))
    best = math.sqrt(2 * save_s * between_s) * (1 + x / 3 + x * x / 9) - save_s
    return max(best, min(save_s, between_s), 1.0)


def interrupted_s(work_s: float, *, interval_s: float, save_s: float, restart_s: float, between_s: float) -> float:
    """Expected time of work_s seconds under interruptions with exponential gaps of mean between_s.

    Source: Daly (2006), the complete model: M e^(R/M) (e^((τ+δ)/M) - 1) T / τ. Infinite where it never ends.
    """
    interval_s = min(interval_s, work_s)
    try:
        factor = between_s * math.exp(restart_s / between_s) * math.expm1((interval_s + save_s) / between_s)
    except OverflowError:
        return math.inf
    return factor * work_s / interval_s


def bill(work_s: float, terms: Terms) -> Bill:
    """The expected bill of work_s seconds of training steps under these terms."""
    if terms.kind == "spot":
        return _spot(work_s, terms)
    if terms.kind == "free":
        return _free(work_s, terms)
    machine_s = work_s + terms.setup_s
    if terms.kind.startswith("reserved"):
        years = 3 if terms.kind == "reserved-3y" else 1
        committed_s = math.ceil(machine_s / (years * YEAR_S)) * years * YEAR_S  # paid whether it is used or not
        return Bill(machine_s, machine_s, committed_s / HOUR_S * terms.usd_per_hour)
    return Bill(machine_s, machine_s, _usd(machine_s, terms))


def _usd(machine_s: float, terms: Terms) -> float:
    billed_s = max(machine_s, terms.minimum_s)
    if terms.billing_step_s > 1:
        billed_s = math.ceil(billed_s / terms.billing_step_s) * terms.billing_step_s
    return billed_s / HOUR_S * terms.usd_per_hour


def _spot(work_s: float, terms: Terms) -> Bill:
    if terms.interruptions_per_day < 1e-6:  # one in a thousand years
        machine_s = work_s + terms.setup_s
        return Bill(machine_s, machine_s, _usd(machine_s, terms))
    between_s = 24 * HOUR_S / terms.interruptions_per_day
    interval_s = daly_interval_s(terms.save_s, between_s)
    total_s = interrupted_s(work_s, interval_s=interval_s, save_s=terms.save_s, restart_s=terms.restart_s, between_s=between_s)
    machine_s = total_s + terms.setup_s
    usd = _usd(machine_s, terms) if math.isfinite(machine_s) else math.inf
    return Bill(machine_s, machine_s, usd, interval_s, total_s / between_s)


def _free(work_s: float, terms: Terms) -> Bill:
    """Sessions back to back until the week's hours are used up; each sets up and ends with a checkpoint."""
    lost_s = terms.setup_s + terms.save_s
    session_s = terms.session_s or math.inf
    if session_s <= lost_s:
        return Bill(math.inf, math.inf, math.inf)
    sessions = math.ceil(work_s / (session_s - lost_s)) if math.isfinite(session_s) else 1
    machine_s = work_s + sessions * lost_s
    calendar_s = machine_s
    if terms.week_s:
        full_weeks = math.ceil(machine_s / terms.week_s) - 1
        calendar_s = full_weeks * WEEK_S + (machine_s - full_weeks * terms.week_s)
    interval_s = min(session_s - lost_s, HOUR_S) if sessions > 1 else None
    return Bill(machine_s, calendar_s, machine_s / HOUR_S * terms.usd_per_hour, interval_s)


def outcome(work_s: Interval, terms: Terms, *, deadline_s: float | None) -> Outcome:
    """The expected bill, its interval and the probability to finish.

    Model: calendar time is lognormal around the expected one. Its spread joins the forecast's 90 % interval with the
    variance of what Poisson interruptions lose (half an interval of work each, uniformly spread, and a restart).
    """
    expected = bill(work_s.value, terms)
    low, high = bill(work_s.low, terms), bill(work_s.high, terms)
    usd, calendar_s = (
        Interval(getattr(expected, name), getattr(low, name), getattr(high, name)) for name in ("usd", "calendar_s")
    )
    if not math.isfinite(expected.calendar_s):
        return Outcome(expected, usd, calendar_s, 0.0)
    probability = 1.0
    if deadline_s is not None:
        sigma = math.log(high.calendar_s / low.calendar_s) / (2 * Z_90) if math.isfinite(high.calendar_s) else 1.0
        if expected.checkpoint_interval_s and expected.interruptions:
            lost_s, restart_s = expected.checkpoint_interval_s + terms.save_s, terms.restart_s
            square = lost_s**2 / 3 + lost_s * restart_s + restart_s**2
            sigma = math.sqrt(sigma**2 + math.log1p(expected.interruptions * square / expected.calendar_s**2))
        probability = _normal_cdf(math.log(deadline_s / expected.calendar_s) / max(sigma, 1e-9))
    return Outcome(expected, usd, calendar_s, probability)


def break_even_months(purchase_usd: float, *, own_usd: float, own_hours: float, rental_usd: float) -> float | None:
    """Months of such work without a pause after which a bought machine has cost less than renting.

    Arguments:
        own_usd, own_hours: electricity and calendar time of one run on it. rental_usd: of the same run on what is rented.

    None where its electricity alone costs as much as renting. Resale is not counted.
    """
    saved_usd = rental_usd - own_usd
    return None if saved_usd <= 0 else purchase_usd / saved_usd * own_hours * HOUR_S / (YEAR_S / 12)


def _normal_cdf(z: float) -> float:
    return 0.5 * (1 + math.erf(z / math.sqrt(2)))


def electricity_usd_per_hour(tdp_w: float, *, count: float, usd_per_kwh: float) -> float:
    """What an owned machine draws: the chips' board power × utilisation, and its host."""
    return (tdp_w * count * UTILISATION + HOST_W) / 1000 * usd_per_kwh


def rental(
    offer_terms: str,
    provider: str,
    usd_per_hour: float,
    *,
    parameters: int,
    network_bytes_per_s: float | None,
    interruptions_per_day: float | None,
    max_session_hours: float | None,
    hours_per_week: float | None,
) -> tuple[Terms, list[Note]]:
    """The terms of a rented machine, and what was assumed to write them down."""
    assumed = [notes.assumed_setup(setup_s=SETUP_S)]
    saved = checkpoint_bytes(parameters)
    rate = write_rate_bytes_per_s(network_bytes_per_s)
    terms = Terms(offer_terms, usd_per_hour, save_s=saved / rate, restart_s=RESTART_S + saved / rate)
    if provider in HOURLY_BILLING:
        terms = replace(terms, minimum_s=HOUR_S, billing_step_s=HOUR_S)
    if offer_terms == "spot":
        per_day = interruptions_per_day
        if per_day is None:
            per_day = INTERRUPTIONS_PER_DAY.get(provider, DEFAULT_INTERRUPTIONS_PER_DAY)
            assumed.append(notes.assumed_interruptions(interruptions_per_day=per_day))
        assumed.append(notes.assumed_checkpoints(saved_bytes=saved, bytes_per_s=rate, restart_s=RESTART_S))
        terms = replace(terms, interruptions_per_day=per_day)
    if offer_terms == "free":
        session_s = (max_session_hours or 12.0) * HOUR_S
        if max_session_hours is None:
            assumed.append(notes.assumed_free_sessions())
        week_s = 7 * session_s if hours_per_week is None else hours_per_week * HOUR_S
        if hours_per_week is None:
            assumed.append(notes.assumed_free_quota())
        terms = replace(terms, session_s=session_s, week_s=min(week_s, WEEK_S))
    return terms, assumed
