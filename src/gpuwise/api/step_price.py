"""The price of one step on a device, the same for every verb: what `plan` and `train` choose by, and what `forecast` says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpuwise.api.devices import substrate_of
from gpuwise.api.measured import as_last_measured
from gpuwise.api.source import Source
from gpuwise.cost import Forecast, price
from gpuwise.cost.offload import host_link, lengthened, offload
from gpuwise.cost.parameters import parameters
from gpuwise.errors import MissingDependencyError, UnsupportedError
from gpuwise.hardware import Chip, load_catalog
from gpuwise.plan.compile_time import drawing_s, slowed
from gpuwise.strategy import Strategy
from gpuwise.trace import Trace
from gpuwise.trace.sharded import data_parallel, recorded_as


def step_price(source: Source, chip: Chip, strategy: Strategy, *, history: bool, **terms: Any) -> tuple[Forecast, Trace]:
    """The forecast of a step, with the trace of one rank.

    Arguments:
        history: the chip is of this machine, and a step that `validate` has measured on it counts as measured.
        terms: of the device and its data, as gpuwise.cost.price takes them.

    Raises what tracing and pricing raise.
    """
    trace, communication = data_parallel(source.trace(recorded_as(strategy), substrate=substrate_of(chip)), strategy)
    found = price(trace, communication, chip, strategy=strategy, **terms)
    if strategy.offload != "none":
        plain = source.trace(recorded_as(strategy.but(offload="none")), substrate=substrate_of(chip))
        found = lengthened(found, offload(plain, strategy, host_link(chip, load_catalog()), parameters()))
    if strategy.compile and chip.kind == "cpu":
        found = _drawing(found, source, chip)
    return as_last_measured(found, trace, strategy, chip) if history else found, trace


def _drawing(compiled: Forecast, source: Source, chip: Chip) -> Forecast:
    """With the random numbers of compiled steps, which only the trace of eager ones counts."""
    strategy = compiled.strategy.but(compile=False)
    try:
        eager = source.trace(recorded_as(strategy), substrate=substrate_of(chip))
    except (UnsupportedError, MissingDependencyError) as error:  # a saved trace has no other
        missing = f"random numbers of compiled steps are not priced: {error.what}"
        return replace(compiled, assumptions=(*compiled.assumptions, missing))
    return slowed(compiled, drawing_s(eager, chip))
