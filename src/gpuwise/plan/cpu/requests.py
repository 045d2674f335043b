"""Requests a second that forward passes one after another answer, and the wait for them at a usual load."""

from __future__ import annotations

from gpuwise.cost.forecast import Forecast
from gpuwise.notes import Note
from gpuwise.notes.cpu import requests_held

# From a load of 60 % on, waiting grows fast.
LOAD = 0.6


def requests_note(forecast: Forecast) -> Note:
    """The note on a forecast of mode "infer": each forward pass answers one request of its micro-batch."""
    service_s = forecast.step_time_s.value
    return requests_held(
        per_s=1 / service_s,
        samples=forecast.strategy.micro_batch,
        loaded_per_s=LOAD / service_s,
        load=LOAD,
        waiting_s=mean_wait_s(service_s, load=LOAD),
    )


def mean_wait_s(service_s: float, *, load: float) -> float:
    """Mean time that a request waits before it is served: requests come at random (Poisson), one is served at a time, and each
    takes the same time. M/D/1 of the Pollaczek-Khinchine formula: load * service / (2 * (1 - load)).

    Arguments:
        service_s: seconds of a request.
        load: share of the time that the machine is busy, from 0 to below 1.
    """
    return load * service_s / (2 * (1 - load))
