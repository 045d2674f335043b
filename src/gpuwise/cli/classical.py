"""plan and forecast of a classical job, which has an estimator in place of a network."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpuwise.errors import InputError

if TYPE_CHECKING:
    from gpuwise.results.fits import FitForecast


def forecast_classical(job: str, on: str | None, settings: Mapping[str, object], *, as_json: bool) -> bool:
    """Prints the forecast of a ClassicalJob; False, and nothing printed, for any other JOB.

    Arguments:
        settings: of the verb, by name; most have no meaning for an estimator and are refused.
    """
    result = _forecast(job, on, settings) if ".py:" in job else None  # else no file is named
    if result is None:
        if settings.get("trial_limit") is not None:
            raise InputError(f"{job} is no ClassicalJob: no fits are timed.", ["leave out --trial-limit"])
        return False
    from gpuwise.cli.output import emit
    from gpuwise.report.classical import classical_report

    emit(result, classical_report, as_json=as_json)
    return True


def _forecast(job: str, on: str | None, settings: Mapping[str, object]) -> FitForecast | None:
    from gpuwise.api.classical import check_classical_settings, forecast_if_classical

    def begins(samples: int | None) -> None:
        check_classical_settings(settings, on)  # of a classical job, before it is timed
        _show(samples)

    try:
        return forecast_if_classical(job, settings, on_fit=begins)
    finally:
        _show(None)


def _show(samples: int | None) -> None:
    """The size that is being fitted, in a line of a terminal."""
    if sys.stderr.isatty():
        line = "" if samples is None else f"fitting on {samples:,} rows"
        print(f"\r\x1b[2K{line}", end="", file=sys.stderr, flush=True)
