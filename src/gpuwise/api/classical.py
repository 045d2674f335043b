"""plan and forecast of a classical job: fits on parts of its rows on this machine, and the full fit from them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gpuwise.api.device_names import device_names
from gpuwise.api.plain_arguments import plainly
from gpuwise.cost.forecast import Interval
from gpuwise.errors import InputError, JobError, UnsupportedError
from gpuwise.hardware.catalog import load_catalog
from gpuwise.hardware.detect import detect_machine
from gpuwise.hardware.detect.memory import detect_memory
from gpuwise.hardware.disturbances import OTHERS_SHARE, shares
from gpuwise.hardware.load import load
from gpuwise.measure.fits import TimedFits, time_fits
from gpuwise.measure.fits_growth import growth_of_fits
from gpuwise.notes import Note
from gpuwise.notes import classical as notes
from gpuwise.plan.cpu.full_fit import FullFit, judge
from gpuwise.plan.cpu.growth import MEMORY, TIME, Growth, Scatter
from gpuwise.results.fits import FitForecast, TimedFit
from gpuwise.step_settings import flag_of, job_word
from gpuwise.units import parse_count, parse_duration

TRIAL_LIMIT_S = 60.0
_TAKEN = ("samples", "deadline", "trial_limit")
_HERE = ("here", "cpu")
_MOST_BYTES_SHARE = 0.9  # of the memory that is free now: the system keeps some
LEAST_CPU_S = 1e-6  # a processor's clock may not tick within a fit
_BUSY_FITS = 3  # the largest fits, of which the busiest says how many processors a fit uses


@plainly
def classical_forecast(
    job: str,
    *,
    samples: int | str | None = None,
    deadline: float | str | None = None,
    trial_limit: float | str | None = None,
    on_fit: Callable[[int | None], None] = lambda _: None,
) -> FitForecast:
    """The forecast of one fit of a classical job on all of its rows, on this machine, from fits on parts of them.

    Arguments:
        job: "path.py:name" of a ClassicalJob; no object, as it is fitted in a process of its own.
        samples: rows of the full fit, 2_000_000 or "2M". None takes the job's.
        deadline: seconds or "12h" that the full fit may take. None: a day.
        trial_limit: seconds or "5min" for all timed fits together. None: 60 s.
        on_fit: called with the rows of each fit before it begins.

    Raises JobError for the user's mistakes and where too few sizes can be fitted, InputError, DoesNotFitError.
    """
    if not isinstance(job, str):
        raise InputError(
            "a ClassicalJob is fitted in a process of its own, which loads it from its file.",
            ['name the file and the job in it: "fit_model.py:job"'],
        )
    settings = {"samples": samples, "deadline": deadline, "trial_limit": trial_limit}
    forecast = forecast_if_classical(job, settings, on_fit=on_fit)
    if forecast is None:
        raise JobError(f"{job} is no ClassicalJob.", [f"gpuwise plan {job_word(job)}, for a network"])
    return forecast


def forecast_if_classical(
    job: str, settings: Mapping[str, object], *, on_fit: Callable[[int | None], None]
) -> FitForecast | None:
    """The same; None for any other job, for which `on_fit` is not called.

    Arguments:
        settings: `samples`, `deadline` and `trial_limit` among others.
    """
    if not _may_be_classical(job):
        return None
    samples = settings.get("samples")
    count = None if samples is None else parse_count(str(samples), "a number of samples")
    deadline_s, limit_s = (_seconds(name, settings.get(name)) for name in ("deadline", "trial_limit"))
    limit_s = limit_s or TRIAL_LIMIT_S
    before = load()
    timed = time_fits(job, samples=count, limit_s=limit_s, available_bytes=_available_bytes(), begins=on_fit)
    if timed is None:
        return None
    used = shares(before, load())
    return _forecast(timed, deadline_s=deadline_s, others_share=0.0 if used is None else used.others + used.stolen)


def check_classical_settings(settings: Mapping[str, object], on: str | Sequence[str] | None) -> None:
    """Raises InputError or UnsupportedError for what the forecast of a classical job does not take."""
    for name, value in settings.items():
        if name not in _TAKEN and value not in (None, False, ()):
            raise InputError(
                f"the job is an estimator with fit, which has no {flag_of(name)}.",
                [f"it takes {', '.join(map(flag_of, _TAKEN))}", f"leave out {flag_of(name)}"],
            )
    names = [] if on is None else device_names(on)
    if any(name.lower() not in _HERE for name in names):
        raise UnsupportedError(
            f"a fit of an estimator is timed on this machine alone, not on {', '.join(names)}.", ["--on here", "leave out --on"]
        )


def _forecast(timed: TimedFits, *, deadline_s: float | None, others_share: float) -> FitForecast:
    catalog = load_catalog()
    here = detect_machine(catalog)
    processors = os.cpu_count() or 1 if here is None else here.host_cores or 1
    cores = max(
        fit.cpu_s / fit.seconds for fit in sorted((*timed.fits, *timed.few_rounds), key=lambda fit: fit.cpu_s)[-_BUSY_FITS:]
    )
    growth = growth_of_time(timed).scaled(1 / cores)
    time_s, memory = growth.at(timed.samples), memory_of_full_fit(timed)
    if timed.measured:
        time_s = Interval(*[timed.largest.seconds] * 3)
    capacity = None if here is None else here.host_memory_bytes
    fit = FullFit(timed.samples, time_s, memory, growth, cores, timed.measured)
    enough = judge(fit, capacity_bytes=capacity, processors=processors, deadline_s=deadline_s, catalog=catalog)
    return FitForecast(
        timed.job,
        timed.estimator,
        timed.samples,
        time_s,
        cores,
        growth.exponent_at(timed.samples),
        memory,
        capacity,
        timed.measured,
        timed.fits,
        "this machine" if here is None else here.name,
        enough,
        _notes(timed, others_share),
        timed.few_rounds,
    )


def growth_of_time(timed: TimedFits) -> Growth:
    """The growth of processor seconds of whole fits."""
    return _growth(timed, lambda fit: max(fit.cpu_s, LEAST_CPU_S), TIME)


def memory_of_full_fit(timed: TimedFits) -> Interval | None:
    """Peak resident memory of the full fit."""
    if not all(fit.peak_bytes for fit in (*timed.fits, *timed.few_rounds)):
        return None
    if timed.measured:
        return Interval(*[float(timed.fits[-1].peak_bytes or 0)] * 3)
    return _growth(timed, lambda fit: float(fit.peak_bytes or 0), MEMORY).at(timed.samples)


def _growth(timed: TimedFits, figure: Callable[[TimedFit], float], scatter: Scatter) -> Growth:
    return growth_of_fits(
        timed.fits,
        timed.few_rounds,
        samples=timed.samples,
        round_limit=timed.round_limit,
        figure=figure,
        scatter=scatter,
    )


def _notes(timed: TimedFits, others_share: float) -> tuple[Note, ...]:
    remarks: list[Note] = []
    if not timed.measured:
        largest = timed.largest.samples
        remarks.append(notes.extrapolated_from(samples=largest, share=largest / timed.samples))
        if timed.few_rounds:
            last = timed.few_rounds[-1]
            remarks.append(notes.few_rounds_timed(samples=last.samples, rounds=last.rounds or last.round_limit or 1))
    remarks += [] if timed.ended is None else [timed.ended]
    if others_share > OTHERS_SHARE:
        remarks.append(notes.timed_beside_others(share=others_share))
    return tuple(remarks)


def _seconds(name: str, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf:
        return float(value)
    if isinstance(value, str):
        return parse_duration(value)
    raise InputError(f"{flag_of(name)} must be a duration above zero, got {value!r}.", ["write it like 60s or 12h"])


def _available_bytes() -> int | None:
    free = detect_memory().available_bytes
    return None if free is None else int(_MOST_BYTES_SHARE * free)


def _may_be_classical(job: str) -> bool:
    """Whether a Python file names the class. Others are not loaded here: the traces of their jobs may be cached."""
    path = Path(job.rpartition(":")[0]).expanduser()
    if path.suffix != ".py":
        return False
    try:
        return "ClassicalJob" in path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return False
