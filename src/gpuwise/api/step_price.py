"""The price of one step on a device, as `forecast` says it, and `train` and `validate` hold it against real steps."""

from __future__ import annotations

from gpuwise.api.devices import target_of
from gpuwise.api.measured import as_last_measured
from gpuwise.api.source import StepSource
from gpuwise.cost import Forecast
from gpuwise.cost.inputs import READY, DataPipeline
from gpuwise.hardware.cluster import Cluster
from gpuwise.plan.pricing.step import StepPricer
from gpuwise.strategy import Strategy
from gpuwise.trace import Trace


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
    pricer = StepPricer(source.step_traces(target_of(cluster.chip)), data=data)
    forecast, trace = pricer.forecast(strategy, cluster, usd_per_hour=usd_per_hour), pricer.trace(strategy)
    return as_last_measured(forecast, trace, strategy, cluster.chip) if history else forecast, trace
