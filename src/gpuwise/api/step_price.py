"""The price of one step on a device, the same for every verb: what `plan` and `train` choose by, and what `forecast` says."""

from __future__ import annotations

from gpuwise.api.devices import target_of
from gpuwise.api.measured import as_last_measured
from gpuwise.api.source import StepSource
from gpuwise.cost import Forecast
from gpuwise.cost.inputs import READY, DataPipeline
from gpuwise.hardware import load_catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.plan.step import forecast_of
from gpuwise.strategy import Strategy
from gpuwise.trace import Trace
from gpuwise.trace.parallel.communication import Communication
from gpuwise.trace.parallel.data_parallel import data_parallel
from gpuwise.trace.parallel.variant import recorded_as


def step_price(
    source: StepSource,
    cluster: Cluster,
    strategy: Strategy,
    *,
    history: bool,
    data: DataPipeline = READY,
    usd_per_hour: float | None = None,
) -> tuple[Forecast, Trace]:
    """The forecast of a step, with the trace of one rank.

    Arguments:
        history: the chip is of this machine, and a step that `validate` has measured on it counts as measured.
        data, usd_per_hour: as for gpuwise.cost.price.price.

    Raises what tracing and pricing raise.
    """
    traces: dict[Strategy, tuple[Trace, Communication]] = {}

    def trace_of(wanted: Strategy) -> tuple[Trace, Communication]:
        if wanted not in traces:
            traces[wanted] = data_parallel(source.trace(recorded_as(wanted), target=target_of(cluster.chip)), wanted)
        return traces[wanted]

    found = forecast_of(trace_of, strategy, cluster, catalog=load_catalog(), data=data, usd_per_hour=usd_per_hour)
    trace = trace_of(strategy)[0]
    return as_last_measured(found, trace, strategy, cluster.chip) if history else found, trace
