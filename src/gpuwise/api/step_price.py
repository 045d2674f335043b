"""The price of one step on a device, the same for every verb: what `plan` and `train` choose by, and what `forecast` says."""

from __future__ import annotations

from typing import Any

from gpuwise.api.devices import target_of
from gpuwise.api.measured import as_last_measured
from gpuwise.api.source import StepSource
from gpuwise.cost import Forecast
from gpuwise.hardware import Chip, load_catalog
from gpuwise.plan.step import forecast_of
from gpuwise.strategy import Strategy
from gpuwise.trace import Trace
from gpuwise.trace.parallel.communication import Communication
from gpuwise.trace.parallel.data_parallel import data_parallel
from gpuwise.trace.parallel.variant import recorded_as


def step_price(source: StepSource, chip: Chip, strategy: Strategy, *, history: bool, **terms: Any) -> tuple[Forecast, Trace]:
    """The forecast of a step, with the trace of one rank.

    Arguments:
        history: the chip is of this machine, and a step that `validate` has measured on it counts as measured.
        terms: of the device and its data, as gpuwise.cost.price takes them.

    Raises what tracing and pricing raise.
    """
    traces: dict[Strategy, tuple[Trace, Communication]] = {}

    def trace_of(wanted: Strategy) -> tuple[Trace, Communication]:
        if wanted not in traces:
            traces[wanted] = data_parallel(source.trace(recorded_as(wanted), target=target_of(chip)), wanted)
        return traces[wanted]

    found = forecast_of(trace_of, strategy, chip, catalog=load_catalog(), **terms)
    trace = trace_of(strategy)[0]
    return as_last_measured(found, trace, strategy, chip) if history else found, trace
