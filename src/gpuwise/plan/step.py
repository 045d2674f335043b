"""The price of one step: what its kernels take, what offloading adds, and random numbers drawn in compiled steps on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpuwise.cost.forecast import Forecast
from gpuwise.cost.inputs import READY, DataPipeline
from gpuwise.cost.offload import lengthened, offload
from gpuwise.cost.parameters import parameters
from gpuwise.cost.price import price
from gpuwise.errors import MissingDependencyError, UnsupportedError
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.links import host_link
from gpuwise.hardware.types import Chip
from gpuwise.notes.step import random_numbers_not_priced
from gpuwise.plan.cpu.compile_time import drawing_s, slowed
from gpuwise.strategy import Strategy
from gpuwise.trace.parallel.communication import Communication
from gpuwise.trace.trace import Trace

TraceOf = Callable[[Strategy], tuple[Trace, Communication]]
"""What one rank does under a strategy, and what the ranks exchange."""


def forecast_of(
    trace_of: TraceOf,
    strategy: Strategy,
    cluster: Cluster,
    *,
    catalog: Catalog,
    data: DataPipeline = READY,
    usd_per_hour: float | None = None,
    replay: bool = True,
) -> Forecast:
    """The forecast of a step.

    Arguments:
        catalog: where the link to the host comes from. The others: as for gpuwise.cost.price.price.

    Raises what tracing and pricing raise.
    """
    chip = cluster.chip
    trace, communication = trace_of(strategy)
    forecast = price(trace, communication, cluster, strategy=strategy, data=data, usd_per_hour=usd_per_hour, replay=replay)
    if strategy.offload != "none":
        plain = trace_of(strategy.but(offload="none"))[0]
        forecast = lengthened(forecast, offload(plain, strategy, host_link(chip, catalog), parameters()))
    if strategy.compile and chip.kind == "cpu":
        forecast = _with_drawing(forecast, trace_of, chip)
    return forecast


def _with_drawing(compiled: Forecast, trace_of: TraceOf, chip: Chip) -> Forecast:
    """With the random numbers of compiled steps, which only the trace of eager ones counts."""
    try:
        eager = trace_of(compiled.strategy.but(compile=False))[0]
    except (UnsupportedError, MissingDependencyError) as error:  # a saved trace has no other
        missing = random_numbers_not_priced(problem=error.what)
        return replace(compiled, assumption_notes=(*compiled.assumption_notes, missing))
    return slowed(compiled, drawing_s(eager, chip))
